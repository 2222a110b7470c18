// ImportedPool: the blocks of another process's pool.
//
//   auto pool = ImportedPool::Subscribe(driver, text, {}, deadline);
//   absl::StatusOr<ImportedBlock> block = (*pool)->Import(ticket, deadline);
//   ... use block->address() ...
//   (*pool)->ReleaseAfter(*std::move(block), stream);   // or destroy it
//
// `text` is the owner's Share::ticket(), moved here by whatever means
// the program has, and so are the tickets. The pool's segments come over the
// connection, each once, and are mapped in the background as they come: so
// importing a block costs a few stores and loads, and neither a driver call nor
// a system call.
//
// A block that is imported is not handed out again by its owner, even if that
// frees it, until every ImportedBlock of it is gone or the end of this process is
// proven (docs/lifetime.md). Its contents are not protected: order accesses as
// for any shared memory.
//
// When the owner ends, or hangs up because this process reads too slowly, what
// is mapped stays valid and no new segments come: see connection().
#ifndef VMMSHARE_VMM_POOL_IMPORTED_POOL_H_
#define VMMSHARE_VMM_POOL_IMPORTED_POOL_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/imported_allocation.h"

namespace vmm {

namespace pool {
class Subscription;
}  // namespace pool

// One block, held while this object lives. Destroying it gives the block back
// at once, in the order of no stream: synchronise first, or see
// ImportedPool::ReleaseAfter. In a forked child it gives back nothing, for the
// block is the parent's. Move-only; thread-compatible. REQUIRES: goes before
// its ImportedPool.
class ImportedBlock {
 public:
  ImportedBlock(ImportedBlock&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        address_(other.address_),
        size_(other.size_),
        segment_(other.segment_),
        slot_(other.slot_) {}
  ImportedBlock& operator=(ImportedBlock&& other) noexcept;
  ~ImportedBlock();

  CUdeviceptr address() const { return address_; }
  // Bytes that the owner asked for.
  std::uint64_t size() const { return size_; }

 private:
  friend class pool::Subscription;
  ImportedBlock(pool::Subscription* pool, CUdeviceptr address,
                std::uint64_t size, std::uint32_t segment, std::uint32_t slot)
      : pool_(pool),
        address_(address),
        size_(size),
        segment_(segment),
        slot_(slot) {}

  pool::Subscription* pool_;  // Null: moved from.
  CUdeviceptr address_;
  std::uint64_t size_;
  std::uint32_t segment_;
  std::uint32_t slot_;
};

// A snapshot.
struct ImportedPoolStatistics {
  std::size_t segments = 0;     // Mapped here.
  std::uint64_t mapped = 0;     // Bytes of them.
  std::uint64_t imported = 0;   // ImportedBlocks that are held, all told.
  std::uint64_t releasing = 0;  // Of these, waiting for a stream.
  // The last failure that no caller was told of: a stream that could not be
  // asked, whose blocks stay held until it can.
  absl::Status last_error;
};

// A block that is imported here and that its owner wants back.
struct RecalledBlock {
  CUdeviceptr address = 0;
  std::uint64_t size = 0;  // Bytes.
  absl::Time return_by;
};

// What a program wants to be told. Called on a thread of the ImportedPool's, which
// has signals blocked, or in Watch(), one at a time; it may release blocks, and must
// neither destroy the ImportedPool nor call Watch(), nor throw: on that thread
// nobody catches it, and the process ends.
struct ImportedPoolWatch {
  // Blocks are asked back: release each ImportedBlock of them. If you do not, the
  // owner sees it, and nothing else happens.
  std::function<void(absl::Span<const RecalledBlock>)> recalled = nullptr;
  // The owner has ended, or serves this process no more: connection() says why.
  // What is imported stays valid.
  std::function<void(const absl::Status&)> disconnected = nullptr;
};

// Thread-safe.
class ImportedPool {
 public:
  // Dials the owner's endpoint, whose user must be allowed by `owners`, and
  // maps every segment of the sharing domain with `options`, those made later
  // too. Returns when the owner has welcomed this process.
  //   INVALID_ARGUMENT    text that is no pool ticket, or damaged
  //   UNIMPLEMENTED       a ticket or an owner of another release
  //   NOT_FOUND           withdrawn, or nobody serves it: the owner is gone
  //   PERMISSION_DENIED   the endpoint is not an allowed user's; it is not
  //                       shared with this user, or not for writing
  //   RESOURCE_EXHAUSTED  the owner had no room for another peer until the
  //                       deadline
  //   DEADLINE_EXCEEDED, UNAVAILABLE, DATA_LOSS as in ReceiveAllocations
  //   else                why a segment cannot be mapped here
  static absl::StatusOr<std::unique_ptr<ImportedPool>> Subscribe(
      const platform::Driver& driver, absl::string_view ticket,
      const ImportOptions& options, Deadline deadline,
      const platform::PeerPolicy& owners = {});

