#include "vmm/queue/internal/last_point.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace vmm::ring {
namespace {

constexpr absl::Duration kShortestPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

}  // namespace

absl::Status LastPoint::Record(const platform::Driver& driver,
                               CUstream stream) {
  auto point =
      std::find_if(points_.begin(), points_.end(),
                   [stream](const Point& one) { return one.stream == stream; });
  if (point == points_.end()) {
    std::erase_if(points_, [](const Point& one) {
      return one.event.has_value() && HasPassed(one.event).value_or(false);
    });
    point = points_.insert(points_.end(), {stream, OwnedEvent()});
  }
  // The same event again: what it stood for comes before.
  if (point->event.has_value() &&
      driver->cuEventRecord(point->event.get().event, stream) == CUDA_SUCCESS) {
    return absl::OkStatus();
  }
  absl::StatusOr<OwnedEvent> event = RecordEvent(driver, stream);
  if (!event.ok()) {
    point->event = OwnedEvent();
    return event.status();
  }
  point->event = *std::move(event);
  return absl::OkStatus();
}

absl::Status LastPoint::Await(Deadline deadline,
                              const std::function<bool()>& give_up) {
  absl::Duration pause = kShortestPause;
  for (;;) {
    absl::Status failed;
    std::erase_if(points_, [&failed](const Point& point) {
      const absl::StatusOr<bool> passed =
          point.event.has_value()
              ? HasPassed(point.event)
              : absl::UnknownError("no point in its work could be recorded");
      failed.Update(passed.status());
      return passed.value_or(false);
    });
    if (!failed.ok() || points_.empty()) return failed;
    if (deadline.Passed() || (give_up && give_up())) {
      return absl::DeadlineExceededError("the GPU is not done yet");
    }
    absl::SleepFor(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace vmm::ring
