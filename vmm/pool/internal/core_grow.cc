// Where a pool gets memory from the driver.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"
#include "vmm/pool/internal/stream_context.h"

namespace vmm::pool {
namespace {

// A segment grows the pool by this part of what it has, so that no more than
// that is reserved for nothing; a large pool by a larger one, for each segment
// is a wait of who subscribes late.
constexpr std::uint64_t kGrowthPart = 24;
constexpr std::uint64_t kGrowthPartOfLarge = 16;
constexpr std::uint64_t kLargePool = std::uint64_t{1} << 30;
// As much of what is idle is kept.
constexpr std::uint64_t kIdlePart = 8;
// A range has so many times the addresses of the first segment, of what the pool
// has, and of the block that it is made for: they cost nothing, and each range
// less is an end less at which blocks do not fit.
constexpr std::uint64_t kFirstSegments = 64;
constexpr std::uint64_t kReserved = 4;
constexpr std::uint64_t kBlocks = 4;

absl::Status TooLarge(const Request& request) {
  return absl::ResourceExhaustedError(absl::StrCat(
      request.size, " bytes are more than a range of the pool can have"));
}

absl::Status NoNodes() {
  return absl::ResourceExhaustedError(
      "a range of the pool has as many blocks as it can have, or there is no "
      "memory for the books of one more");
}

}  // namespace

std::uint64_t Core::RoundUpToUnit(std::uint64_t size) const {
  return RoundUp(size, unit_);
}

std::uint64_t Core::LargestRange() const {
  return OffsetHeap::kMaxSize / unit_ * unit_;
}

std::uint64_t Core::Step() const {
  const std::uint64_t part =
      reserved_ < kLargePool ? kGrowthPart : kGrowthPartOfLarge;
  return std::clamp(RoundUpToUnit(reserved_ / part),
                    options_.first_segment_size, options_.max_segment_size);
}

absl::StatusOr<Block*> Core::Grow(const Request& request) {
  while (growing_) {
    changed_.Wait(mutex_);
    // What another thread got has room for this one, too, as a rule.
    if (Block* const block = HeapOf(request).Take(request)) return block;
  }
  absl::StatusOr<Block*> grown = GrowInTurn(request);
  if (absl::IsResourceExhausted(grown.status())) {
    return LastResort(request);
  }
  return grown;
}

absl::Status Core::NoteContext(CUstream stream) {
  if (context_ != nullptr) return absl::OkStatus();
  // What is freed of all streams waits for the default one, of this context.
  if (stream == PassedStream()) stream = CU_STREAM_LEGACY;
  CUcontext context = nullptr;
  {
    const Unlocked unlocked(*this);
    ASSIGN_OR_RETURN(context, ContextOf(device_, stream));
  }
  context_ = context;
  return absl::OkStatus();
}

absl::StatusOr<Block*> Core::GrowInTurn(const Request& request) {
  growing_ = true;
  const absl::Cleanup grown = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    growing_ = false;
    changed_.NotifyAll();
  };
  RETURN_IF_ERROR(NoteContext(request.stream));
  // Nothing that is idle could serve: it is of the wrong sizes.
  ReleaseIdle(std::max(Step(), reserved_ / kIdlePart), keep_idle_);
  Block* block = nullptr;
  RETURN_IF_ERROR(AddMemory(
      request, request.size >= options_.first_segment_size ? 0 : Step(),
      &block));
  return block;
}

bool Core::HasRanges() const {
  // A block of such memory that lies in two segments could not be filled:
  // cuMemsetD8() returns INVALID_VALUE (H200, driver 580.159.04).
  const bool the_cpu_reaches_it =
      std::any_of(options_.also.begin(), options_.also.end(),
                  [](const AccessGrant& one) { return one.who.is_host(); });
  const absl::Span<const HandleKind> kinds = options_.sharing.kinds();
  return !the_cpu_reaches_it &&
         std::find(kinds.begin(), kinds.end(), HandleKind::kLegacyIpc) ==
             kinds.end();
}

absl::Status Core::AddMemory(const Request& request, std::uint64_t step,
                             Block** block) {
  is_at_cap_ = false;
  step = RoundUpToUnit(step);
  const std::uint64_t least = RoundUpToUnit(request.size);
  for (;;) {
    Place place{.end = request.size,
                .room = std::min(std::max(least, step), LargestRange()),
                .needed = least};
    if (place.needed > place.room) return TooLarge(request);
    Range* range = nullptr;
    if (HasRanges()) {
      range = HeapOf(request).FindPlace(request, &place);
      if (range == nullptr) {
        ASSIGN_OR_RETURN(range, AddRange(request));
        place.room = range->size();
      }
    }
    const std::uint64_t size =
        std::min(std::max(step, place.needed), place.room);
    absl::Status added = AddSegment(request, range, place, size, block);
    if (added.ok()) return added;
    if (!absl::IsResourceExhausted(added) || size <= place.needed) {
      RemoveVacant();
      return added;
    }
    step = RoundUpToUnit(size / 2);  // Half as much may fit.
  }
}