  // Waits until the GPU has passed what blocks wait for (ReleaseAfter), unmaps
  // everything and takes leave of the owner. REQUIRES: no ImportedBlock of it
  // is left. In a forked child it does nothing, and nothing else may be called
  // there.
  ~ImportedPool();
  ImportedPool(const ImportedPool&) = delete;
  ImportedPool& operator=(const ImportedPool&) = delete;

  // The block of `ticket`. Waits only if its segment is still on its way.
  //   INVALID_ARGUMENT     a ticket of another pool or domain, or one that
  //                        contradicts what the owner recorded
  //   FAILED_PRECONDITION  the block was freed; its memory may be another's
  //   DEADLINE_EXCEEDED    its segment did not come in time, or this process
  //                        has no descriptor for it so far
  //   UNAVAILABLE          nor will it: the connection has ended
  //   else                 the segment could not be mapped: why not
  absl::StatusOr<ImportedBlock> Import(const PoolTicket& ticket,
                                       Deadline deadline);
  // Many at once, in the order given. All or nothing.
  absl::StatusOr<std::vector<ImportedBlock>> ImportAll(
      absl::Span<const PoolTicket> tickets, Deadline deadline);

  // Gives blocks back once the work that is on `stream` now is done, without a
  // wait here: a thread of this object looks after them, every millisecond.
  // Null is the current context's default stream. On failure (no context is
  // current, no event can be had, INVALID_ARGUMENT for AllStreams() and
  // CU_STREAM_PER_THREAD, FAILED_PRECONDITION while `stream` is captured into a graph)
  // they stay the caller's, unchanged.
  // REQUIRES: blocks of this pool.
  absl::Status ReleaseAfter(ImportedBlock&& block, CUstream stream);
  absl::Status ReleaseAllAfter(std::vector<ImportedBlock>&& blocks,
                               CUstream stream);

  // OK while the owner serves this process; otherwise why it does not: UNAVAILABLE
  // when it ended or hung up, DATA_LOSS when it broke the protocol,
  // RESOURCE_EXHAUSTED when this process could not take what it sent; for want of
  // descriptors it tries for 10 s.
  absl::Status connection() const;
  // The blocks that the owner wants back and that are still imported here.
  std::vector<RecalledBlock> Recalled() const;
  // From now on `watch` is told, in place of the one before, of what happens
  // and, in this call, of what has happened; of an event in between, twice.
  void Watch(ImportedPoolWatch watch);
  ImportedPoolStatistics statistics() const;

  // What is weaker about the segments that are mapped here than about memory of
  // cuMemCreate(), for people; empty if nothing is. A block's segment is mapped
  // once the block is imported; others may come later.
  std::string weakness() const;

 private:
  friend class ImportedFencePool;
  explicit ImportedPool(std::unique_ptr<pool::Subscription> subscription);
  // From now on a segment of which a block was imported stays mapped until this
  // goes, also when its owner forgets it.
  void KeepWhatIsForgotten();
  std::unique_ptr<pool::Subscription> subscription_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_POOL_IMPORTED_POOL_H_
