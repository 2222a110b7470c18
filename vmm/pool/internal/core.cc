#include "vmm/pool/internal/core.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/stream_context.h"

namespace vmm::pool {
namespace {

// A block's segment is a multiple of 2 MiB, and no larger than a heap can be.
constexpr std::uint64_t kLargestBlock =
    OffsetHeap::kMaxSize / (std::uint64_t{2} << 20) * (std::uint64_t{2} << 20);
// Blocks up to this many bytes are kept by the thread that frees them. What
// threads keep is not lost to others: the caches are emptied before the pool
// grows.
constexpr std::uint64_t kLargestCached = std::uint64_t{64} << 20;
// Bytes that one thread keeps.
constexpr std::uint64_t kThreadCacheBytes = std::uint64_t{1} << 30;

// Blocks of one size that one thread keeps.
std::uint32_t CacheLimit(std::uint64_t size) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>((std::uint64_t{64} << 20) / size, 16, 64));
}

}  // namespace

absl::Status Core::CheckStream(CUstream stream) const {
  const bool null_is =
      stream == nullptr && options_.null_stream == NullStream::kPerThread;
  if (!null_is) return CheckIsOneStream(stream);
  return absl::InvalidArgumentError(
      "the stream is null, in a pool whose PoolOptions::null_stream says that "
      "this is CU_STREAM_PER_THREAD, which is another stream on each thread; "
      "pass a stream of your own, or CU_STREAM_LEGACY");
}

Core::Core(const Device& device, const PoolOptions& options, std::uint64_t unit)
    : device_(device), options_(options), unit_(unit) {
  NewDomain();
}

Core::~Core() { Close(); }

void Core::Close() {
  const platform::MutexLock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  // What others of the process have in their hands must not go under them.
  while (visitors_ != 0) changed_.Wait(mutex_);
  const RelaxedCapture relaxed(device_.driver());
  for (const std::unique_ptr<Domain>& domain : domains_) domain->Close();
  held_ = {};
  late_ = {};
  for (const std::unique_ptr<Heap>& heap : heaps_) heap->Clear();
}

absl::StatusOr<CUdeviceptr> Core::Allocate(std::uint64_t size, CUstream stream,
                                           const BlockOptions& options) {
  if (size - 1 >= kLargestBlock) {  // 0 too.
    return absl::InvalidArgumentError(
        absl::StrCat("a block of ", size,
                     " bytes was asked for; expected 1 to ", kLargestBlock));
  }
  if (!std::has_single_bit(options.alignment)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an alignment of ", options.alignment,
                     " bytes was asked for; expected a power of two"));
  }
  Request request;
  request.size = RoundUp(size, OffsetHeap::kGranule);
  request.alignment = std::max(options.alignment, OffsetHeap::kGranule);
  request.requested = size;
  // Nothing is ever freed on that: whoever says of no stream gets what the GPU is
  // done with, and so may use it on any.
  request.stream = stream == AllStreams() ? PassedStream() : stream;
  request.domain = static_cast<std::uint32_t>(options.domain);
  ThreadCache& cache = caches_.Mine();
  Block* block = nullptr;
  if (request.alignment == OffsetHeap::kGranule &&
      request.size <= kLargestCached) {
    const ThreadCache::Lock lock(cache);
    block = cache.blocks.Pop(KeyOf(request));
    if (block != nullptr) {
      ++cache.allocations;
      cache.requested += size;
    }
  }
  if (block == nullptr) {
    RETURN_IF_ERROR(CheckStream(request.stream));
    ASSIGN_OR_RETURN(block, AllocateSlowly(request));
    const ThreadCache::Lock lock(cache);
    ++cache.allocations;
    cache.requested += size;
  }
  block->requested = size;
  const CUdeviceptr address = block->address;
  block->state.store(BlockState::kLive, std::memory_order_release);
  return address;
}

