// OfProcess: what threads that nobody joins work on; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_OF_PROCESS_POSIX_H_
#define VMMSHARE_PLATFORM_OS_OF_PROCESS_POSIX_H_

#include "platform/os/keep_loaded_posix.h"
#include "platform/os/per_process.h"

namespace vmm::platform {

// As PerProcess; and the library stays loaded from the first Get() on, for threads
// of it may outlast everything else. For static objects.
template <typename T>
class OfProcess {
 public:
  constexpr OfProcess() = default;

  // Thread-safe.
  T& Get() {
    if (T* const known = one_.Find()) return *known;
    KeepLoaded(this);
    return one_.Get();
  }

 private:
  PerProcess<T> one_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_OF_PROCESS_POSIX_H_
