// Where a pool gets memory from the driver, and gives it back.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {
namespace {

// Natural alignment of what the driver maps; more has to be asked for.
constexpr std::uint64_t kSegmentGranule = std::uint64_t{2} << 20;
// A segment grows the pool by this part of what it has, so that no more than
// that is reserved for nothing.
constexpr std::uint64_t kGrowthPart = 16;
// A large request's segment serves others down to this part of it.
constexpr std::uint64_t kSmallestPart = 8;

std::uint64_t RoundUp(std::uint64_t size) {
  return (size + kSegmentGranule - 1) / kSegmentGranule * kSegmentGranule;
}

}  // namespace

std::uint64_t Core::Step() const {
  return std::clamp(RoundUp(reserved_ / kGrowthPart),
                    options_.first_segment_size, options_.max_segment_size);
}

absl::StatusOr<Block*> Core::Grow(const Request& request) {
  while (growing_) {
    changed_.Wait(mutex_);
    // What another thread got has room for this one, too, as a rule.
    if (Block* const block = HeapOf(request).Take(request)) return block;
  }
  growing_ = true;
  absl::Status grown = GrowInTurn(request);
  growing_ = false;
  changed_.NotifyAll();
  if (absl::IsResourceExhausted(grown)) return LastResort(request, grown);
  if (!grown.ok()) return grown;
  Block* const block = HeapOf(request).Take(request);
  platform::Check(block != nullptr, "a new segment of a pool has no room");
  return block;
}

absl::Status Core::GrowInTurn(const Request& request) {
  if (context_ == nullptr) {
    const platform::Driver& driver = device_.driver();
    if (CUresult r = driver->cuCtxGetCurrent(&context_); r != CUDA_SUCCESS) {
      return driver.Error(r, "cuCtxGetCurrent()");
    }
  }
  SegmentPlan plan;
  const std::uint64_t needed = RoundUp(request.size);
  if (request.alignment > kSegmentGranule) plan.alignment = request.alignment;
  if (request.size >= options_.first_segment_size) {
    plan.size = needed;
    plan.smallest = request.size / kSmallestPart;
  } else {
    plan.size =
        std::max(needed, request.alignment > Step() ? needed : RoundUp(Step()));
  }
  // Nothing that is idle could serve: it is of the wrong sizes.
  ReleaseIdle(std::max({Step(), reserved_ / kSmallestPart, keep_idle_}));
  for (;;) {
    absl::Status added = AddSegment(request.domain, plan);
    // Half as much may fit.
    if (!absl::IsResourceExhausted(added) || plan.size <= needed) return added;
    plan.size = std::max(needed, RoundUp(plan.size / 2));
  }
}

absl::Status Core::AddSegment(std::uint32_t number, const SegmentPlan& plan) {
  if (closed_) return absl::FailedPreconditionError("the pool is closed");
  if (options_.cap != 0 && reserved_ + plan.size > options_.cap) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a segment of ", plan.size, " bytes beside ", reserved_,
        " would exceed the pool's cap of ", options_.cap, " bytes"));
  }
  AllocationOptions options;
  options.size = plan.size;
  options.sharing = options_.sharing;
  options.alignment = plan.alignment;
  options.also = options_.also;
  options.host_numa_node = options_.host_numa_node;
  options.rdma = options_.rdma;
  Domain& domain = *domains_[number];
  std::unique_ptr<Segment> segment;
  std::shared_ptr<SharedSegment> shared;
  reserved_ += plan.size;
  absl::Status made =
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    {
      const Unlocked unlocked(*this);
      absl::StatusOr<Allocation> memory = Allocation::Create(device_, options);
      if (!memory.ok()) return memory.status();
      segment = std::make_unique<Segment>(0, *std::move(memory));
    }
    // It may have come to be served meanwhile.
    while (domain.is_served() && shared == nullptr) {
      const Unlocked unlocked(*this);
      ASSIGN_OR_RETURN(shared, Domain::Share(*segment));
    }
    return absl::OkStatus();
  }();
  if (!made.ok()) {
    {
      const Unlocked unlocked(*this);
      segment.reset();
    }
    reserved_ -= plan.size;
    return made;
  }
  segment->number = domain.NextNumber();
  segment->smallest = plan.smallest;
  domain.Tell(*segment, std::move(shared), &last_error_);
  heaps_[number]->Add(std::move(segment));
  return absl::OkStatus();
}

bool Core::MustOutlivePeers(const Segment& segment) const {
  return segment.allocation.has_value() &&
         segment.allocation->disclosed().size != 0 &&
         domains_[segment.domain]->has_peers();
}

