#include <windows.h>

#include "platform/os/thread_value.h"

namespace vmm::platform {

// A fiber's slots are a thread's where no fibers are used; unlike a thread's
// they come with a call at the end, without help of the compiler.
ThreadValue::ThreadValue(void (*end)(void* value)) {
  HMODULE module = nullptr;
  ::GetModuleHandleExW(
      GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
      reinterpret_cast<const wchar_t*>(end), &module);
  const DWORD slot = ::FlsAlloc(end);
  has_slot_ = slot != FLS_OUT_OF_INDEXES;
  slot_ = slot;
}

void* ThreadValue::Get() const {
  return has_slot_ ? ::FlsGetValue(slot_) : nullptr;
}

bool ThreadValue::Set(void* value) const {
  return has_slot_ && ::FlsSetValue(slot_, value) != FALSE;
}

}  // namespace vmm::platform
