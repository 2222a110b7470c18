#include "platform/os/start_detached_posix.h"

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "platform/os/quiet_thread.h"

namespace vmm::platform {

bool StartDetached(const char* name, std::function<void()> body) {
  try {
    StartQuietly([&] {
      std::thread([name, body = std::move(body)] {
        NameThisThread(name);
        body();
      }).detach();
    });
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace vmm::platform
