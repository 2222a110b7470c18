// Where a pool's bytes come from and go to.
#include <algorithm>
#include <iterator>
#include <utility>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/physical_memory.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// Every part starts at a multiple of this.
constexpr std::size_t kUnit = 512;
// What a pool takes at once if it can.
constexpr std::size_t kSegment = std::size_t{32} << 20;

// Addresses that pools had, to tell a block freed twice from a stray pointer.
// Forgets the lowest when it is full.
std::map<CUdeviceptr, std::size_t>& Retired() {
  static auto& retired = *new std::map<CUdeviceptr, std::size_t>;
  return retired;
}
constexpr std::size_t kMostRetired = 4096;

// Joins the free ranges that belong together by now.
void Settle(Segment& segment) {
  for (auto& [offset, range] : segment.free) {
    if (range.stream == nullptr || !AllReached(range.after)) continue;
    range.stream = nullptr;
    range.after.clear();
  }
  if (segment.free.empty()) return;
  auto at = segment.free.begin();
  for (auto next = std::next(at); next != segment.free.end();
       next = std::next(at)) {
    if (at->first + at->second.size != next->first ||
        at->second.stream != next->second.stream) {
      at = next;
      continue;
    }
    at->second.size += next->second.size;
    std::move(next->second.after.begin(), next->second.after.end(),
              std::back_inserter(at->second.after));
    segment.free.erase(next);
  }
}

bool IsUnused(const Segment& segment) {
  if (segment.free.size() != 1) return false;
  const Segment::Range& range = segment.free.begin()->second;
  return range.size == segment.memory->size && range.stream == nullptr;
}

// Gives the unused segments back to the system that `may_go` lets go.
template <typename MayGo>
void GiveBack(State& state, MayGo may_go) {
  std::erase_if(state.segments, [&](const auto& entry) {
    Segment& segment = *entry.second;
    if (!may_go(segment)) return false;
    Settle(segment);
    if (!IsUnused(segment)) return false;
    segment.pool->reserved -= segment.memory->size;
    if (Retired().size() >= kMostRetired) Retired().erase(Retired().begin());
    Retired()[segment.start] = segment.memory->size;
    return true;
  });
}

struct Place {
  Segment* segment = nullptr;
  std::size_t offset = 0;
};

// The smallest free range of `size` bytes that `allowed` lets through.
template <typename Allowed>
Place BestFit(State& state, const Pool& pool, std::size_t size,
              Allowed allowed) {
  Place best;
  std::size_t best_size = SIZE_MAX;
  for (const auto& [start, segment] : state.segments) {
    if (segment->pool.get() != &pool) continue;
    Settle(*segment);
    for (const auto& [offset, range] : segment->free) {
      if (range.size >= size && range.size < best_size && allowed(range)) {
        best = {segment.get(), offset};
        best_size = range.size;
      }
    }
  }
  return best;
}

