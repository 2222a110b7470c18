// Pool: many small blocks out of few large shareable allocations.
//
//   absl::StatusOr<std::unique_ptr<Pool>> pool = Pool::Create(device, {});
//   absl::StatusOr<CUdeviceptr> block = (*pool)->Allocate(64 << 10, stream);
//   ... kernels on `stream` ...
//   absl::StatusOr<PoolTicket> ticket = (*pool)->Export(*block);   // 56 bytes
//   ... another process: ImportedPool::Import(ticket) ...
//   absl::Status freed = (*pool)->Free(*block, stream);
//
// Creating, exporting and mapping memory costs 40 us to 10 ms a piece on
// current GPUs (measured), and 2 MiB at least. A pool pays that once for a
// *segment* and hands out blocks of it: no driver call, no system call and no
// wait, neither for a block nor for a ticket.
//
// Like cuMemAllocAsync, allocation and freeing are ordered by streams. A block
// freed on a stream may be used for the next work on that stream at once; work
// on another stream gets it only after the GPU has passed the point where it
// was freed. All streams share one heap, so that memory which one does not use
// serves the others. Nothing here waits for the GPU but where it says so.
//
// A peer that imported a block keeps it from being handed out again until it
// has given it back or its end is proven (a child that it forked may have its
// GPU context): see imported_pool.h and docs/lifetime.md.
//
// Segments of a domain lie side by side, in addresses that are reserved for many
// more, so that a block may begin in one and end in the next, and the pool gets
// no more memory than a block lacks.
//
// A sharing domain is a group of processes that may see the same memory. A
// segment belongs to one for good, because a handle gives the whole of it: an
// idle one goes back to the driver, which zeroes what it gives to another.
#ifndef VMMSHARE_VMM_POOL_POOL_H_
#define VMMSHARE_VMM_POOL_POOL_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/lease.h"
#include "vmm/share/servable.h"

