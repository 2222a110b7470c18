#include "vmm/pool/core.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/check.h"

namespace vmm::pool {
namespace {

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

std::uint64_t RoundUp(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

absl::Status CheckStream(CUstream stream) {
  if (stream == CU_STREAM_PER_THREAD) {
    return absl::InvalidArgumentError(
        "the stream is CU_STREAM_PER_THREAD, which is another stream on each "
        "thread, so that a pool cannot keep order by it; pass a stream of your "
        "own");
  }
  return absl::OkStatus();
}

}  // namespace

Core::Core(const Device& device, const PoolOptions& options)
    : device_(device),
      options_(options),
      next_size_(options.first_segment_size),
      pending_(device.driver()) {
  domains_.push_back(std::make_unique<Domain>());
}

Core::~Core() { Close(); }

absl::StatusOr<CUdeviceptr> Core::Allocate(std::uint64_t size, CUstream stream,
                                           const BlockOptions& options) {
  if (size - 1 >= OffsetHeap::kMaxSize) {  // 0 too.
    return absl::InvalidArgumentError(absl::StrCat(
        "a block of ", size, " bytes was asked for; expected 1 to ",
        OffsetHeap::kMaxSize));
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
  request.stream = stream;
  request.domain = static_cast<std::uint32_t>(options.domain);
  ThreadCache& cache = caches_.Mine();
  Block* block = nullptr;
  if (request.alignment == OffsetHeap::kGranule &&
      request.size <= kLargestCached) {
    const ThreadCache::Lock lock(cache);
    block = cache.blocks.Pop(request.key());
    if (block != nullptr) {
      ++cache.allocations;
      cache.requested += size;
    }
  }
  if (block == nullptr) {
    absl::Status sane = CheckStream(stream);
    if (!sane.ok()) return sane;
    absl::StatusOr<Block*> taken = AllocateSlowly(request);
    if (!taken.ok()) return taken.status();
    block = *taken;
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
  Block* const block = addresses_.Find(address);
  if (block == nullptr) return WhyNotFree(address);
  if (stream == CU_STREAM_PER_THREAD) return CheckStream(stream);
  if (!block->LeaveLive()) return WhyNotFree(address);
  block->freed_on = stream;
  ThreadCache& cache = caches_.Mine();
  if (block->size > kLargestCached ||
      block->slot.load(std::memory_order_relaxed) != Block::kNoSlot) {
    {
      const ThreadCache::Lock lock(cache);
      ++cache.frees;
      cache.requested -= block->requested;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    LetGoOfTickets(block);
    return absl::OkStatus();
  }
  Settle(cache, block);
  return absl::OkStatus();
}

void Core::Settle(ThreadCache& cache, Block* block) {
  const CacheKey key{block->size, block->freed_on, block->domain};
  BlockList surplus;
  {
    const ThreadCache::Lock lock(cache);
    ++cache.frees;
    cache.requested -= block->requested;
    if (!cache.blocks.Push(key, block)) {
      surplus = cache.blocks.TakeBin(key);
      cache.blocks.Push(key, block);
    } else if (cache.blocks.CountOf(key) > CacheLimit(key.size)) {
      surplus = cache.blocks.TakeBin(key);
    } else if (cache.blocks.bytes() > kThreadCacheBytes) {
      surplus = cache.blocks.TakeAll();
    }
  }
  if (surplus.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  PutBackAll(surplus);
}

absl::StatusOr<Block*> Core::AllocateSlowly(const Request& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status known = CheckDomain(SharingDomain{request.domain});
  if (!known.ok()) return known;
  Arena& arena = ArenaOf(request.domain, request.stream);
  if (request.alignment == OffsetHeap::kGranule) {
    if (Block* const block = arena.recent.Pop(request.key())) {
      FillCache(arena, request);
      return block;
    }
  }
  if (Block* const block = TakeFrom(arena, request)) return block;
  MergeFor(arena);
  Collect();
  if (Block* const block = TakeFrom(arena, request)) return block;
  if (ClaimPassed(arena, request)) {
    if (Block* const block = TakeFrom(arena, request)) return block;
  }
  // What threads keep, before the driver is asked for more.
  EmptyCaches();
  Collect();
  if (Block* const block = TakeFrom(arena, request)) return block;
  if (ClaimPassed(arena, request)) {
    if (Block* const block = TakeFrom(arena, request)) return block;
  }
  absl::Status grown = Grow(arena, request);
  if (absl::IsResourceExhausted(grown)) return LastResort(arena, request);
  if (!grown.ok()) return grown;
  Block* const block = TakeFrom(arena, request);
  platform::Check(block != nullptr, "a new segment of a pool has no room");
  return block;
}

void Core::FillCache(Arena& arena, const Request& request) {
  if (request.size > kLargestCached) return;
  // Another thread frees what this one allocates, or it would not be here: the
  // lock is taken once for several blocks.
  const ThreadCache::Lock lock(caches_.Mine());
  BlockCache& mine = caches_.Mine().blocks;
  for (std::uint32_t i = CacheLimit(request.size) / 2;
       i > 0 && mine.bytes() < kThreadCacheBytes / 2; --i) {
    Block* const block = arena.recent.Pop(request.key());
    if (block == nullptr) return;
    if (!mine.Push(request.key(), block)) {
      arena.recent.Push(request.key(), block);
      return;
    }
  }
}

absl::Status Core::WhyNotFree(CUdeviceptr address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string what = absl::StrCat("0x", absl::Hex(address),
                                        " is no block to be freed or shared: ");
  if (addresses_.Find(address) != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "it was freed already"));
  }
  const auto segment = std::find_if(
      segments_.begin(), segments_.end(),
      [address](const auto& one) { return one->Contains(address); });
  if (segment == segments_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "it is not in this pool, whose ", segments_.size(),
                     " segments hold ", Reserved(), " bytes"));
  }
  for (const Block& block : records_) {
    if (block.state.load(std::memory_order_acquire) == BlockState::kLive &&
        block.address < address && address - block.address < block.size) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "it points ", address - block.address,
                       " bytes into the block at 0x", absl::Hex(block.address),
                       "; pass the address that Allocate() answered"));
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what,
      "it lies in a segment of this pool, where no block is live now; it "
      "was freed already, or never allocated"));
}

