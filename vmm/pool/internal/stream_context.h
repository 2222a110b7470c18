// The contexts of streams: which one a stream is of, and whose default streams are
// meant; and what is no stream. Internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_STREAM_CONTEXT_H_
#define VMMSHARE_VMM_POOL_INTERNAL_STREAM_CONTEXT_H_

#include <cuda.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vmm/memory/device.h"

namespace vmm::pool {

// Has the context current whose default streams are meant, until this ends: a
// thread may have none, or one of another device.
class DefaultContext {
 public:
  // `context`: null is whichever of the device is current, or else its primary
  // one. False: that is not active, so that nothing was put on its streams.
  absl::StatusOr<bool> Enter(const Device& device, CUcontext context);

 private:
  // Given back in the order of safety.
  std::optional<PrimaryContext> primary_;
  std::optional<CurrentContext> current_;
};

inline bool IsDefault(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY;
}

// INVALID_ARGUMENT for values that name no one stream: AllStreams(), and
// CU_STREAM_PER_THREAD, which is another one on each thread.
absl::Status CheckIsOneStream(CUstream stream);

// The context of a stream; null when none of the device's can be told. That of
// the default streams is the current one.
absl::StatusOr<CUcontext> ContextOf(const Device& device, CUstream stream);

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_STREAM_CONTEXT_H_