std::uint64_t Core::ReleaseIdle(std::uint64_t keep_bytes) {
  std::vector<std::pair<Heap*, Segment*>> idle;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    for (const std::unique_ptr<Segment>& segment : heap->segments()) {
      if (segment->idle() && !MustOutlivePeers(*segment)) {
        idle.emplace_back(heap.get(), segment.get());
      }
    }
  }
  // The smaller ones serve more requests, and each takes as long to make.
  std::stable_sort(idle.begin(), idle.end(), [](const auto& a, const auto& b) {
    return a.second->size() < b.second->size();
  });
  std::uint64_t kept = 0;
  std::uint64_t released = 0;
  std::vector<std::unique_ptr<Segment>> gone;
  for (const auto& [heap, segment] : idle) {
    if (kept + segment->size() <= keep_bytes) {
      kept += segment->size();
      continue;
    }
    domains_[segment->domain]->Forget(segment->number, &last_error_);
    released += segment->size();
    gone.push_back(heap->Remove(*segment));
  }
  if (gone.empty()) return 0;
  {
    const Unlocked unlocked(*this);
    gone.clear();
  }
  reserved_ -= released;
  return released;
}

void Core::GiveUpIdle() {
  const platform::MutexLock lock(mutex_);
  if (closed_) return;
  EmptyCaches();
  AskAll().IgnoreError();  // Told in last_error_.
  ReleaseIdle(keep_idle_);
}

absl::Status Core::CannotGrow(const Request& request, const absl::Status& why) {
  if (!absl::IsResourceExhausted(why)) return why;
  std::uint64_t free = 0;
  std::uint64_t waiting = 0;
  std::size_t segments = 0;
  for (const std::unique_ptr<Heap>& heap : heaps_) {
    segments += heap->segments().size();
    waiting += heap->bytes_waiting();
    for (const auto& segment : heap->segments()) {
      free += segment->heap.free_bytes();
    }
  }
  std::uint64_t held = 0;
  for (const Block* block : held_) held += block->size;
  return platform::Annotate(
      why,
      absl::StrCat("the pool has no room for ", request.requested,
                   " bytes aligned to ", request.alignment),
      absl::StrCat("Of ", reserved_, " bytes in ", segments, " segments ", free,
                   " are free in pieces, ", waiting, " wait for a stream and ",
                   held, " for peers to give them back"));
}

absl::Status Core::Reserve(std::uint64_t bytes, CUstream stream,
                           SharingDomain domain) {
  RETURN_IF_ERROR(CheckStream(stream));
  const platform::MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckDomain(domain));
  const auto number = static_cast<std::uint32_t>(domain);
  Heap& heap = *heaps_[number];
  while (growing_) changed_.Wait(mutex_);
  growing_ = true;
  absl::Status reserved =
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
    for (;;) {
      std::uint64_t free = 0;
      for (const std::unique_ptr<Segment>& segment : heap.segments()) {
        if (segment->smallest == 0) free += segment->heap.free_bytes();
      }
      if (const Backlog* own = heap.Find(stream)) free += own->bytes();
      if (free >= bytes) return absl::OkStatus();
      const std::uint64_t size =
          std::clamp(RoundUp(bytes - free), options_.first_segment_size,
                     options_.max_segment_size);
      if (absl::Status added = AddSegment(number, {.size = size});
          !added.ok()) {
        return platform::Annotate(
            added, absl::StrCat("cannot reserve ", bytes, " bytes, of which ",
                                free, " are free"));
      }
    }
  }();
  growing_ = false;
  changed_.NotifyAll();
  if (reserved.ok()) keep_idle_ = std::max(keep_idle_, bytes);
  return reserved;
}

absl::StatusOr<std::uint64_t> Core::Trim(std::uint64_t keep_bytes) {
  const platform::MutexLock lock(mutex_);
  keep_idle_ = 0;
  EmptyCaches();
  CollectHeld();
  AskAll().IgnoreError();  // Told in last_error_.
  return ReleaseIdle(keep_bytes);
}

absl::Status Core::ReleaseStream(CUstream stream, Deadline deadline) {
  RETURN_IF_ERROR(CheckStream(stream));
  // What was freed before now; a point after that is waited for.
  std::vector<std::pair<Heap*, std::uint64_t>> freed;
  {
    const platform::MutexLock lock(mutex_);
    EmptyCaches();
    for (const std::unique_ptr<Heap>& heap : heaps_) {
      if (Backlog* const backlog = heap->Find(stream)) {
        freed.emplace_back(heap.get(), backlog->Close());
      }
    }
  }
  ASSIGN_OR_RETURN(const OwnedEvent point,
                   RecordEvent(device_.driver(), stream));
  RETURN_IF_ERROR(AwaitPassing(point, deadline));
  std::vector<std::vector<StreamPoint>> points;  // Gone without the lock.
  const platform::MutexLock lock(mutex_);
  for (Block* block : held_) {
    if (block->freed_on == stream) block->freed_on = PassedStream();
  }
  for (const auto& [heap, epoch] : freed) {
    // Nobody asks after the stream any more when this returns.
    Backlog* backlog = heap->Find(stream);
    while (backlog != nullptr && backlog->is_asked) {
      changed_.Wait(mutex_);
      backlog = heap->Find(stream);
    }
    if (backlog == nullptr) continue;
    heap->Pass(*backlog, epoch);
    points.push_back(std::exchange(backlog->points, {}));
    heap->Forget(stream);
  }
  CollectHeld();
  return absl::OkStatus();
}

}  // namespace vmm::pool