Arena& Core::ArenaOf(std::uint32_t domain, CUstream stream) {
  for (const std::unique_ptr<Arena>& arena : arenas_) {
    if (arena->stream == stream && arena->domain == domain) return *arena;
  }
  arenas_.push_back(std::make_unique<Arena>());
  arenas_.back()->domain = domain;
  arenas_.back()->stream = stream;
  return *arenas_.back();
}

Block* Core::TakeFrom(Arena& arena, const Request& request) {
  for (Segment* segment : arena.segments) {
    if (Block* const block = Cut(*segment, request)) return block;
  }
  return nullptr;
}

Block* Core::Cut(Segment& segment, const Request& request) {
  if (segment.heap.free_bytes() < request.size ||
      segment.alignment() < request.alignment) {
    return nullptr;
  }
  const std::optional<OffsetHeap::Block> cut =
      segment.heap.Allocate(request.size, request.alignment);
  if (!cut.has_value()) return nullptr;
  if (unused_.empty()) unused_.Push(&records_.emplace_back());
  Block* const block = unused_.Pop();
  block->domain = segment.domain;
  block->address = segment.base() + cut->offset;
  block->size = cut->size;
  block->segment = &segment;
  block->node = cut->node;
  block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
  // Not live before Allocate() says so; free, for everybody who finds it.
  block->state.store(BlockState::kFree, std::memory_order_release);
  addresses_.Insert(block);
  return block;
}

SharingDomain Core::NewDomain() {
  std::lock_guard<std::mutex> lock(mutex_);
  domains_.push_back(std::make_unique<Domain>());
  return SharingDomain{static_cast<std::uint32_t>(domains_.size() - 1)};
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
