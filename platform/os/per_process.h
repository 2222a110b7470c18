// PerProcess: what a process has one of, and a forked child another.
#ifndef VMMSHARE_PLATFORM_OS_PER_PROCESS_H_
#define VMMSHARE_PLATFORM_OS_PER_PROCESS_H_

#include <atomic>
#include <memory>

#include "platform/os/process.h"

namespace vmm::platform {

// A T for each process that asks for one, which is never destroyed. A forked child
// has its parent's memory and not its threads: a mutex there may be locked for
// ever, and what it guards may be half changed. So a child never sees its parent's.
// For static objects. Thread-safe.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& Get() {
    One* current = one_.load();
    while (current == nullptr || !current->made.is_still_here()) {
      auto made = std::make_unique<One>();
      made->of_parent = current;
      if (one_.compare_exchange_strong(current, made.get())) {
        current = made.release();
      }
    }
    return current->value;
  }

  // Null where this process did not call Get(). Neither allocates nor locks.
  T* Find() {
    One* const current = one_.load();
    return current != nullptr && current->made.is_still_here() ? &current->value
                                                               : nullptr;
  }

  // Whether a process from which this one was forked has one, and this one none.
  // Neither allocates nor locks.
  bool IsOfParentAlone() const {
    const One* const current = one_.load();
    return current != nullptr && !current->made.is_still_here();
  }

 private:
  struct One {
    const MadeHere made;
    const One* of_parent = nullptr;  // So that it is not taken for lost memory.
    T value;
  };

  std::atomic<One*> one_{nullptr};
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_PER_PROCESS_H_