namespace vmm {

namespace pool {
class Core;
class Domain;
}  // namespace pool

// One of a pool's sharing domains. A value; means nothing to another pool.
enum class SharingDomain : std::uint32_t { kFirst = 0 };

// Which default stream a null stream is, for the code that calls a pool.
enum class NullStream {
  kLegacy,     // That of the current context: CU_STREAM_LEGACY.
  kPerThread,  // Each thread's own, as in code that was compiled with nvcc's
               // --default-stream per-thread: CU_STREAM_PER_THREAD.
};

// Stands for a stream in Pool::Allocate() and Pool::Free(), for a caller that does
// not know which streams use the block. Allocate() gives memory that the GPU is done
// with, for work on any stream. Free() gives it back after the work on all streams
// that synchronise with the legacy default stream: synchronise one that does not
// (CU_STREAM_NON_BLOCKING) before. Costs more than a stream's own.
inline CUstream AllStreams() {
  return reinterpret_cast<CUstream>(~std::uintptr_t{1});
}

struct PoolOptions {
  // How segments can be shared. SharePolicy::Private() is for pools that never
  // share; Export() then returns FAILED_PRECONDITION. With kLegacyIpc in it see
  // AllocationOptions: such segments stay as long as anybody is subscribed, the
  // pool must outlive all who are, and none lies beside another.
  SharePolicy sharing = SharePolicy::Native();
  // Bytes of the first segment. A further one has a 24th of what the pool
  // has, from 1 GiB on a 16th, at least as much as the first and at most
  // max_segment_size. For a request of first_segment_size and more it has what
  // that lacks, which may be less or more.
  std::uint64_t first_segment_size = std::uint64_t{32} << 20;
  std::uint64_t max_segment_size = std::uint64_t{1} << 30;
  // Bytes of all segments together; 0 is no limit.
  std::uint64_t cap = 0;
  // Who else gets access to every segment.
  std::vector<AccessGrant> also = {};
  // A NUMA node of the host to have the segments on; see AllocationOptions. Where
  // `also` names the CPU each block is in one segment: cuMemset*() takes it whole.
  std::optional<int> host_numa_node = std::nullopt;
  // For every segment; see AllocationOptions.
  Rdma rdma = Rdma::kOff;
  // With kPerThread a null stream is refused as CU_STREAM_PER_THREAD is, and
  // not taken for another stream than the caller means.
  NullStream null_stream = NullStream::kLegacy;
};

struct BlockOptions {
  // Bytes, a power of two. Blocks are multiples of 256 bytes and start at one.
  std::uint64_t alignment = 256;
  SharingDomain domain = SharingDomain::kFirst;
};

// A block that the program has.
struct PoolBlock {
  CUdeviceptr address = 0;
  std::uint64_t size = 0;  // Bytes that were asked for.
};
struct ExportedBlock {
  PoolBlock block;
  PoolTicket ticket;
};

struct SegmentStatistics {
  std::uint64_t size = 0;          // Bytes.
  std::uint64_t taken = 0;         // By live, cached and waiting blocks.
  std::uint64_t largest_free = 0;  // Bytes of it that one block could have.
  SharingDomain domain = SharingDomain::kFirst;
  bool shared = false;       // Some peer has, or had, its handle.
  HandleKindSet kinds = {};  // As which it can be shared.
};

// Bytes unless said otherwise. A snapshot: exact when no other thread uses the
// pool meanwhile.
struct PoolStatistics {
  std::uint64_t reserved = 0;   // In segments.
  std::uint64_t live = 0;       // In blocks that the program has.
  std::uint64_t requested = 0;  // Of these, what was asked for.
  std::uint64_t cached = 0;     // Freed, ready for the same stream and size.
  std::uint64_t pending = 0;    // Freed, for its stream; for others later.
  std::uint64_t held = 0;       // Freed, in use by a peer still.
  // Of these, by peers that have gone and whose end is not proven: Leases()
  // says why.
  std::uint64_t quarantined = 0;
  std::uint64_t free = 0;  // In no block.
  // What is reserved and not asked for, over what is reserved: 0 to 1.
  double waste = 0;
  std::uint64_t allocations = 0;  // Calls that succeeded, ever.
  std::uint64_t frees = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t tickets = 0;  // Blocks that are exported now.
  std::size_t peers = 0;      // Subscribed now.
  std::vector<SegmentStatistics> segments;
  // The last failure that no caller was told of: a stream that could not be
  // asked, a peer that did not read.
  absl::Status last_error;
};

// A domain to be given to Endpoint::Serve(). A value; may outlive its pool, and
// is refused then.
class ServableDomain final : public Servable {
 public:
  absl::StatusOr<std::shared_ptr<PeerService>> MakeService() override;

 private:
  friend class Pool;
  ServableDomain(std::shared_ptr<pool::Core> core, SharingDomain domain)
      : core_(std::move(core)), domain_(domain) {}

  std::shared_ptr<pool::Core> core_;
  SharingDomain domain_;
};

// Thread-safe. An endpoint that serves a pool serves its first domain; see
// InDomain(). All streams used with a pool must belong to one context of its
// device, which is current where a call is given the null stream. Where no context
// is current, a default stream is that of the context of the stream for which the
// pool first grew, or else of the device's primary one. A pool knows a stream by
// its value, so call ReleaseStream() before destroying it.
class Pool final : public Servable {
 public:
  // Allocates nothing yet. INVALID_ARGUMENT for sizes that make no sense;
  // FAILED_PRECONDITION for a device of `also` that cannot reach `device`'s memory;
  // else as Device::Probe for the kinds of `sharing`.
  static absl::StatusOr<std::unique_ptr<Pool>> Create(
      const Device& device, const PoolOptions& options);

