// ThreadValue: one pointer for each thread, handed to a function when the
// thread ends.
//
// For what a thread_local object with a destructor would be used elsewhere:
// where the compiler emulates thread_local (mingw-w64), such an object's memory
// is freed before its destructor runs (seen with GCC 12 under wine).
#ifndef VMMSHARE_PLATFORM_OS_THREAD_VALUE_H_
#define VMMSHARE_PLATFORM_OS_THREAD_VALUE_H_

#include <cstdint>

namespace vmm::platform {

// Thread-safe. For objects that live as long as the process.
class ThreadValue {
 public:
  // `end` is called in each thread that ends and whose value is not null, after
  // the destructors of its thread_local objects, and not in the thread that
  // ends the process, where the value stays as it is. Where the system has no room
  // for another slot, threads keep no value. A library that `end` lies in is never
  // unloaded any more.
  explicit ThreadValue(void (*end)(void* value));
  ThreadValue(const ThreadValue&) = delete;
  ThreadValue& operator=(const ThreadValue&) = delete;

  // The calling thread's; null before the first Set().
  void* Get() const;
  // False when the system refuses to keep it; `end` is then not called.
  bool Set(void* value) const;

 private:
  void (*end_)(void* value);
  std::uint32_t slot_ = 0;
  bool has_slot_ = false;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_THREAD_VALUE_H_
