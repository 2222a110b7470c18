// Leaves an object alone that must not be destroyed any more: Abandon().
#ifndef VMMSHARE_PLATFORM_BASE_ABANDON_H_
#define VMMSHARE_PLATFORM_BASE_ABANDON_H_

#include <atomic>
#include <memory>
#include <utility>

namespace vmm::platform {

// The base of what can be abandoned: room for what that needs, so that it needs
// no memory then.
class Abandonable {
 public:
  Abandonable(const Abandonable&) = delete;
  Abandonable& operator=(const Abandonable&) = delete;

 protected:
  Abandonable() = default;
  ~Abandonable() = default;

 private:
  template <typename T>
  friend void Abandon(std::unique_ptr<T> object);
  template <typename T>
  friend void Abandon(std::shared_ptr<T> object);

  // Has `object` be found from here until the process ends, so that it is not
  // taken for a leak.
  static void Keep(Abandonable* object);

  std::atomic<bool> kept_{false};
  std::shared_ptr<const void> self_;  // If it was held by a shared_ptr.
  Abandonable* next_ = nullptr;       // Abandoned before it.
};

// Keeps `object` as it is until the process ends. It is for a forked child:
// the object's threads are not there, and what they were changing may be half
// changed for ever. Neither allocates nor locks, since that too may have been
// changing: AddressSanitizer's allocator (GCC 12) stays locked in a child whose
// parent was allocating on another thread. Any thread.
template <typename T>
void Abandon(std::unique_ptr<T> object) {
  Abandonable::Keep(object.release());
}
template <typename T>
void Abandon(std::shared_ptr<T> object) {
  Abandonable* const kept = object.get();
  // Each of its owners abandons it.
  if (kept->kept_.exchange(true)) return;
  kept->self_ = std::move(object);
  Abandonable::Keep(kept);
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_ABANDON_H_
