// SpareContext: a device's primary context, for calls on threads that have
// none; internal to vmm/.
//
// A null stream is the current context's default stream. A thread that has no
// context means that of the device's primary one, as the CUDA runtime has it.
// The context is made when it is first needed, and held from then on: what is on
// its streams ends with it. Who resets it (cuDevicePrimaryCtxReset) ends what holds
// it before.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_SPARE_CONTEXT_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_SPARE_CONTEXT_H_

#include <cuda.h>

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "vmm/memory/device.h"

namespace vmm {

// Thread-safe. Destroy it when the GPU has passed what was put on its streams;
// in a forked child abandon it.
class SpareContext : public platform::Abandonable {
 public:
  explicit SpareContext(Device device) : device_(std::move(device)) {}

  // For a call on `stream`: where that is a default one, and the thread has no
  // context, has this one current until what is returned goes. Else nothing is
  // returned: another stream has a context of its own.
  absl::StatusOr<CurrentContext> EnterFor(CUstream stream);

 private:
  const Device device_;
  platform::Mutex mutex_;
  std::optional<PrimaryContext> primary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_SPARE_CONTEXT_H_