absl::Status Core::Free(CUdeviceptr address, CUstream stream) {
  Block* block = book_.Find(address);
  if (block == nullptr) {
    // It may have moved past: see AddressTable::Find().
    platform::MutexLock lock(mutex_);
    block = book_.Find(address);
  }
  if (block == nullptr) return WhyNotFree(address);
  RETURN_IF_ERROR(CheckFreeOn(stream));
  // Whoever frees may do so because there is no memory.
  ThreadCache& cache = caches_.MineOrCommon();
  if (!block->LeaveLive()) return WhyNotFree(address);
  block->freed_on = stream;
  if (block->size > kLargestCached ||
      block->slot.load(std::memory_order_relaxed) != Block::kNoSlot) {
    {
      const ThreadCache::Lock lock(cache);
      ++cache.frees;
      cache.requested -= block->requested;
    }
    platform::MutexLock lock(mutex_);
    LetGoOfTickets(block);
    return absl::OkStatus();
  }
  Settle(cache, block);
  return absl::OkStatus();
}

absl::Status Core::CheckFreeOn(CUstream stream) const {
  if (stream == AllStreams()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckStream(stream));
  // The legacy stream cannot be captured.
  if (IsDefault(stream)) return absl::OkStatus();
  return CheckNotCaptured(
      device_.driver(), stream, "free a block there",
      "each launch of the graph uses the block again: free it when the graph "
      "is launched no more, or on the stream on which it was launched last");
}

void Core::Settle(ThreadCache& cache, Block* block) {
  const CacheKey key = KeyOf(*block);
  bool pushed = false;
  {
    const ThreadCache::Lock lock(cache);
    ++cache.frees;
    cache.requested -= block->requested;
    pushed = cache.blocks.Push(key, block);
    if (pushed && cache.blocks.CountOf(key) <= CacheLimit(key.size) &&
        cache.blocks.bytes() <= kThreadCacheBytes) {
      return;
    }
  }
  // Who looks for what was freed has this lock: blocks that are on their way
  // from the cache would be nowhere.
  const platform::MutexLock lock(mutex_);
  BlockList surplus;
  {
    const ThreadCache::Lock cache_lock(cache);
    if (!pushed) {
      surplus = cache.blocks.TakeBin(key);
      cache.blocks.Push(key, block);
    } else if (cache.blocks.CountOf(key) > CacheLimit(key.size)) {
      surplus = cache.blocks.TakeBin(key);
    } else if (cache.blocks.bytes() > kThreadCacheBytes) {
      cache.blocks.TakeAll(surplus);
    }
  }
  PutBackAll(surplus);
}

absl::StatusOr<Block*> Core::AllocateSlowly(const Request& request) {
  const platform::MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckDomain(SharingDomain{request.domain}));
  if (request.alignment == OffsetHeap::kGranule) {
    if (Block* const block = recent_.Pop(KeyOf(request))) {
      FillCache(request);
      return block;
    }
  }
  // It is cut where what was freed side by side is one piece again: cut from
  // elsewhere it would leave holes.
  if (request.size >= kLarge) EmptyOfLarge();
  if (Block* const block = HeapOf(request).Take(request)) return block;
  if (Block* const block = Reuse(request)) return block;
  return Grow(request);
}

void Core::FillCache(const Request& request) {
  if (request.size > kLargestCached) return;
  // Another thread frees what this one allocates, or it would not be here: the
  // lock is taken once for several blocks.
  const CacheKey key = KeyOf(request);
  const ThreadCache::Lock lock(caches_.Mine());
  BlockCache& mine = caches_.Mine().blocks;
  for (std::uint32_t i = CacheLimit(request.size) / 2;
       i > 0 && mine.bytes() < kThreadCacheBytes / 2; --i) {
    Block* const block = recent_.Pop(key);
    if (block == nullptr) return;
    if (!mine.Push(key, block)) {
      recent_.Push(key, block);
      return;
    }
  }
}

SharingDomain Core::NewDomain() {
  platform::MutexLock lock(mutex_);
  const auto number = static_cast<std::uint32_t>(domains_.size());
  domains_.push_back(std::make_unique<Domain>());
  keep_idle_.push_back(0);
  heaps_.push_back(std::make_unique<Heap>(number, book_));
  return SharingDomain{number};
}

absl::Status Core::CheckDomain(SharingDomain domain) const {
  if (static_cast<std::uint32_t>(domain) < domains_.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the pool has no sharing domain ", static_cast<std::uint32_t>(domain),
      "; it has ", domains_.size(), ": see Pool::NewDomain()"));
}

}  // namespace vmm::pool
