// RecordedEvent: a point in a stream's work.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_RECORDED_EVENT_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_RECORDED_EVENT_H_

#include <cuda.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"

namespace vmm {

struct RecordedEvent {
  std::optional<platform::Driver> driver;
  CUevent event = nullptr;
};

struct RecordedEventTraits {
  using Value = RecordedEvent;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.event != nullptr; }
  static void Close(const Value& value);
};

using OwnedEvent = platform::Owned<RecordedEventTraits>;

// The point after all work that is on `stream` now. Null is the current
// context's default stream. Fails as the driver does: no context is current,
// the stream is none, no event can be had. As CheckNotCaptured() when the stream
// is captured into a graph.
absl::StatusOr<OwnedEvent> RecordEvent(
    const platform::Driver& driver, CUstream stream,
    absl::string_view do_what = "record a point in the stream's work",
    absl::string_view remedy =
        "its work is done at each launch of the graph: come again after "
        "cuStreamEndCapture()");

// Whether the GPU has passed it; an error when work before it failed.
absl::StatusOr<bool> HasPassed(const OwnedEvent& event);

// Returns once the GPU has passed it; DEADLINE_EXCEEDED if it has not by
// `deadline`.
absl::Status AwaitPassing(const OwnedEvent& event, Deadline deadline);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_RECORDED_EVENT_H_
