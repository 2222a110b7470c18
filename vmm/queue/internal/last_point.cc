#include "vmm/queue/internal/last_point.h"

#include <cstddef>
#include <utility>

#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"
#include "vmm/memory/stream_capture.h"

namespace vmm::ring {
namespace {

// From so many on all are asked after, and not the oldest one alone: it may be of
// a stream that stands still while others go on.
constexpr std::size_t kManyPoints = 8;

bool IsKnownToBePassed(const OwnedEvent& event) {
  return HasPassed(event).value_or(false);
}

}  // namespace

absl::Status CheckStream(CUstream stream) {
  if (stream != CU_STREAM_PER_THREAD) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the stream is CU_STREAM_PER_THREAD, which is another stream on each "
      "thread, so that a ring cannot keep order by it; pass a stream of your "
      "own, or CU_STREAM_LEGACY");
}

absl::Status CheckMayAcquire(const platform::Driver& driver, CUstream stream) {
  return CheckNotCaptured(
      driver, stream, "acquire a buffer of a ring",
      "each launch of the graph would wait for the same item: come again after "
      "cuStreamEndCapture()");
}

absl::Status LastPoint::Record(const platform::Driver& driver,
                               CUstream stream) {
  if (points_.size() >= kManyPoints) std::erase_if(points_, IsKnownToBePassed);
  if (!points_.empty() && IsKnownToBePassed(points_.front())) {
    // It stands for nothing any more, and serves once more.
    OwnedEvent again = std::move(points_.front());
    points_.erase(points_.begin());
    ASSIGN_OR_RETURN(const bool is_captured, IsCaptured(driver, stream));
    // Refused on a stream of another context.
    if (!is_captured &&
        driver->cuEventRecord(again.get().event, stream) == CUDA_SUCCESS) {
      points_.push_back(std::move(again));
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(OwnedEvent event, RecordEvent(driver, stream));
  points_.push_back(std::move(event));
  return absl::OkStatus();
}

void LastPoint::Extend(const platform::Driver& driver, CUstream stream) {
  if (driver->cuEventRecord(points_.back().get().event, stream) !=
      CUDA_SUCCESS) {
    Lose();
  }
}

absl::Status LastPoint::Await(Deadline deadline,
                              const std::function<bool()>& give_up) {
  platform::Pauses pauses;
  for (;;) {
    absl::Status failed;
    std::erase_if(points_, [&failed](const OwnedEvent& event) {
      const absl::StatusOr<bool> passed = HasPassed(event);
      failed.Update(passed.status());
      return passed.value_or(false);
    });
    if (!failed.ok()) return failed;
    if (points_.empty()) {
      return lost_ ? absl::UnknownError(
                         "no point in the work of a stream could be recorded")
                   : absl::OkStatus();
    }
    if (deadline.Passed() || (give_up && give_up())) {
      return absl::DeadlineExceededError("the GPU is not done yet");
    }
    pauses.Take(deadline);
  }
}

}  // namespace vmm::ring
