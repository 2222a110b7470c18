#include <utility>

#include "platform/os/keep_loaded_posix.h"
#include "platform/os/run_detached.h"
#include "platform/os/start_detached_posix.h"

namespace vmm::platform {

bool RunDetached(const char* name, std::function<void()> body) {
  KeepLoaded(reinterpret_cast<const void*>(&RunDetached));
  return StartDetached(name, std::move(body));
}

}  // namespace vmm::platform
