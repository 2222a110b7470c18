#include "platform/os/deadline.h"

#include <gtest/gtest.h>
#include <sys/file.h>

#include "platform/os/termination.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/stepped_clock_posix.h"

namespace vmm::platform {
namespace {

using ::vmm::testing::ExpectToWaitOutASteppedClock;
using ::vmm::testing::StepClock;

TEST(Deadline, IsAsFarAwayAsItsTime) {
  const Deadline deadline = absl::Now() + absl::Hours(1);
  EXPECT_LE(deadline.Left(), absl::Hours(1));
  EXPECT_GT(deadline.Left(), absl::Minutes(59));
  EXPECT_FALSE(deadline.Passed());
  EXPECT_LT(Deadline::In(absl::Minutes(1)), deadline);
  EXPECT_LT((deadline - absl::Minutes(30)).Left(), absl::Minutes(31));
}

TEST(Deadline, InThePastHasPassedAndHasNothingLeft) {
  for (const Deadline deadline :
       {Deadline(absl::InfinitePast()), Deadline(absl::Now()),
        Deadline(absl::Now() - absl::Hours(1)), Deadline::In(-absl::Hours(1)),
        Deadline(absl::InfinitePast()) - absl::Seconds(1)}) {
    EXPECT_TRUE(deadline.Passed());
    EXPECT_EQ(deadline.Left(), absl::ZeroDuration());
    EXPECT_EQ(deadline.Slice().count(), 0);
  }
}

TEST(Deadline, WithoutEndNeverPasses) {
  const Deadline never = absl::InfiniteFuture();
  EXPECT_FALSE(never.Passed());
  EXPECT_EQ(never.Left(), absl::InfiniteDuration());
  EXPECT_GT(never.Slice(), std::chrono::hours(24));
  EXPECT_LT(Deadline::In(absl::Hours(1)), never);
  EXPECT_FALSE((never - absl::Hours(1)).Passed());
}

TEST(Deadline, DoesNotFollowTheTimeOfDay) {
  const Deadline deadline = absl::Now() + absl::Minutes(1);
  for (const absl::Duration step : {absl::Hours(1), -absl::Hours(1)}) {
    StepClock(step);
    EXPECT_LE(deadline.Left(), absl::Minutes(1));
    EXPECT_GT(deadline.Left(), absl::Seconds(30));
  }
  StepClock(absl::ZeroDuration());
}

int Pause(const std::vector<std::string>&) {
  for (;;) ::pause();
}
const bool kPause = testing::RegisterChild("pause", &Pause);

class SteppedClock : public OsTest {};

TEST_F(SteppedClock, DoesNotMoveTheDeadlinesOfAChannel) {
  auto [a, b] = Must(Channel::Pair());
  ExpectToWaitOutASteppedClock(
      [&](absl::Time deadline) { return b.Receive(deadline).status(); });
  ExpectToWaitOutASteppedClock(
      [&](absl::Time deadline) { return b.WaitForHangUp(deadline); });
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    auto pair = Must(Channel::Pair());
    const std::vector<std::uint8_t> payload(kMaxPayload, 1);
    absl::Status sent;
    while (sent.ok()) sent = pair.first.Send(1, payload, {}, deadline);
    return sent;
  });
}

TEST_F(SteppedClock, DoesNotMoveTheDeadlinesOfAListenerAndItsClients) {
  const TempDirectory directory;
  Listener listener = Must(
      Listener::Bind({.directory = directory.path(), .name = "socket"}, {}));
  ExpectToWaitOutASteppedClock(
      [&](absl::Time deadline) { return listener.Accept(deadline).status(); });
  std::vector<Channel> queue;
  absl::StatusOr<Channel> next;
  while ((next = Channel::Connect(listener.address(), {}, In(20))).ok()) {
    queue.push_back(*std::move(next));
  }
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    return Channel::Connect(listener.address(), {}, deadline).status();
  });
}

TEST_F(SteppedClock, DoesNotMoveTheDeadlineForADirectorysLock) {
  const TempDirectory directory;
  const OsHandle lock = OsHandle::Adopt(
      ::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Check(::flock(RawFd(lock), LOCK_EX) == 0, "flock() failed");
  // The deadline of a second is its own.
  ExpectToWaitOutASteppedClock([&](absl::Time) {
    const absl::Status bound =
        Listener::Bind({.directory = directory.path(), .name = "socket"}, {})
            .status();
    return absl::IsUnavailable(bound) ? absl::DeadlineExceededError("") : bound;
  });
}

TEST_F(SteppedClock, DoesNotMoveTheDeadlinesForTheEndOfAProcess) {
  testing::Child child = testing::Child::Start("pause", {});
  const Process process = Must(Process::Open(child.pid()));
  ExpectToWaitOutASteppedClock(
      [&](absl::Time deadline) { return process.WaitForExit(deadline); });
  ExpectToWaitOutASteppedClock(
      [&](absl::Time deadline) { return WaitForTermination(deadline); });
}

}  // namespace
}  // namespace vmm::platform
