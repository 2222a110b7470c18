// Core: what Pool, the endpoint and the peers' sessions work on; internal to
// vmm/. pool.h says what it does; docs/pool.md how.
//
//   thread caches    one a thread, no lock but the cache's own flag
//   arenas           one a (domain, stream): recently freed blocks by size,
//                    and segments with their heaps          } mutex_
//   waiting blocks   for streams (pending), for peers (held) }
//   domains          tickets and peers                       }
#ifndef VMMSHARE_VMM_POOL_CORE_H_
#define VMMSHARE_VMM_POOL_CORE_H_

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/abandon.h"
#include "vmm/lease.h"
#include "vmm/pool.h"
#include "vmm/pool/address_table.h"
#include "vmm/pool/block.h"
#include "vmm/pool/domain.h"
#include "vmm/pool/pending.h"
#include "vmm/pool/segment.h"
#include "vmm/pool/thread_cache.h"

namespace vmm::pool {

// Thread-safe.
class Core : public platform::Abandonable {
 public:
  Core(const Device& device, const PoolOptions& options);
  ~Core();

  // As in Pool.
  absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t size, CUstream stream,
                                       const BlockOptions& options);
  absl::Status Free(CUdeviceptr address, CUstream stream);
  absl::Status Export(absl::Span<const CUdeviceptr> blocks, PoolTicket* out);
  SharingDomain NewDomain();
  absl::Status Reserve(std::uint64_t bytes, CUstream stream,
                       SharingDomain domain);
  absl::StatusOr<std::uint64_t> Trim(std::uint64_t keep_bytes);
  absl::Status ReleaseStream(CUstream stream, absl::Time deadline);
  std::vector<BlockLease> Leases();
  absl::Status Recall(absl::Span<const CUdeviceptr> blocks, absl::Time until);
  void RecallAll(absl::Time until);
  absl::Status WaitUntilReturned(absl::Span<const CUdeviceptr> blocks,
                                 absl::Time deadline);
  absl::Status WaitUntilAllReturned(absl::Time deadline);
  PoolStatistics statistics();
  absl::Status CheckInvariants();
  const Device& device() const { return device_; }

  // Gives everything back: the pool ends. Sessions of peers may go on to use
  // this object, and find nothing.
  void Close();

  // --- For the endpoint (core_share.cc) --------------------------------------

  // Exports what the domain has, so that peers can be given it.
  absl::StatusOr<DomainId> Serve(SharingDomain domain);
  // Serves one subscriber on its connection until it hangs up or `cancel`.
  absl::Status ServePeer(const DomainId& domain, platform::Channel& channel,
                         absl::Duration timeout,
                         const platform::CancelEvent& cancel);

 private:
  struct Request {
    std::uint64_t size = 0;  // Bytes, a multiple of the heap's granule.
    std::uint64_t alignment = 0;
    std::uint64_t requested = 0;
    CacheKey key() const { return {size, stream, domain}; }
    CUstream stream = nullptr;
    std::uint32_t domain = 0;
  };

  // core.cc: the mutex is not held.
  absl::StatusOr<Block*> AllocateSlowly(const Request& request);
  absl::Status WhyNotFree(CUdeviceptr address);
  void Settle(ThreadCache& cache, Block* block);

  // The rest: mutex_ is held.
  Arena& ArenaOf(std::uint32_t domain, CUstream stream);
  Block* TakeFrom(Arena& arena, const Request& request);
  Block* Cut(Segment& segment, const Request& request);
  void FillCache(Arena& arena, const Request& request);

  // core_reuse.cc
  // Where a block goes that the program has freed on block->freed_on.
  void PutBack(Block* block);
  void PutBackAll(BlockList blocks);
  // Into its heap, if block->freed_on is the stream of its arena; else it
  // waits.
  void MergeAll(BlockList blocks);
  void Merge(Block* block);
  // Makes one again what was freed, as far as that gives `arena` room, or
  // another one an idle segment.
  void MergeFor(const Arena& arena);
  void EmptyCaches();
  // Takes back what streams have passed and peers have given back.
  void Collect();
  void CollectHeld();
  void LetGoOfTickets(Block* block);

  // core_grow.cc
  absl::Status Grow(Arena& arena, const Request& request);
  absl::Status AddSegment(Arena& arena, std::uint64_t size,
                          std::uint64_t alignment);
  void Claim(Arena& arena, Segment& segment);
  bool ClaimPassed(Arena& arena, const Request& request);
  absl::StatusOr<bool> ClaimByWaiting(Arena& arena, const Request& request);
  absl::Status ZeroForDomain(Arena& arena, Segment& segment);
  absl::StatusOr<Block*> LastResort(Arena& arena, const Request& request);
  std::uint64_t ReleaseIdle(std::uint64_t keep_bytes);
  // Whether the GPU has passed all of the stream's work; false, and told in
  // last_error_, when the driver cannot say.
  bool HasPassedAll(CUstream stream);
  absl::Status CannotGrow(const Request& request, const absl::Status& why);
  std::uint64_t Reserved() const;

  // core_leases.cc
  struct LeasedBlock {
    const Block* block;
    SlotRef slot;
  };
  // Those of `blocks` that have tickets. NOT_FOUND without a message: the one
  // in *bad is not live.
  absl::StatusOr<std::vector<LeasedBlock>> FindShared(
      absl::Span<const CUdeviceptr> blocks, CUdeviceptr* bad);
  void AddLeases(const Block& block, std::vector<BlockLease>& out) const;
  void RecallSlots(absl::Span<const Block* const> blocks, absl::Time until);
  template <typename Done>
  bool WaitFor(std::unique_lock<std::mutex>& lock, absl::Time deadline,
               Done done);

  // core_share.cc
  absl::StatusOr<PoolTicket> ExportOne(Block* block, CUdeviceptr address);
  absl::Status ExportSome(absl::Span<const CUdeviceptr> blocks,
                          PoolTicket* out);
  absl::Status CheckDomain(SharingDomain domain) const;
  absl::StatusOr<Domain*> FindServed(const DomainId& id);
  // Without the mutex.
  absl::Status SendMissing(Domain& domain, PeerId peer,
                           platform::Channel& channel, absl::Duration timeout);

  const Device device_;
  const PoolOptions options_;
  AddressTable addresses_;  // Changed under mutex_; read without.
  ThreadCaches caches_;

  mutable std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t next_size_;  // Bytes of the next segment.
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Domain>> domains_;
  std::deque<Block> records_;
  BlockList unused_;  // Of records_.
  PendingBlocks pending_;
  std::vector<Block*> held_;          // Freed, and in use by peers.
  std::condition_variable returned_;  // A peer has left.
  absl::Status last_error_;
};

// The stream of a block that the GPU has passed already.
inline CUstream PassedStream() {
  return reinterpret_cast<CUstream>(~std::uintptr_t{0});
}

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_CORE_H_