absl::StatusOr<Range*> Core::AddRange(const Request& request) {
  const std::uint64_t size =
      std::min(std::max({kFirstSegments * options_.first_segment_size,
                         kReserved * RoundUpToUnit(reserved_),
                         kBlocks * RoundUpToUnit(request.size)}),
               LargestRange());
  Heap& heap = HeapOf(request);
  const std::uint32_t number = heap.NextRange();
  // Of its own accord the driver aligns as much as it is known to.
  const std::uint64_t alignment = std::max(request.alignment, unit_);
  std::unique_ptr<Range> made;
  {
    const Unlocked unlocked(*this);
    ASSIGN_OR_RETURN(
        AddressRange addresses,
        AddressRange::Reserve(device_.driver(), size,
                              alignment > Range::kUnit ? alignment : 0));
    made = std::make_unique<Range>(number, std::move(addresses), unit_);
  }
  return &heap.Add(std::move(made));
}

// By the driver; and what peers are given of it, if the domain is served.
struct Core::Made {
  std::unique_ptr<Segment> segment;
  std::shared_ptr<SharedSegment> shared;
};

absl::StatusOr<Core::Made> Core::MakeSegment(const Request& request,
                                             Range* range, std::uint64_t offset,
                                             std::uint64_t size) {
  AllocationOptions options;
  options.size = size;
  options.sharing = options_.sharing;
  options.also = options_.also;
  options.host_numa_node = options_.host_numa_node;
  options.rdma = options_.rdma;
  if (range != nullptr) {
    options.at = Placement{range->addresses(), offset};
  } else if (request.alignment > Range::kUnit) {
    options.alignment = request.alignment;
  }
  Made made;
  {
    const Unlocked unlocked(*this);
    ASSIGN_OR_RETURN(Allocation memory, Allocation::Create(device_, options));
    if (range != nullptr && memory.size() != size) {
      return absl::InternalError(absl::StrCat("the driver made ", memory.size(),
                                              " bytes for a segment of ", size,
                                              ", which has no room for more"));
    }
    made.segment = std::make_unique<Segment>(std::move(memory));
  }
  made.segment->offset = offset;
  made.segment->range = range;
  // The domain may have come to be served meanwhile.
  if (domains_[request.domain]->is_served()) {
    const Unlocked unlocked(*this);
    absl::StatusOr<std::shared_ptr<SharedSegment>> shared =
        Domain::Share(*made.segment);
    if (!shared.ok()) {
      made.segment.reset();  // A driver call.
      return shared.status();
    }
    made.shared = *std::move(shared);
  }
  return made;
}

absl::Status Core::AddSegment(const Request& request, Range* range,
                              const Place& place, std::uint64_t size,
                              Block** block) {
  if (closed_) return absl::FailedPreconditionError("the pool is closed");
  is_at_cap_ = options_.cap != 0 && reserved_ + size > options_.cap;
  if (is_at_cap_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a segment of ", size, " bytes beside ", reserved_,
        " would exceed the pool's cap of ", options_.cap, " bytes"));
  }
  Heap& heap = HeapOf(request);
  std::optional<Claim> claim;
  if (range != nullptr) {
    claim = heap.Take(*range, place, size);
    if (!claim.has_value()) return NoNodes();
  }
  Made made;
  reserved_ += size;
  absl::Cleanup undo = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    made.segment.reset();
    reserved_ -= size;
    if (claim.has_value()) heap.Vacate(*range, place, *claim);
  };
  ASSIGN_OR_RETURN(made, MakeSegment(request, range, place.gap, size));
  Segment& segment = *made.segment;
  if (range == nullptr) {
    range = &heap.Add(std::make_unique<Range>(
        heap.NextRange(), segment.allocation->address(), segment.size));
    claim = range->Take({.room = segment.size}, segment.size);
  }
  if (block != nullptr) heap.MakeRoomFor(*range, *claim);
  Domain& domain = *domains_[request.domain];
  segment.number = domain.NextNumber();
  domain.Tell(segment, std::move(made.shared), &last_error_);
  std::move(undo).Cancel();
  if (block == nullptr) {
    range->Fill(*claim, std::move(made.segment));
    return absl::OkStatus();
  }
  *block = heap.FillFor(*range, place, *claim, std::move(made.segment));
  return *block == nullptr ? NoNodes() : absl::OkStatus();
}

}  // namespace vmm::pool
