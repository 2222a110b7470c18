// Keepable: a value that can be kept until the process ends, as memory that a device
// may still write to.
#ifndef VMMSHARE_PLATFORM_BASE_KEEPABLE_H_
#define VMMSHARE_PLATFORM_BASE_KEEPABLE_H_

#include <atomic>
#include <memory>
#include <utility>

namespace vmm::platform {

// Move-only. To be made beforehand: keeping it takes no memory.
template <typename T>
class Keepable {
 public:
  explicit Keepable(T value) : one_(new One{std::move(value)}) {}

  T& operator*() const { return one_->value; }
  T* operator->() const { return &one_->value; }

  // From here it is found, so that it is not taken for lost memory. Any thread.
  void KeepForGood() && {
    One* const one = one_.release();
    one->next = kept_.load();
    while (!kept_.compare_exchange_weak(one->next, one)) {
    }
  }

 private:
  struct One {
    T value;
    One* next = nullptr;
  };
  static inline std::atomic<One*> kept_ = nullptr;

  std::unique_ptr<One> one_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_KEEPABLE_H_
