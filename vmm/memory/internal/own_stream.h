// OwnedStream: a stream for a call that waits for nobody's work but its own.
//
// The legacy stream will not do: what is put on it, or asked of it, while a
// blocking stream is captured into a graph is refused, and invalidates the
// capture, in whatever mode the thread is (measured). See stream_capture.h.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_OWN_STREAM_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_OWN_STREAM_H_

#include <cuda.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "platform/base/owned.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"

namespace vmm {

struct OwnStream {
  std::optional<platform::Driver> driver;
  CUstream stream = nullptr;
};

struct OwnStreamTraits {
  using Value = OwnStream;
  static Value Nothing() { return {}; }
  static bool Holds(const Value& value) { return value.stream != nullptr; }
  // Waits for nothing: what is on the stream goes on. A failure is reported.
  static void Close(const Value& value);
};

using OwnedStream = platform::Owned<OwnStreamTraits>;

// A non-blocking one of the current context. Errors as the driver answers.
absl::StatusOr<OwnedStream> MakeOwnStream(const platform::Driver& driver);

// Waits until what is on the stream is done, or has failed, as cuStreamSynchronize()
// says next. False: it stands, and may go on at any time, so that what it uses must
// stay for good. After an error that call has to wait.
absl::StatusOr<bool> HasEndedBy(const OwnedStream& own, Deadline deadline);

// UNAVAILABLE, for who tells of it: the device has not done `what`.
absl::Status StandsStill(absl::string_view what);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_OWN_STREAM_H_
