// The process that makes random calls: three threads, until it is told to rest; then
// nothing of theirs may be left. args: where the orders are, a directory, a keeper's
// address, a seed, and "faults" if calls are to fail.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "tests/calls/operations.h"
#include "tests/ipc/door.h"
#include "tests/soak/part.h"

namespace vmm::testing {
namespace {

constexpr std::size_t kThreads = 3;
constexpr int kAtOnce = 12;  // Of each thread, before orders are looked at.
// A ring's end waits ten seconds for its peer, and ten for the GPU.
constexpr absl::Duration kHangs = absl::Seconds(120);

class Process {
 public:
  explicit Process(const std::vector<std::string>& args)
      : patience_(args[4] == "control" ? absl::Seconds(1) : absl::Seconds(20)),
        world_(args[1], args[2], args[4] == "faults") {
    std::uint64_t seed = 0;
    EXPECT_TRUE(absl::SimpleAtoi(args[3], &seed)) << args[3];
    for (std::size_t i = 0; i < kThreads; ++i) {
      callers_.push_back(std::make_unique<Caller>(world_, seed * 1000 + i));
    }
  }

  void Step() {
    std::vector<std::thread> threads;
    absl::Notification done;
    std::thread watch([&] {
      if (done.WaitForNotificationWithTimeout(kHangs)) return;
      std::cerr << "calls: a thread has not returned for " << kHangs << "\n";
      std::abort();
    });
    for (const std::unique_ptr<Caller>& each : callers_) {
      threads.emplace_back([&caller = *each] {
        caller.BeginOnThisThread();
        for (int i = 0; i < kAtOnce && !HasFailed(); ++i) DoSomething(caller);
      });
    }
    for (std::thread& each : threads) each.join();
    done.Notify();
    watch.join();
  }

  void Rest() {
    std::uint64_t calls = 0;
    for (const std::unique_ptr<Caller>& each : callers_) {
      calls += each->calls();
    }
    std::cout << "calls: " << calls - std::exchange(reported_, calls)
              << " in this round" << std::endl;
    world_.CloseAll(callers_[0]->dice(), patience_);
  }

 private:
  const absl::Duration patience_;  // A control finds what is left at once.
  World world_;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::uint64_t reported_ = 0;
};

int Call(const std::vector<std::string>& args) {
  // Who does not wait for a stream is late then, each time.
  ::setenv("VMMSHARE_HOST_DELAY", "2000", /*overwrite=*/0);
  platform::Channel orders = Dial(args[0]);
  Process process(args);
  return Play(orders, {.step = [&] { process.Step(); },
                       .rest = [&] { process.Rest(); }});
}
const bool kCaller = RegisterChild("soak-caller", &Call);

}  // namespace
}  // namespace vmm::testing
