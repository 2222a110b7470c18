// Core: what Pool, the endpoint and the peers' sessions work on; internal to
// vmm/. pool.h says what it does; docs/pool.md how.
//
//   thread caches    one a thread, no lock but the cache's own flag
//   recent           what overflowed them, by size and stream   }
//   heaps            one a domain: segments and backlogs        } mutex_
//   held             freed, and in use by peers                 }
//   domains          tickets and peers                          }
//
// mutex_ is held for arithmetic, and where a peer has ended until its end is
// proven or not (PeerWatch::Look()). Who must ask the driver something lets go
// of it, and looks again at what has changed meanwhile (Unlocked).
#ifndef VMMSHARE_VMM_POOL_INTERNAL_CORE_H_
#define VMMSHARE_VMM_POOL_INTERNAL_CORE_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/os/deadline.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/block.h"
#include "vmm/pool/internal/block_book.h"
#include "vmm/pool/internal/domain.h"
#include "vmm/pool/internal/heap.h"
#include "vmm/pool/internal/points.h"
#include "vmm/pool/internal/segment.h"
#include "vmm/pool/internal/stream_context.h"
#include "vmm/pool/internal/thread_cache.h"
#include "vmm/pool/pool.h"
#include "vmm/share/lease.h"

namespace vmm::pool {

// Thread-safe.
class Core : public platform::Abandonable {
 public:
  // `unit`: bytes of which segments are multiples, at least Range::kUnit.
  Core(const Device& device, const PoolOptions& options, std::uint64_t unit);
  ~Core();

  // As in Pool.
  absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t size, CUstream stream,
                                       const BlockOptions& options);
  absl::Status Free(CUdeviceptr address, CUstream stream);
  absl::Status Export(absl::Span<const CUdeviceptr> blocks, PoolTicket* out);
  // The live block around an address.
  std::optional<PoolBlock> Find(CUdeviceptr inside);
  SharingDomain NewDomain();
  absl::Status Reserve(std::uint64_t bytes, CUstream stream,
                       SharingDomain domain);
  absl::StatusOr<std::uint64_t> Trim(std::uint64_t keep_bytes);
  absl::Status ReleaseStream(CUstream stream, Deadline deadline);
  absl::Status Order(CUstream first, CUstream then, Deadline deadline);
  std::vector<BlockLease> Leases();
  absl::Status Recall(absl::Span<const CUdeviceptr> blocks, absl::Time until);
  void RecallAll(absl::Time until);
  absl::Status WaitUntilReturned(absl::Span<const CUdeviceptr> blocks,
                                 Deadline deadline);
  absl::Status WaitUntilAllReturned(Deadline deadline);
  PoolStatistics statistics();
  std::string weakness();
  absl::Status rdma_refusal();
  absl::Status CheckInvariants();
  const Device& device() const { return device_; }

  // Gives everything back: the pool ends. Sessions of peers may go on to use
  // this object, and find nothing.
  void Close();

  // --- For the endpoint (core_share.cc, core_sessions.cc) --------------------

  // Exports what the domain has, so that peers can be given it.
  absl::StatusOr<DomainId> Serve(SharingDomain domain);
  // Serves one subscriber on its connection until it hangs up or `cancel`.
  absl::Status ServePeer(const DomainId& domain, platform::Channel& channel,
                         platform::PeerWatch watch, absl::Duration timeout,
                         const platform::CancelEvent& cancel);
  // Forgets subscribers that have ended; whether others have left.
  bool Tidy(const DomainId& domain);

  // For another pool, which the device has no memory for: gives up what is
  // idle. Waits for what other threads are giving back.
  void GiveUpIdle();

 private:
  // Lets go of mutex_ while it lives: for driver calls, which break no capture
  // of a stream then.
  class Unlocked;

  // Bytes of a block for which the caches are emptied of those as large.
  static constexpr std::uint64_t kLarge = std::uint64_t{1} << 20;

  static CacheKey KeyOf(const Request& request) {
    return {request.size, request.stream, request.domain};
  }
  static CacheKey KeyOf(const Block& freed) {
    return {freed.size, freed.freed_on, freed.domain};
  }