// Takes more memory for the pool: `size` bytes, or more to have some left.
CUresult Grow(State& state, const std::shared_ptr<Pool>& pool, std::size_t size,
              Place* place) {
  const std::size_t least = RoundUp(size, kGranularity);
  for (const std::size_t bytes : {std::max(least, kSegment), least}) {
    if (bytes > pool->max_size || pool->reserved > pool->max_size - bytes) {
      continue;
    }
    std::shared_ptr<Memory> memory;
    const CUresult result =
        CreateOnDevice(state, pool->device, MemoryLabel::Kind::kPooled, false,
                       0, bytes, &memory);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) continue;
    if (result != CUDA_SUCCESS) return result;
    const std::shared_ptr<Segment> segment =
        AddSegment(state, pool, std::move(memory));
    if (segment == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *place = {segment.get(), 0};
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Finds room for `size` bytes.
CUresult FindPlace(State& state, const std::shared_ptr<Pool>& pool,
                   std::size_t size, const std::shared_ptr<Stream>& stream,
                   Place* place) {
  *place = BestFit(state, *pool, size, [&](const Segment::Range& range) {
    return range.stream == nullptr || range.stream == stream;
  });
  if (place->segment != nullptr) return CUDA_SUCCESS;
  CUresult result = Grow(state, pool, size, place);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  // Unused segments are too small, or they would have been taken.
  TrimPool(state, *pool, 0);
  result = Grow(state, pool, size, place);
  if (result != CUDA_ERROR_OUT_OF_MEMORY ||
      !pool->reuse_internal_dependencies) {
    return result;
  }
  // What other streams still use will do, if this stream waits for them.
  *place =
      BestFit(state, *pool, size, [](const Segment::Range&) { return true; });
  if (place->segment == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  return SubmitWait(state, stream, place->segment->free[place->offset].after);
}

}  // namespace

std::shared_ptr<Segment> AddSegment(State& state,
                                    const std::shared_ptr<Pool>& pool,
                                    std::shared_ptr<Memory> memory) {
  const CUdeviceptr start = ReserveAddresses(memory->size, kGranularity, 0);
  if (start == 0) return nullptr;
  auto segment = std::make_shared<Segment>();
  segment->pool = pool;
  segment->start = start;
  segment->free[0].size = memory->size;
  pool->reserved += memory->size;
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  segment->memory = std::move(memory);
  state.segments[start] = segment;
  return segment;
}

bool IsFree(Segment& segment, std::size_t offset, std::size_t size) {
  Settle(segment);
  if (offset % kUnit != 0) return false;
  const auto next = segment.free.upper_bound(offset);
  if (next == segment.free.begin()) return false;
  const auto& [start, range] = *std::prev(next);
  return range.stream == nullptr && offset - start < range.size &&
         size <= range.size - (offset - start);
}

CUdeviceptr MakePooledBlock(State& state, Segment& segment, std::size_t offset,
                            std::size_t size) {
  const std::size_t taken = RoundUp(size, kUnit);
  const auto at = std::prev(segment.free.upper_bound(offset));
  const Segment::Range range = at->second;
  const std::size_t before = offset - at->first;
  if (before == 0) {
    segment.free.erase(at);
  } else {
    at->second.size = before;
  }
  if (const std::size_t rest = range.size - before - taken; rest != 0) {
    segment.free[offset + taken] = {rest, range.stream, range.after};
  }
  Pool& pool = *segment.pool;
  pool.used += taken;
  pool.used_high = std::max(pool.used_high, pool.used);
  Block block;
  block.size = size;
  block.reserved = taken;
  block.memory = segment.memory;
  block.offset = offset;
  block.pool = segment.pool;
  block.buffer_id = state.next_buffer_id++;
  const CUdeviceptr address = segment.start + offset;
  state.blocks[address] = std::move(block);
  return address;
}

CUresult TakeFromPool(State& state, const std::shared_ptr<Pool>& pool,
                      std::size_t size, const std::shared_ptr<Stream>& stream,
                      CUdeviceptr* address) {
  if (size > state.config.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  Place place;
  RETURN_IF_FAILED(
      FindPlace(state, pool, RoundUp(size, kUnit), stream, &place));
  *address = MakePooledBlock(state, *place.segment, place.offset, size);
  return CUDA_SUCCESS;
}

void FreePooled(State& state, std::map<CUdeviceptr, Block>::iterator block,
                std::shared_ptr<Stream> stream,
                std::vector<Stream::Point> after) {
  const std::shared_ptr<Segment> segment = SegmentAt(state, block->first);
  Pool& pool = *segment->pool;
  pool.used -= block->second.reserved;
  if (after.empty()) stream = nullptr;
  segment->free[block->second.offset] = {block->second.reserved,
                                         std::move(stream), std::move(after)};
  state.blocks.erase(block);
  // Nobody will allocate from these.
  if (pool.destroyed || pool.imported) TrimPool(state, pool, 0);
}

void TrimPool(State& state, Pool& pool, std::size_t keep) {
  GiveBack(state, [&](const Segment& segment) {
    return segment.pool.get() == &pool &&
           pool.reserved >= segment.memory->size + keep;
  });
}

void ReleaseAtSynchronize(State& state) {
  GiveBack(state, [](const Segment& segment) {
    const Pool& pool = *segment.pool;
    // An imported pool keeps nothing: the memory is another process's.
    return pool.destroyed || pool.imported ||
           pool.reserved > pool.release_threshold;
  });
}

bool WasPooled(State& state, CUdeviceptr address) {
  if (SegmentAt(state, address) != nullptr) return true;
  if (ReservationAt(state, address) != state.reservations.end()) {
    return false;  // The addresses are somebody else's by now.
  }
  const auto next = Retired().upper_bound(address);
  return next != Retired().begin() &&
         address - std::prev(next)->first < std::prev(next)->second;
}

}  // namespace vmm::hostdriver