  // Gives all segments back, live blocks included, in the order of no stream.
  // Peers keep what they hold. In a forked child it does nothing, and nothing
  // else may be called there. REQUIRES: no other call is running.
  ~Pool() override;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // A block of `size` bytes, for work that is put on `stream` after this call.
  // Its bytes are whatever the last user of the domain left there.
  //   INVALID_ARGUMENT    size 0, an alignment that is no power of two, an
  //                       unknown domain, CU_STREAM_PER_THREAD (its value
  //                       names another stream on each thread) or a null
  //                       stream that is that; so for all calls with a stream
  //   RESOURCE_EXHAUSTED  the cap or the device's memory does not allow it,
  //                       and nothing freed could serve
  // In the capture of `stream` into a graph it works as well: the block is the
  // program's, and so the graph's, until it is freed after the capture. Launch
  // the graph behind what was on `stream` at this call.
  // At the cap or on a full device, and only there, the stream may be made to
  // wait (on the GPU) for other streams' work; and this call may wait for the
  // GPU, for 10 s while something freed waits for it. Other threads' calls do not
  // wait for it.
  absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t size, CUstream stream,
                                       const BlockOptions& options = {});

  // Gives a block back once the work that is on `stream` now is done. Tickets
  // to it are refused from now on; peers that imported it before keep it until
  // they give it back.
  //   INVALID_ARGUMENT     it points into a block, or is in no segment of this pool
  //   FAILED_PRECONDITION  the block is free already, or none ever began there; or
  //                        `stream` is being captured into a graph, each launch of which would
  //                        use the block again: free it when the graph is
  //                        launched no more
  //   else                 as the driver answers cuStreamIsCapturing()
  // After an error nothing has changed.
  // The default stream's work is what was put on it: other streams' work is in
  // its order only where a command on it is between. Who frees what other streams
  // used gives AllStreams().
  absl::Status Free(CUdeviceptr block, CUstream stream);

  // A ticket for `block`: plain bytes that a subscribed peer resolves. The
  // same ticket again until the block is freed. INVALID_ARGUMENT and
  // FAILED_PRECONDITION as in Free(); FAILED_PRECONDITION for a private pool;
  // RESOURCE_EXHAUSTED with 1,048,576 tickets out in the domain.
  absl::StatusOr<PoolTicket> Export(CUdeviceptr block);
  // Many at once, in the order given. All or nothing but for memory: some of
  // those before the one that failed stay exported until they are freed.
  absl::StatusOr<std::vector<PoolTicket>> ExportAll(
      absl::Span<const CUdeviceptr> blocks);

  // The block around `inside`, an address anywhere in it: where a view or an
  // alias of its memory belongs. NOT_FOUND when it is in none that is live.
  absl::StatusOr<PoolBlock> Find(CUdeviceptr inside) const;

  // Who holds which block, freed ones too: one for each holder of a block. A
  // peer that tries a stale ticket may be listed for that moment. Takes a time
  // that grows with the number of blocks.
  std::vector<BlockLease> Leases() const;

  // Asks those that hold `blocks` now to give them back by `until`: see
  // ImportedPool::Watch(). Does not wait, and refuses nothing: who has a ticket
  // can still import it, until the block is freed. INVALID_ARGUMENT and
  // FAILED_PRECONDITION as in Free(); nobody is asked then. A peer that does
  // not read what it is sent is disconnected (statistics().last_error).
  absl::Status Recall(absl::Span<const CUdeviceptr> blocks, absl::Time until);
  // Every block that anybody holds, freed ones too.
  void RecallAll(absl::Time until);

  // Returns once nobody holds any of `blocks`: given back, or the holder is
  // known to have ended. Looks every millisecond. DEADLINE_EXCEEDED names who
  // still holds what: their memory is theirs until they give it back.
  // INVALID_ARGUMENT and FAILED_PRECONDITION as in Free().
  absl::Status WaitUntilReturned(absl::Span<const CUdeviceptr> blocks,
                                 Deadline deadline) const;
  // The same for all blocks of the pool, freed ones too.
  absl::Status WaitUntilAllReturned(Deadline deadline) const;

  // Another domain. Lives as long as the pool.
  SharingDomain NewDomain();

