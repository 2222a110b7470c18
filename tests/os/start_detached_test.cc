// Threads that nobody joins, of a process that is refused memory.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <functional>
#include <utility>

#include "platform/hostdriver/memory_os.h"
#include "platform/os/start_detached_posix.h"
#include "tests/support/refused_memory.h"

namespace vmm::platform {
namespace {

bool IsBlocked(int signal) {
  sigset_t mask;
  EXPECT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  return sigismember(&mask, signal) == 1;
}

TEST(StartDetachedTest, RefusedMemoryItStartsNoneAndBlocksNoSignal) {
  std::function<void()> body = [] { std::abort(); };
  testing::refusal = {0, /*lasts=*/true};
  const bool started = StartDetached("vmmshare-test", std::move(body));
  testing::refusal = {};
  EXPECT_FALSE(started);
  EXPECT_FALSE(IsBlocked(SIGTERM));
}

TEST(StartDetachedTest, TheHostMemoryDriverRefusedMemoryDoesTheSame) {
  std::function<void()> main = [] { std::abort(); };
  testing::refusal = {0, /*lasts=*/true};
  const bool started = hostdriver::StartThread(std::move(main));
  testing::refusal = {};
  EXPECT_FALSE(started);
  EXPECT_FALSE(IsBlocked(SIGTERM));
}

}  // namespace
}  // namespace vmm::platform
