// SpareContext: a device's primary context, for calls on threads that have
// none; internal to vmm/.
//
// A null stream is the current context's default stream. A thread that has no
// context means that of the device's primary one, as the CUDA runtime has it.
// The context is made when it is first needed, and held from then on: what is on
// its streams ends with it.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_SPARE_CONTEXT_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_SPARE_CONTEXT_H_

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

  // Has it current until what is returned goes. Where the thread has a context,
  // whichever, that stays, and nothing is returned.
  absl::StatusOr<CurrentContext> Enter();

 private:
  const Device device_;
  platform::Mutex mutex_;
  std::optional<PrimaryContext> primary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_SPARE_CONTEXT_H_
