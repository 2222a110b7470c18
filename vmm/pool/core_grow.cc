// Where a pool gets memory when its heaps have none.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/annotate.h"
#include "vmm/pool/core.h"

namespace vmm::pool {
namespace {

// Natural alignment of what the driver maps; more has to be asked for.
constexpr std::uint64_t kSegmentGranule = std::uint64_t{2} << 20;
// How long zeroing memory for another domain may take before it is given up.
constexpr absl::Duration kZeroTimeout = absl::Seconds(30);

std::uint64_t RoundUp(std::uint64_t size) {
  return (size + kSegmentGranule - 1) / kSegmentGranule * kSegmentGranule;
}

}  // namespace

std::uint64_t Core::Reserved() const {
  std::uint64_t bytes = 0;
  for (const std::unique_ptr<Segment>& segment : segments_) {
    bytes += segment->size();
  }
  return bytes;
}

absl::Status Core::Grow(Arena& arena, const Request& request) {
  const std::uint64_t needed = RoundUp(request.size);
  const bool of_its_own = request.size >= options_.max_segment_size / 2 ||
                          request.alignment > kSegmentGranule;
  std::uint64_t size =
      of_its_own ? needed : std::max(next_size_, RoundUp(2 * needed));
  for (;;) {
    absl::Status added =
        AddSegment(arena, size,
                   request.alignment > kSegmentGranule ? request.alignment : 0);
    if (added.ok()) {
      if (!of_its_own) {
        next_size_ = std::min(2 * size, options_.max_segment_size);
      }
      return added;
    }
    // Half as much may fit.
    if (!absl::IsResourceExhausted(added) || size == needed) return added;
    size = std::max(needed, RoundUp(size / 2));
  }
}

absl::Status Core::AddSegment(Arena& arena, std::uint64_t size,
                              std::uint64_t alignment) {
  if (closed_) return absl::FailedPreconditionError("the pool is closed");
  const std::uint64_t reserved = Reserved();
  if (options_.cap != 0 && reserved + size > options_.cap) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a segment of ", size, " bytes beside ", reserved,
        " would exceed the pool's cap of ", options_.cap, " bytes"));
  }
  AllocationOptions options;
  options.size = size;
  options.sharing = options_.sharing;
  options.alignment = alignment;
  options.also = options_.also;
  options.host_numa_node = options_.host_numa_node;
  absl::StatusOr<Allocation> memory = Allocation::Create(device_, options);
  if (!memory.ok()) return memory.status();
  Domain& domain = *domains_[arena.domain];
  auto segment =
      std::make_unique<Segment>(domain.NextNumber(), *std::move(memory));
  segment->domain = arena.domain;
  absl::Status told = domain.Tell(*segment, &last_error_);
  if (!told.ok()) return told;
  segment->arena = &arena;
  arena.segments.push_back(segment.get());
  segments_.push_back(std::move(segment));
  return absl::OkStatus();
}

void Core::Claim(Arena& arena, Segment& segment) {
  if (segment.arena != nullptr) std::erase(segment.arena->segments, &segment);
  segment.arena = &arena;
  arena.segments.push_back(&segment);
}

bool Core::HasPassedAll(CUstream stream) {
  const CUresult r = device_.driver()->cuStreamQuery(stream);
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY) {
    last_error_ = device_.driver().Error(
        r, "cuStreamQuery() of a stream that a pool's memory is used on");
  }
  return r == CUDA_SUCCESS;
}

bool Core::ClaimPassed(Arena& arena, const Request& request) {
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (segment->domain != arena.domain || segment->arena == &arena ||
        segment->heap.largest_free() < request.size) {
      continue;
    }
    if (segment->arena != nullptr) {
      // Its stream may yet have work on what was freed.
      if (!segment->heap.empty()) continue;
      if (!HasPassedAll(segment->arena->stream)) continue;
    }
    Claim(arena, *segment);
    return true;
  }
  return false;
}

absl::StatusOr<bool> Core::ClaimByWaiting(Arena& arena,
                                          const Request& request) {
  const platform::Driver& driver = device_.driver();
  for (const std::unique_ptr<Segment>& segment : segments_) {
    const bool same_domain = segment->domain == arena.domain;
    if (segment->arena == &arena || !segment->heap.empty() ||
        segment->size() < request.size ||
        segment->alignment() < request.alignment ||
        (!same_domain && segment->exposed)) {
      continue;
    }
    if (segment->arena != nullptr && segment->arena->stream != arena.stream) {
      absl::StatusOr<OwnedEvent> point =
          RecordEvent(driver, segment->arena->stream);
      if (!point.ok()) return point.status();
      if (CUresult r =
              driver->cuStreamWaitEvent(arena.stream, point->get().event, 0);
          r != CUDA_SUCCESS) {
        return driver.Error(r, "cuStreamWaitEvent()");
      }
    }
    if (!same_domain) {
      // From here on this stream has work on it, whatever else fails.
      Claim(ArenaOf(segment->domain, arena.stream), *segment);
      absl::Status zeroed = ZeroForDomain(arena, *segment);
      if (!zeroed.ok()) return zeroed;
    }
    Claim(arena, *segment);
    return true;
  }
  return false;
}

