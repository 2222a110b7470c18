// A library that keeps a value for each thread, for thread_value_test.cc to load
// and to unload.
#include <atomic>

#include "platform/os/thread_value.h"

// Counts in `ends` when the calling thread ends.
extern "C" bool vmmshare_test_count_end(std::atomic<int>* ends) {
  static const vmm::platform::ThreadValue value(
      [](void* counted) { ++*static_cast<std::atomic<int>*>(counted); });
  return value.Set(ends);
}