  // For Endpoint::Serve(): each subscriber is given all segments of the domain,
  // those made later too.
  //   FAILED_PRECONDITION  a private pool, or one that has ended
  //   INVALID_ARGUMENT     a domain that the pool has not
  //   else                 as the driver answers the export of the segments
  //                        there are
  absl::StatusOr<std::shared_ptr<PeerService>> MakeService() override {
    return InDomain(SharingDomain::kFirst).MakeService();
  }
  // The same for another domain than the first.
  ServableDomain InDomain(SharingDomain domain) { return {core_, domain}; }

  // Makes segments so that `bytes` can be allocated on `stream` without
  // growing, in blocks that fit the segments. What was freed and may serve the
  // stream counts, and what is idle elsewhere makes room for it, but for what
  // other domains have reserved. Waits for no GPU, but where segments may be
  // cudaMalloc()'s (kLegacyIpc). Until Trim() each domain keeps so much idle
  // memory, but for a request of the pool that would be refused. Errors as
  // Allocate(); what it got until then goes back to the driver.
  absl::Status Reserve(std::uint64_t bytes, CUstream stream,
                       SharingDomain domain = SharingDomain::kFirst);

  // Empties the caches, collects what streams have passed and peers have given
  // back, and gives idle segments back to the driver, but for `keep_bytes`.
  // Peers are told to let go of them. Returns the bytes given back.
  absl::StatusOr<std::uint64_t> Trim(std::uint64_t keep_bytes = 0);

  // Call before a stream is destroyed. Waits (on the host) until the GPU has
  // passed what is on `stream` now, and lets its memory serve any stream: what
  // was freed on it before waits no more. DEADLINE_EXCEEDED: it still does.
  // RESOURCE_EXHAUSTED: the host lacks memory; call it again later.
  // FAILED_PRECONDITION: the stream is being captured into a graph. Call it
  // before a capture, too, if other threads use the pool: see docs/pool.md.
  absl::Status ReleaseStream(CUstream stream, Deadline deadline);

  // Work that is put on `then` after this call comes after what is on `first`
  // now: for a block that was allocated for `first` and is used on `then` first.
  // The GPU waits, and this call does not, but where `then` is being captured into
  // a graph, whose launches are in the order of no other stream, and where it is the
  // default stream of a device whose primary context nobody has. Where both are
  // being captured it does nothing: who launches the graphs has their order.
  //   FAILED_PRECONDITION  `first` alone is being captured: its work is done at
  //                        each launch; or it is a default stream, and one that
  //                        synchronises with that is being captured
  //   DEADLINE_EXCEEDED    this call had to wait, and the GPU has not passed yet
  //   else                 as the driver answers
  absl::Status Order(CUstream first, CUstream then, Deadline deadline);

  // Takes a time that grows with the number of pieces that are free.
  PoolStatistics statistics() const;

  // OK when network cards can be given every segment there is: each was made with
  // CUDA's RDMA flag, as the driver said of it. Else why not: with Rdma::kTry why
  // the first one without it was refused; FAILED_PRECONDITION while there is none,
  // or where PoolOptions::rdma did not ask.
  absl::Status rdma_refusal() const;

  // What is weaker about the segments there are than about memory of
  // cuMemCreate(), for people; empty if nothing is, and before the first one.
  std::string weakness() const;

  // OK when the pool's books agree with each other: for tests. Takes a time
  // that grows with the number of blocks. INTERNAL says what does not.
  absl::Status CheckInvariants() const;

  const Device& device() const;

 private:
  explicit Pool(std::shared_ptr<pool::Core> core);
  std::shared_ptr<pool::Core> core_;
  const platform::MadeHere made_;
};

// The block around `inside` (see Pool::Find()), of whichever pool of this process,
// and its ticket. NOT_FOUND when it is in none; FAILED_PRECONDITION in a forked
// child that made none itself, where its parent had; else as Pool::Export().
absl::StatusOr<ExportedBlock> ExportAround(CUdeviceptr inside);

}  // namespace vmm

#endif  // VMMSHARE_VMM_POOL_POOL_H_
