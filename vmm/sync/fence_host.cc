// What the host does with a fence by itself: signals, waits, looks.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/internal/fence_memory.h"

namespace vmm {
namespace {

// A wait on the host looks all the time for so long: a GPU's signal takes some
// 10 us (measured). Then it sleeps, longer each time.
constexpr absl::Duration kLookAllTheTime = absl::Microseconds(50);
// How long a device may take to say what is in its memory: where a call has no
// deadline of its own, and at least, where that has passed.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::Duration kLeast = absl::Milliseconds(20);

Deadline Patience() { return Deadline::In(kPatience); }

absl::Status WhyNotWorth(const FenceWatch& watch) {
  if (watch.signaller != nullptr) {
    ASSIGN_OR_RETURN(const bool ended, watch.signaller->HasExited());
    if (ended) {
      return absl::UnavailableError(
          absl::StrCat("process ", watch.signaller->pid(),
                       ", which was to signal it, has ended. Abandon() lets go "
                       "of streams that wait"));
    }
  }
  return watch.still_worth ? watch.still_worth() : absl::OkStatus();
}

}  // namespace

absl::Status Fence::SignalFromHost(std::uint64_t value) {
  RETURN_IF_ERROR(CheckSignal(value));
  ASSIGN_OR_RETURN(fence::Progress now, memory().Look(at_, base_, Patience()));
  RETURN_IF_ERROR(CheckForwards(value, now, 0));
  const std::uint64_t raw = base_ + value;
  if (base_ + now.value < enqueued_ && enqueued_ <= raw) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a signal of ", enqueued_ - base_,
        " is on its way on a stream, and would come after the host's of ",
        value, ". Put that on the stream too, or wait for the first"));
  }
  RETURN_IF_ERROR(memory().Raise(at_, raw, Patience()));
  // Somebody may have abandoned it meanwhile, and then the value is lost.
  ASSIGN_OR_RETURN(now, memory().Look(at_, base_, Patience()));
  return CheckMayReach(value, now);
}

absl::Status Fence::WaitOnHost(std::uint64_t value, Deadline deadline,
                               const FenceWatch& watch) {
  RETURN_IF_ERROR(CheckValue(value));
  const Deadline look_until = Deadline::In(kLookAllTheTime);
  platform::Pauses pauses;
  absl::Status over;
  for (;;) {
    ASSIGN_OR_RETURN(const fence::Progress now,
                     memory().Look(at_, base_,
                                   Deadline::In(std::clamp(
                                       deadline.Left(), kLeast, kPatience))));
    RETURN_IF_ERROR(CheckMayReach(value, now));
    if (now.value >= value) return absl::OkStatus();
    if (!over.ok()) {
      return platform::Annotate(
          over, absl::StrCat("the fence is at ", now.value, ", not ", value));
    }
    if (!look_until.Passed() && !deadline.Passed()) {
      memory().Linger(at_, base_ + value);
      continue;
    }
    // Whoever has ended may have signalled before: one more look decides.
    over = WhyNotWorth(watch);
    if (!over.ok()) continue;
    if (deadline.Passed()) {
      over = absl::DeadlineExceededError("the deadline has passed");
      continue;
    }
    pauses.Take(deadline);
  }
}

absl::StatusOr<std::uint64_t> Fence::Query() const {
  RETURN_IF_ERROR(CheckUsable());
  ASSIGN_OR_RETURN(const fence::Progress now,
                   memory().Look(at_, base_, Patience()));
  RETURN_IF_ERROR(CheckGoesOn(now));
  return now.value;
}

absl::Status Fence::Abandon() {
  RETURN_IF_ERROR(CheckUsable());
  return memory().Abandon(at_, base_, Patience());
}

}  // namespace vmm
