// Threads that nobody joins, of a process that is refused memory.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <new>
#include <utility>

#include "platform/os/start_detached_posix.h"

namespace {

thread_local bool refused = false;  // All memory that this thread asks for.

}  // namespace

void* operator new(std::size_t size) {
  if (!refused) {
    if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace vmm::platform {
namespace {

bool IsBlocked(int signal) {
  sigset_t mask;
  EXPECT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  return sigismember(&mask, signal) == 1;
}

TEST(StartDetachedTest, RefusedMemoryItStartsNoneAndBlocksNoSignal) {
  std::function<void()> body = [] { std::abort(); };
  refused = true;
  const bool started = StartDetached(std::move(body));
  refused = false;
  EXPECT_FALSE(started);
  EXPECT_FALSE(IsBlocked(SIGTERM));
}

}  // namespace
}  // namespace vmm::platform