absl::Status Core::ZeroForDomain(Arena& arena, Segment& segment) {
  const platform::Driver& driver = device_.driver();
  if (CUresult r = driver->cuMemsetD8Async(segment.base(), 0, segment.size(),
                                           arena.stream);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuMemsetD8Async(size=", segment.size(),
                                     ") of memory for another sharing domain"));
  }
  absl::StatusOr<OwnedEvent> zeroed = RecordEvent(driver, arena.stream);
  // The peers of the domain read when they like, whatever the stream does.
  absl::Status passed = zeroed.ok()
                            ? AwaitPassing(*zeroed, absl::Now() + kZeroTimeout)
                            : zeroed.status();
  if (!passed.ok()) {
    // The program knows nothing of this work, and may end the pool.
    if (!absl::IsDeadlineExceeded(passed)) {
      platform::ReportReleaseFailure(
          driver.Error(driver->cuStreamSynchronize(arena.stream),
                       "cuStreamSynchronize() of memory that is zeroed"));
    }
    return passed;
  }
  Domain& domain = *domains_[arena.domain];
  const std::uint32_t old = std::exchange(segment.number, domain.NextNumber());
  absl::Status told = domain.Tell(segment, &last_error_);
  if (!told.ok()) {
    segment.number = old;
    return told;
  }
  // No peer has it, but those that join the old domain would be given it.
  domains_[segment.domain]->Forget(old, &last_error_);
  segment.domain = arena.domain;
  return absl::OkStatus();
}

absl::StatusOr<Block*> Core::LastResort(Arena& arena, const Request& request) {
  absl::StatusOr<bool> claimed = ClaimByWaiting(arena, request);
  if (!claimed.ok()) return claimed.status();
  if (!*claimed) {
    ReleaseIdle(0);
    absl::Status grown = Grow(arena, request);
    if (!grown.ok()) return CannotGrow(request, grown);
  }
  Block* const block = TakeFrom(arena, request);
  if (block != nullptr) return block;
  return CannotGrow(request, absl::ResourceExhaustedError("no room"));
}

absl::Status Core::CannotGrow(const Request& request, const absl::Status& why) {
  if (!absl::IsResourceExhausted(why)) return why;
  std::uint64_t free = 0;
  for (const std::unique_ptr<Segment>& segment : segments_) {
    free += segment->heap.free_bytes();
  }
  std::uint64_t held = 0;
  for (const Block* block : held_) held += block->size;
  return platform::Annotate(
      why,
      absl::StrCat("the pool has no room for ", request.requested,
                   " bytes aligned to ", request.alignment),
      absl::StrCat("Of ", Reserved(), " bytes in ", segments_.size(),
                   " segments ", free,
                   " are free in pieces or on other "
                   "streams, ",
                   pending_.bytes(), " wait for a stream and ", held,
                   " for peers to give them back"));
}

std::uint64_t Core::ReleaseIdle(std::uint64_t keep_bytes) {
  std::uint64_t released = 0;
  std::uint64_t kept = 0;
  std::erase_if(segments_, [&](const std::unique_ptr<Segment>& segment) {
    if (!segment->heap.empty()) return false;
    if (kept + segment->size() <= keep_bytes) {
      kept += segment->size();
      return false;
    }
    // Unmapping is not ordered after work on a stream.
    if (segment->arena != nullptr && !HasPassedAll(segment->arena->stream)) {
      return false;
    }
    if (segment->arena != nullptr) {
      std::erase(segment->arena->segments, segment.get());
    }
    domains_[segment->domain]->Forget(segment->number, &last_error_);
    released += segment->size();
    return true;
  });
  return released;
}

absl::Status Core::Reserve(std::uint64_t bytes, CUstream stream,
                           SharingDomain domain) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status known = CheckDomain(domain);
  if (!known.ok()) return known;
  Arena& arena = ArenaOf(static_cast<std::uint32_t>(domain), stream);
  for (;;) {
    std::uint64_t free = 0;
    for (const Segment* segment : arena.segments) {
      free += segment->heap.free_bytes();
    }
    if (free >= bytes) return absl::OkStatus();
    const std::uint64_t size = std::min(
        std::max(next_size_, RoundUp(bytes - free)), options_.max_segment_size);
    absl::Status added = AddSegment(arena, size, 0);
    if (!added.ok()) {
      return platform::Annotate(
          added, absl::StrCat("cannot reserve ", bytes, " bytes, of which ",
                              free, " are free"));
    }
    next_size_ = std::min(2 * size, options_.max_segment_size);
  }
}

absl::StatusOr<std::uint64_t> Core::Trim(std::uint64_t keep_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  EmptyCaches();
  Collect();
  return ReleaseIdle(keep_bytes);
}

absl::Status Core::ReleaseStream(CUstream stream, absl::Time deadline) {
  {
    // Points for what was freed, before the one that is waited for.
    std::lock_guard<std::mutex> lock(mutex_);
    EmptyCaches();
    Collect();
  }
  absl::StatusOr<OwnedEvent> point = RecordEvent(device_.driver(), stream);
  if (!point.ok()) return point.status();
  absl::Status passed = AwaitPassing(*point, deadline);
  if (!passed.ok()) return passed;
  std::lock_guard<std::mutex> lock(mutex_);
  EmptyCaches();
  for (Block* block : held_) {
    if (block->freed_on == stream) block->freed_on = PassedStream();
  }
  Collect();
  std::erase_if(arenas_, [&](const std::unique_ptr<Arena>& arena) {
    if (arena->stream != stream) return false;
    for (Segment* segment : arena->segments) segment->arena = nullptr;
    return true;
  });
  return absl::OkStatus();
}

}  // namespace vmm::pool
