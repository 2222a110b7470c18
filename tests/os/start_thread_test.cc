// What threads of the library begin with.
#include "platform/os/start_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "platform/os/os_error.h"
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

std::atomic<pid_t> asking = 0;
std::atomic<int> handled_there = 0;
std::atomic<int> handled_elsewhere = 0;

// A thread is started to see whether one can be.
TEST(StartThreadTest, NoSignalIsDeliveredToOneThatFindsALimit) {
  asking = 0;
  handled_there = 0;
  handled_elsewhere = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    ++(::gettid() == asking ? handled_there : handled_elsewhere);
  };
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<bool> done = false;
  std::thread program([&] {
    for (asking = ::gettid(); !done;) NearLimit();
  });
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &one, nullptr), 0);
  while (asking == 0) std::this_thread::yield();
  // One in a thousand was delivered there.
  for (int sent = 1; sent <= 6000; ++sent) {
    ASSERT_EQ(::kill(::getpid(), SIGUSR1), 0);
    while (handled_there + handled_elsewhere < sent) std::this_thread::yield();
  }
  done = true;
  program.join();
  EXPECT_EQ(handled_elsewhere, 0);
  ASSERT_EQ(::pthread_sigmask(SIG_UNBLOCK, &one, nullptr), 0);
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

}  // namespace
}  // namespace vmm::platform
