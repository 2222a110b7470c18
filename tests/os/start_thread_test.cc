// What threads of the library begin with.
#include "platform/os/start_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "platform/os/run_detached.h"

namespace vmm::platform {
namespace {

std::vector<int> Blocked() {
  sigset_t mask;
  EXPECT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  std::vector<int> blocked;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (sigismember(&mask, signal) == 1) blocked.push_back(signal);
  }
  return blocked;
}

// All that a program may handle, or wait for, but what a fault sends.
std::vector<int> AllButThoseOfFaults() {
  std::vector<int> all;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const bool is_threads_own = signal > SIGSYS && signal < SIGRTMIN;
    if (signal != SIGBUS && signal != SIGFPE && signal != SIGILL &&
        signal != SIGSEGV && signal != SIGSYS && signal != SIGTRAP &&
        signal != SIGKILL && signal != SIGSTOP && !is_threads_own) {
      all.push_back(signal);
    }
  }
  return all;
}

struct Beginning {
  std::string name;
  std::vector<int> blocked;
  std::vector<int> blocked_in_a_thread_of_it;
};

Beginning Look() {
  std::array<char, 16> name = {};
  EXPECT_EQ(::pthread_getname_np(::pthread_self(), name.data(), name.size()),
            0);
  Beginning beginning{name.data(), Blocked(), {}};
  std::thread([&] { beginning.blocked_in_a_thread_of_it = Blocked(); }).join();
  return beginning;
}

void ExpectToBeginAs(const Beginning& beginning, const std::string& name) {
  EXPECT_EQ(beginning.name, name);
  // SIGKILL and SIGSTOP cannot be blocked.
  EXPECT_EQ(beginning.blocked, AllButThoseOfFaults());
  EXPECT_EQ(beginning.blocked_in_a_thread_of_it, AllButThoseOfFaults());
}

TEST(StartThreadTest, NoSignalIsDeliveredToItAndItHasAName) {
  const std::vector<int> before = Blocked();
  std::thread thread;
  Beginning beginning;
  ASSERT_TRUE(StartThread(thread, "vmmshare-joined", "for a test", [&] {
                beginning = Look();
              }).ok());
  EXPECT_EQ(Blocked(), before);
  thread.join();
  ExpectToBeginAs(beginning, "vmmshare-joined");
}

TEST(StartThreadTest, OneThatNobodyJoinsBeginsAsTheOthers) {
  const std::vector<int> before = Blocked();
  std::promise<Beginning> made;
  ASSERT_TRUE(RunDetached("vmmshare-test", [&] { made.set_value(Look()); }));
  EXPECT_EQ(Blocked(), before);
  ExpectToBeginAs(made.get_future().get(), "vmmshare-test");
}

}  // namespace
}  // namespace vmm::platform