  // core.cc
  absl::StatusOr<Block*> AllocateSlowly(const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckStream(CUstream stream) const;
  absl::Status CheckFreeOn(CUstream stream) const;
  void Settle(ThreadCache& cache, Block* block) ABSL_LOCKS_EXCLUDED(mutex_);
  void FillCache(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Heap& HeapOf(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return *heaps_[request.domain];
  }

  // core_find.cc
  absl::Status WhyNotFree(CUdeviceptr address) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null where there is none.
  const Range* RangeAround(CUdeviceptr inside) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Block* BlockAround(CUdeviceptr inside) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_reuse.cc
  // Where a block goes that the program has freed on block->freed_on.
  void PutBack(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBackAll(BlockList blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGoOfTickets(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Into the heaps, those that come late first.
  void PutAll(BlockList blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Into its heap, or else into late_.
  void Put(Block* block, std::optional<std::uint64_t> epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that overflowed; all caches; of what overflowed and what the calling
  // thread keeps, the large ones.
  void EmptyRecent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EmptyCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EmptyOfLarge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What peers have given back.
  void CollectHeld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsGivenBack(const Block& held) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !domains_[held.domain]->IsHeld(
        held.slot.load(std::memory_order_relaxed));
  }
  // Asks the GPU how far it is with these, and takes back what it has passed.
  // The error is why the driver could not say of some of them.
  absl::Status Ask(Heap& heap, const std::vector<Backlog*>& backlogs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AskAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has all that was freed go to where it serves others: out of the caches, back
  // from peers, and by AskAll().
  absl::Status CollectAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What was counted in asking_: others may ask again.
  void EndAll(absl::Span<Inquiry> inquiries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From what was freed, anywhere in the domain; null when it cannot serve yet.
  Block* Reuse(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same where the request's stream must wait for it on the GPU.
  Block* ReuseByWaiting(const Request& request, absl::Status* error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Freed, and for peers no longer: what only the GPU has to pass.
  std::uint64_t BytesWaiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the GPU has passed more, or `deadline`.
  absl::Status AwaitGpu(Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_grow.cc
  absl::StatusOr<Block*> Grow(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the stream's context in context_, if there is none and it is one of the
  // pool's device. REQUIRES: growing_.
  absl::Status NoteContext(CUstream stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Says growing_ until it returns. REQUIRES: nobody else does.
  absl::StatusOr<Block*> GrowInTurn(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gets what a request lacks, or `step` bytes if they are more, and takes the
  // block; without `block` it is all free.
  absl::Status AddMemory(const Request& request, std::uint64_t step,
                         Block** block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A range with room for it.
  absl::StatusOr<Range*> AddRange(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Made;
  // At `offset` of the range; without a range wherever it comes to lie.
  absl::StatusOr<Made> MakeSegment(const Request& request, Range* range,
                                   std::uint64_t offset, std::uint64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the place, has a segment of `size` bytes made there, and enters it into
  // the books.
  absl::Status AddSegment(const Request& request, Range* range,
                          const Place& place, std::uint64_t size, Block** block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether segments can be mapped side by side.
  bool HasRanges() const;
  std::uint64_t RoundUpToUnit(std::uint64_t size) const;  // Of segments.
  std::uint64_t LargestRange() const;
  std::uint64_t Step() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_reserve.cc
  // Gets memory until so much is free for the stream, and counts it in *added.
  absl::Status ReserveInTurn(std::uint64_t bytes, CUstream stream,
                             std::uint32_t domain, std::uint64_t* added)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::uint64_t BytesFreeFor(CUstream stream, std::uint32_t domain)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_trim.cc
  // Takes out ranges that have no segment.
  void RemoveVacant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether peers may have it open that would lose it (kLegacyIpc).
  bool MustOutlivePeers(const Segment& segment) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What could be given back.
  std::vector<Segment*> Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of it all but `keep_bytes`. Domain i keeps at least least[i] bytes of its own,
  // if it has them.
  std::vector<Segment*> Surplus(std::uint64_t keep_bytes,
                                absl::Span<const std::uint64_t> least) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the surplus back, and says how much.
  std::uint64_t ReleaseIdle(std::uint64_t keep_bytes,
                            absl::Span<const std::uint64_t> least = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_resort.cc
  // Has what is idle given back, but for `least`, and with `asks_others` by the
  // process's other pools; and waits for what others are getting or giving back.
  // Whether other pools were asked.
  bool GiveUpAll(absl::Span<const std::uint64_t> least, bool asks_others)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Block*> LastResort(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CannotGrow(const Request& request, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_leases.cc
  struct LeasedBlock;
  // Nothing where it has no ticket.
  std::optional<LeasedBlock> SharedAs(const Block& block) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLeased(const LeasedBlock& one) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those of `blocks` that have tickets. Nothing: the one in *bad is not live.
  std::optional<std::vector<LeasedBlock>> FindShared(
      absl::Span<const CUdeviceptr> blocks, CUdeviceptr* bad) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLeases(const Block& block, std::vector<BlockLease>& out) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecallSlots(absl::Span<const LeasedBlock> blocks, absl::Time until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Done>
  bool WaitFor(Deadline deadline, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_share.cc
  absl::Status PublishOne(Block& block, PoolTicket& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ExportSome(absl::Span<const CUdeviceptr> blocks, PoolTicket* out)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckDomain(SharingDomain domain) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Exports what a domain has and will have, if it is not exported yet.
  absl::Status ShareWhole(std::uint32_t domain)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Exports some of a domain's segments, of which there are some.
  absl::Status ShareAll(absl::Span<Segment* const> segments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // core_sessions.cc
  struct Session;
  // The number of the domain.
  absl::StatusOr<std::size_t> FindServed(const DomainId& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a subscriber what it is to be told, until it says goodbye, or an
  // error.
  absl::Status Attend(const Session& session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SendMissing(const Session& session) ABSL_LOCKS_EXCLUDED(mutex_);

  const Device device_;
  const PoolOptions options_;
  const std::uint64_t unit_;
  BlockBook book_;  // Changed under mutex_; looked up without.
  ThreadCaches caches_;

  mutable platform::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Threads that do not know when the pool ends, and are in GiveUpIdle() or
  // Serve().
  std::size_t visitors_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the device: that of the first stream that it grew for.
  CUcontext context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // The cap refused the last growth, which no other pool can help.
  bool is_at_cap_ ABSL_GUARDED_BY(mutex_) = false;
  // Some thread gets memory from the driver.
  bool growing_ ABSL_GUARDED_BY(mutex_) = false;
  // Bytes; also what is being made.
  std::uint64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes, ever.
  std::uint64_t given_back_ ABSL_GUARDED_BY(mutex_) = 0;
  // By number of the domain; first bytes that Reserve() was asked for.
  std::vector<std::uint64_t> keep_idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Heap>> heaps_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Domain>> domains_ ABSL_GUARDED_BY(mutex_);
  BlockCache recent_ ABSL_GUARDED_BY(mutex_){12};
  // Freed, and in use by peers.
  BlockList held_ ABSL_GUARDED_BY(mutex_);
  // Freed, and their heaps had no memory for their books.
  BlockList late_ ABSL_GUARDED_BY(mutex_);
  // Backlogs that the GPU is asked about.
  std::size_t asking_ ABSL_GUARDED_BY(mutex_) = 0;
  // Threads that unmap segments, which count as reserved until they are gone.
  std::size_t releasing_ ABSL_GUARDED_BY(mutex_) = 0;
  // growing_, asking_, visitors_, releasing_.
  platform::CondVar changed_;
  platform::CondVar returned_;  // A peer has left.
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
};

class ABSL_SCOPED_LOCKABLE Core::Unlocked {
 public:
  explicit Unlocked(Core& core) VMMSHARE_LETS_GO_OF(core.mutex_)
      : unlocked_(core.mutex_), relaxed_(core.device_.driver()) {}
  ~Unlocked() ABSL_UNLOCK_FUNCTION() {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  const platform::MutexUnlock unlocked_;
  const RelaxedCapture relaxed_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_CORE_H_
