// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <memory>
#include <new>
#include <utility>

#include "platform/os/thread_value.h"

// Exported by ntdll.dll.
extern "C" BOOLEAN NTAPI RtlDllShutdownInProgress();

namespace vmm::platform {
namespace {

// What a thread's slot holds.
struct Held {
  void (*end)(void* value);
  void* value;
};

// Called in the thread that ends the process, too, when Windows has ended all
// others, wherever they were: a lock that one of them held is never free again.
void NTAPI OnThreadEnd(void* slot) {
  if (::RtlDllShutdownInProgress() != FALSE) return;
  const std::unique_ptr<Held> held(static_cast<Held*>(slot));
  void* const value = std::exchange(held->value, nullptr);
  if (value != nullptr) held->end(value);
}

// Keeps the library that `function` lies in loaded, if there is one.
void KeepLoaded(void (*function)(void*)) {
  HMODULE module = nullptr;
  ::GetModuleHandleExW(
      GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
      reinterpret_cast<const wchar_t*>(function), &module);
}

}  // namespace

// A fiber's slots are a thread's where no fibers are used; unlike a thread's
// they come with a call at the end, without help of the compiler.
ThreadValue::ThreadValue(void (*end)(void* value)) : end_(end) {
  KeepLoaded(end_);
  KeepLoaded(&OnThreadEnd);
  const DWORD slot = ::FlsAlloc(&OnThreadEnd);
  has_slot_ = slot != FLS_OUT_OF_INDEXES;
  slot_ = slot;
}

void* ThreadValue::Get() const {
  const void* const slot = has_slot_ ? ::FlsGetValue(slot_) : nullptr;
  return slot != nullptr ? static_cast<const Held*>(slot)->value : nullptr;
}

bool ThreadValue::Set(void* value) const {
  if (!has_slot_) return false;
  // Once made it stays until the thread ends: `end` may be what calls this.
  if (auto* const held = static_cast<Held*>(::FlsGetValue(slot_))) {
    held->value = value;
    return true;
  }
  if (value == nullptr) return true;
  std::unique_ptr<Held> made(new (std::nothrow) Held{end_, value});
  if (made == nullptr || ::FlsSetValue(slot_, made.get()) == FALSE) {
    return false;
  }
  static_cast<void>(made.release());
  return true;
}

}  // namespace vmm::platform
