#include <gtest/gtest.h>

#include <thread>

#include "platform/base/mutex.h"

namespace vmm::platform {
namespace {

// Whether another thread could take `mutex`; it lets go of it again.
bool IsFree(Mutex& mutex) {
  bool free = false;
  std::thread([&] {
    if (!mutex.TryLock()) return;
    const MutexLock lock(mutex, std::adopt_lock);
    free = true;
  }).join();
  return free;
}

TEST(Mutex, IsTakenWhileALockHoldsIt) {
  Mutex mutex;
  EXPECT_TRUE(IsFree(mutex));
  {
    MutexLock lock(mutex);
    EXPECT_FALSE(IsFree(mutex));
    lock.Unlock();
    EXPECT_TRUE(IsFree(mutex));
    lock.Lock();
    EXPECT_FALSE(IsFree(mutex));
    {
      const MutexUnlock unlocked(mutex);
      EXPECT_TRUE(IsFree(mutex));
    }
    EXPECT_FALSE(IsFree(mutex));
  }
  EXPECT_TRUE(IsFree(mutex)) << "the lock that took it over has let go";
}

}  // namespace
}  // namespace vmm::platform
