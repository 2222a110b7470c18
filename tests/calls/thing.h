// What the threads of a process have from the C interface, and share with each other.
//
// A thing is closed when the last one that has it lets go, so no thread uses what
// another one closes. What is for one thread at a time is taken off its shelf
// (Take) and put back afterwards; all else is looked at (Look).
#ifndef VMMSHARE_TESTS_CALLS_THING_H_
#define VMMSHARE_TESTS_CALLS_THING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace vmm::testing {

struct Thing {
  Thing() = default;
  Thing(const Thing&) = delete;
  Thing& operator=(const Thing&) = delete;
  ~Thing() {
    if (close) close();
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(handle);
  }

  void* handle = nullptr;
  std::function<void()> close;
  std::vector<std::shared_ptr<Thing>> keeps;  // That must be closed later.

  // Memory: every byte of it is `fill`, unless that is 0.
  std::uint8_t fill = 0;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  void* stream = nullptr;  // Of a block: for which it was allocated.
  bool is_on_host = false;
  bool is_imported = false;
  bool is_writable = false;

  std::string text;         // Of a share, or of what it was opened by.
  std::uint64_t value = 0;  // Of a fence or a ring: how far it has come.
  // Of a region.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
};
using ThingRef = std::shared_ptr<Thing>;

template <typename T>
ThingRef Own(T* handle, void (*close)(T*)) {
  auto thing = std::make_shared<Thing>();
  thing->handle = handle;
  thing->close = [handle, close] { close(handle); };
  return thing;
}

// Things of one kind. Thread-safe; `dice` are the calling thread's.
class Shelf {
 public:
  using Dice = std::function<std::uint64_t(std::uint64_t)>;

  explicit Shelf(std::size_t room) : room_(room) {}

  // Where there is no room another one goes, and this returns when it has.
  void Put(const Dice& dice, ThingRef thing) {
    const std::unique_lock lock(mutex_);
    if (things_.size() < room_) {
      things_.push_back(std::move(thing));
      return;
    }
    // As an argument it outlives the lock: closing may take long.
    std::swap(things_[dice(room_)], thing);
  }
  // Null where there is none.
  ThingRef Look(const Dice& dice) const {
    const std::lock_guard lock(mutex_);
    return things_.empty() ? nullptr : things_[dice(things_.size())];
  }
  ThingRef Take(const Dice& dice) {
    const std::lock_guard lock(mutex_);
    if (things_.empty()) return nullptr;
    std::swap(things_[dice(things_.size())], things_.back());
    ThingRef taken = std::move(things_.back());
    things_.pop_back();
    return taken;
  }

 private:
  mutable std::mutex mutex_;
  const std::size_t room_;
  std::vector<ThingRef> things_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CALLS_THING_H_
