// How a process joins its job and leaves it, with a libpmix that answers as it
// is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <iterator>
#include <string>
#include <thread>

#include "fabric/pmix.h"
#include "tests/job/pmix_rank.h"
#include "tests/support/fork.h"
#include "tests/support/must.h"
#include "tests/support/same_process_id_posix.h"

namespace vmm::testing {
namespace {

namespace pmix = fabric::pmix;
using fabric::PmixExchange;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

void TriesAgainToJoin() {
  ThePmix().init = pmix::kErrUnreachable;
  EXPECT_TRUE(absl::IsUnavailable(Connect().status()));
  ThePmix().init = pmix::kSuccess;
  ThePmix().get.asked = pmix::kErrUnreachable;
  EXPECT_TRUE(absl::IsUnavailable(Connect().status()));
  ThePmix().get.asked = pmix::kSuccess;
  EXPECT_EQ(Must(Connect())->local_rank(), 0);
}
const bool kTriesAgainToJoin =
    RegisterChild("pmix-tries-again-to-join", &Rank<&TriesAgainToJoin>);
TEST(PmixExchange, TriesAgainToJoin) {
  EXPECT_EQ(RunRank("pmix-tries-again-to-join"), 0);
}

void JoinsByOneLibraryOnly() {
  const auto exchange = Must(Connect());
  const absl::Status status =
      PmixExchange::Connect({.library = "/elsewhere/libpmix.so.2"}, Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(Message(status),
            std::string("this process has joined its job by ") +
                VMMSHARE_TEST_PMIX +
                ", and cannot by /elsewhere/libpmix.so.2 too");
}
const bool kJoinsByOneLibraryOnly = RegisterChild(
    "pmix-joins-by-one-library-only", &Rank<&JoinsByOneLibraryOnly>);
TEST(PmixExchange, JoinsByOneLibraryOnly) {
  EXPECT_EQ(RunRank("pmix-joins-by-one-library-only"), 0);
}

void GivesUpWhereAnotherThreadDoesNotGetIn() {
  std::promise<void> reached;
  std::promise<void> open;
  ThePmix().in_init = [&] {
    reached.set_value();
    open.get_future().wait();
  };
  std::thread other([] { EXPECT_TRUE(Connect().ok()); });
  reached.get_future().wait();
  const absl::Status status = Connect(Deadline::In(absl::Seconds(1))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(Message(status),
            "another thread's PMIx_Init() did not end by the deadline");
  open.set_value();
  // Who waits longer gets in behind it, and joins no second time.
  EXPECT_TRUE(Connect().ok());
  other.join();
}
const bool kGivesUpWhereAnotherThreadDoesNotGetIn =
    RegisterChild("pmix-gives-up-where-another-thread-does-not-get-in",
                  &Rank<&GivesUpWhereAnotherThreadDoesNotGetIn>);
TEST(PmixExchange, GivesUpWhereAnotherThreadDoesNotGetIn) {
  EXPECT_EQ(RunRank("pmix-gives-up-where-another-thread-does-not-get-in"), 0);
}

// The exit status is that of PMIx_Finalize(): the launcher is told that the rank
// ends as it should.
void LeavesAtItsExit() {
  Must(Connect());
  ThePmix().in_finalize = [] { std::_Exit(42); };
}
const bool kLeavesAtItsExit =
    RegisterChild("pmix-leaves-at-its-exit", &Rank<&LeavesAtItsExit>);
TEST(PmixExchange, LeavesAtItsExit) {
  EXPECT_EQ(RunRank("pmix-leaves-at-its-exit"), 42);
}

std::ptrdiff_t Threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

void AForkedChildIsNoRank() {
  std::thread([] {}).join();  // With the first, a sanitizer starts its own.
  const std::ptrdiff_t threads = Threads();
  const auto exchange = Must(Connect());
  const SameProcessId same;  // As in a container within the container.
  // The one that waited for libpmix would hold locks in the child.
  while (Threads() > threads) std::this_thread::yield();
  EXPECT_EQ(RunInFork([]() -> int {
              const absl::Status status = Connect().status();
              EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
              EXPECT_THAT(Message(status),
                          HasSubstr("is the rank, and this one is forked"));
              // It does not leave the job that its parent is in.
              ThePmix().in_finalize = [] { std::_Exit(42); };
              std::exit(::testing::Test::HasFailure() ? 1 : 0);
            }),
            0);
}
const bool kAForkedChildIsNoRank = RegisterChild(
    "pmix-a-forked-child-is-no-rank", &Rank<&AForkedChildIsNoRank>);
TEST(PmixExchange, AForkedChildIsNoRank) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  EXPECT_EQ(RunRank("pmix-a-forked-child-is-no-rank"), 0);
}

// Forked while a thread, which is not in the child, is joining.
void AForkedChildWaitsForNoThreadOfTheRank() {
  std::promise<void> reached;
  std::promise<void> open;
  ThePmix().in_init = [&] {
    reached.set_value();
    open.get_future().wait();
  };
  std::thread other([] { EXPECT_TRUE(Connect().ok()); });
  reached.get_future().wait();
  EXPECT_EQ(RunInFork([] {
              const absl::Status status =
                  Connect(Deadline::In(absl::Seconds(1))).status();
              EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
              return ::testing::Test::HasFailure() ? 1 : 0;
            }),
            0);
  open.set_value();
  other.join();
}
const bool kAForkedChildWaitsForNoThreadOfTheRank =
    RegisterChild("pmix-a-forked-child-waits-for-no-thread-of-the-rank",
                  &Rank<&AForkedChildWaitsForNoThreadOfTheRank>);
TEST(PmixExchange, AForkedChildWaitsForNoThreadOfTheRank) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  EXPECT_EQ(RunRank("pmix-a-forked-child-waits-for-no-thread-of-the-rank"), 0);
}

}  // namespace
}  // namespace vmm::testing
