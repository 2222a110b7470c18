#include <windows.h>

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "platform/os/quiet_thread.h"
#include "platform/os/run_detached.h"

namespace vmm::platform {

bool RunDetached(const char* name, std::function<void()> body) {
  HMODULE module = nullptr;
  ::GetModuleHandleExW(
      GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
      reinterpret_cast<const wchar_t*>(&RunDetached), &module);
  try {
    std::thread([name, body = std::move(body)] {
      NameThisThread(name);
      body();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace vmm::platform
