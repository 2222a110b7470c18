#include "tests/support/stepped_clock_posix.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace vmm::testing {
namespace {

std::atomic<time_t> g_step{0};

}  // namespace
}  // namespace vmm::testing

// In place of the C library's, for what is linked into this program and for
// the shared libraries that it uses.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto failed =
      static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (failed == 0 && clock == CLOCK_REALTIME) {
    time->tv_sec += vmm::testing::g_step;
  }
  return failed;
}

namespace vmm::testing {

void StepClock(absl::Duration step) { g_step = absl::ToInt64Seconds(step); }

void ExpectToWaitOutASteppedClock(
    const std::function<absl::Status(absl::Time deadline)>& wait) {
  constexpr auto kPatience = std::chrono::milliseconds(300);
  constexpr absl::Duration kStep = absl::Seconds(20);
  for (const absl::Duration step : {-kStep, kStep}) {
    bool was_set = false;
    while (!was_set) {  // In time: a busy machine may be late with it.
      std::mutex mutex;
      std::condition_variable changed;
      bool over = false;
      std::thread clock([&] {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait_for(lock, kPatience / 4, [&] { return over; });
        was_set = !over;
        if (was_set) StepClock(step);
      });
      const auto start = std::chrono::steady_clock::now();
      const absl::Status waited =
          wait(absl::Now() + absl::FromChrono(kPatience));
      const auto elapsed = std::chrono::steady_clock::now() - start;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        over = true;
      }
      changed.notify_all();
      clock.join();
      StepClock(absl::ZeroDuration());
      const std::string about =
          absl::StrCat("with the clock set by ", absl::FormatDuration(step));
      ASSERT_TRUE(absl::IsDeadlineExceeded(waited)) << about << ": " << waited;
      ASSERT_GE(elapsed, kPatience - std::chrono::milliseconds(1)) << about;
      EXPECT_LT(elapsed, absl::ToChronoSeconds(kStep) / 2) << about;
    }
  }
}

}  // namespace vmm::testing
