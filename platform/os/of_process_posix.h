// OfProcess: what threads that nobody joins work on; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_OF_PROCESS_POSIX_H_
#define VMMSHARE_PLATFORM_OS_OF_PROCESS_POSIX_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "platform/os/keep_loaded_posix.h"
#include "platform/os/process.h"

namespace vmm::platform {

// One T for each process, which lives as long as that: its threads may outlast
// everything else. A forked child has its parent's memory and not its threads, and
// a mutex there may be locked for ever: it has a T of its own. The library stays
// loaded from the first Get() on. For static objects.
template <typename T>
class OfProcess {
 public:
  constexpr OfProcess() = default;
  OfProcess(const OfProcess&) = delete;
  OfProcess& operator=(const OfProcess&) = delete;

  // Thread-safe.
  T& Get() {
    One* current = one_.load();
    while (current == nullptr || current->forks != ForksSoFar()) {
      KeepLoaded(this);
      auto made = std::make_unique<One>();
      made->of_parent = current;
      if (one_.compare_exchange_strong(current, made.get())) {
        current = made.release();
      }
    }
    return current->value;
  }

 private:
  struct One {
    std::uint64_t forks = ForksSoFar();
    const One* of_parent = nullptr;  // So that it is not taken for lost memory.
    T value;
  };

  std::atomic<One*> one_{nullptr};
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_OF_PROCESS_POSIX_H_
