// The sweep on toy operations: sound ones pass, and each seeded fault of the
// operation turns it red. Without these a green sweep would prove nothing.
#include "tests/support/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "tests/support/syscall_faults.h"
#include "tests/unit/fake_driver.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What a toy operation does wrong.
enum class Bug {
  kNone,
  kForgetsTheFirstHandle,  // When making the second one fails.
  kSwallowsAnError,        // Of cuMemMap.
  kHidesARefusedRelease,   // Says nothing of it, to nobody.
  kGivesUpAfterARelease,   // Frees nothing more once a release failed.
  kGivesUpOnTheWayBack,    // The same, but where making failed alone.
  kHidesOnTheWayBack,      // Says of no release there that it failed.
  kNamesNoCall,
  kAnswersUnknown,
  kSaysNothing,  // An error with an empty message.
};

class SweepTest : public ::testing::Test {
 protected:
  // Gives a handle back, as an owner's destructor would.
  void Release(CUmemGenericAllocationHandle handle, Bug bug) {
    const CUresult r = driver_->cuMemRelease(handle);
    if (r == CUDA_SUCCESS) return;
    if (bug == Bug::kGivesUpOnTheWayBack) gave_up_ = on_the_way_back_;
    if (bug == Bug::kHidesOnTheWayBack && on_the_way_back_) return;
    if (bug == Bug::kGivesUpAfterARelease) gave_up_ = true;
    if (bug == Bug::kHidesARefusedRelease) return;
    platform::ReportReleaseFailure(driver_.Error(r, "cuMemRelease(handle=7)"));
  }

  absl::Status Failed(CUresult r, const char* call, Bug bug) {
    if (bug == Bug::kNamesNoCall) return absl::InternalError("it went wrong");
    if (bug == Bug::kAnswersUnknown) return absl::UnknownError(call);
    if (bug == Bug::kSaysNothing) return absl::InternalError("");
    return driver_.Error(r, call);
  }

  // Creates two handles, reserves, maps; then gives all of it back.
  absl::Status Toy(Bug bug) {
    gave_up_ = on_the_way_back_ = swallowed_ = false;
    CUmemGenericAllocationHandle first = 0, second = 0;
    CUdeviceptr at = 0;
    CUresult r = driver_->cuMemCreate(&first, 1 << 21, nullptr, 0);
    if (r != CUDA_SUCCESS) return Failed(r, "cuMemCreate(first)", bug);
    r = driver_->cuMemCreate(&second, 1 << 21, nullptr, 0);
    if (r != CUDA_SUCCESS) {
      if (bug != Bug::kForgetsTheFirstHandle) Release(first, bug);
      return Failed(r, "cuMemCreate(second)", bug);
    }
    absl::Status status;
    r = driver_->cuMemAddressReserve(&at, 1 << 21, 0, 0, 0);
    if (r != CUDA_SUCCESS) {
      status = Failed(r, "cuMemAddressReserve()", bug);
      on_the_way_back_ = true;
    } else {
      r = driver_->cuMemMap(at, 1 << 21, 0, first, 0);
      if (r == CUDA_SUCCESS) {
        r = driver_->cuMemUnmap(at, 1 << 21);
        if (r != CUDA_SUCCESS) status = Failed(r, "cuMemUnmap()", bug);
      } else if (bug == Bug::kSwallowsAnError) {
        swallowed_ = true;
      } else {
        status = Failed(r, "cuMemMap()", bug);
      }
      r = driver_->cuMemAddressFree(at, 1 << 21);
      if (r != CUDA_SUCCESS && status.ok()) {
        status = Failed(r, "cuMemAddressFree()", bug);
      } else if (r != CUDA_SUCCESS) {
        platform::ReportReleaseFailure(driver_.Error(r, "cuMemAddressFree()"));
      }
    }
    Release(first, bug);
    if (!gave_up_) Release(second, bug);
    return status;
  }

  SweepResult SweepToy(Bug bug, std::uint64_t pairs = 0) {
    return Sweep({.name = "toy",
                  .run = [this, bug] { return Toy(bug); },
                  .faults = &faults_,
                  .system_calls = false,
                  .inventory = [] { return Fake().held; },
                  .pairs = pairs});
  }

  platform::Driver real_ = LoadFakeDriver();
  DriverFaults faults_;
  platform::Driver driver_ = FaultyDriver(real_, &faults_);
  bool gave_up_ = false;
  bool on_the_way_back_ = false;
  bool swallowed_ = false;
};

TEST_F(SweepTest, PassesASoundOperationAndCountsItsPoints) {
  const SweepResult result = SweepToy(Bug::kNone);
  EXPECT_THAT(result.problems, IsEmpty());
  // 4 acquiring calls, 2 results, once and for ever; 4 releasing calls, done
  // once, done for ever, and refused once.
  EXPECT_EQ(result.driver_points, 4u * 2 * 2 + 4u * 3);
  EXPECT_EQ(result.system_points, 0u);
  EXPECT_EQ(result.Summary(),
            "sweep toy: 28 points (driver 28, system 0), once and for ever");
}

TEST_F(SweepTest, ASeededLeakTurnsItRed) {
  const SweepResult result = SweepToy(Bug::kForgetsTheFirstHandle);
  // The second cuMemCreate is call 1; it fails in four passes.
  EXPECT_EQ(result.problems.size(), 4u);
  EXPECT_THAT(result.problems,
              Each(AllOf(HasSubstr("toy: cuMemCreate, call 1 refused"),
                         HasSubstr("handles: "), HasSubstr(" after"))));
}

TEST_F(SweepTest, ASwallowedErrorTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kSwallowsAnError).problems,
              Contains(AllOf(HasSubstr("cuMemMap, call 3 refused once"),
                             HasSubstr("swallowed"))));
}

TEST_F(SweepTest, ASwallowedErrorCanBeDeclared) {
  const SweepResult result =
      Sweep({.name = "toy",
             .run = [this] { return Toy(Bug::kSwallowsAnError); },
             .faults = &faults_,
             .system_calls = false,
             .may_fail_silently = {"cuMemMap"},
             .inventory = [] { return Fake().held; }});
  EXPECT_THAT(result.problems, IsEmpty());
}

// By the call that is made in its place, and by no other run.
TEST_F(SweepTest, ASwallowedErrorMayBeMadeUpFor) {
  SweepPlan plan = {
      .name = "toy",
      .faults = &faults_,
      .system_calls = false,
      .substitute = {.call = "cuMemAddressReserve", .instead_of = {"cuMemMap"}},
      .inventory = [] { return Fake().held; }};
  plan.run = [this] { return Toy(Bug::kSwallowsAnError); };
  EXPECT_THAT(Sweep(plan).problems,
              Contains(AllOf(HasSubstr("cuMemMap, call 3 refused once"),
                             HasSubstr("swallowed"))));
  plan.run = [this]() -> absl::Status {
    const absl::Status status = Toy(Bug::kSwallowsAnError);
    if (!status.ok() || !swallowed_) return status;
    CUdeviceptr at = 0;
    const CUresult r = driver_->cuMemAddressReserve(&at, 1 << 21, 0, 0, 0);
    if (r != CUDA_SUCCESS) return driver_.Error(r, "cuMemAddressReserve()");
    return driver_.Error(driver_->cuMemAddressFree(at, 1 << 21),
                         "cuMemAddressFree()");
  };
  EXPECT_THAT(Sweep(plan).problems, IsEmpty());
}

TEST_F(SweepTest, AReleaseRefusedAndNotReportedTurnsItRed) {
  const SweepResult result = SweepToy(Bug::kHidesARefusedRelease);
  EXPECT_THAT(result.problems, Contains(AllOf(HasSubstr("cuMemRelease"),
                                              HasSubstr("refused once"),
                                              HasSubstr("handles: "))));
  EXPECT_THAT(result.problems,
              Contains(AllOf(HasSubstr("cuMemRelease"),
                             HasSubstr("answered with an error"),
                             HasSubstr("swallowed"))));
}

TEST_F(SweepTest, GivingUpAfterAFailedReleaseTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kGivesUpAfterARelease).problems,
              Contains(AllOf(HasSubstr("cuMemRelease"),
                             HasSubstr("done once but answered"),
                             HasSubstr("handles: "))));
}

TEST_F(SweepTest, PairsPassASoundOperation) {
  const SweepResult result = SweepToy(Bug::kNone, 1);
  EXPECT_THAT(result.problems, IsEmpty());
  EXPECT_EQ(result.driver_points, 28u);
  // 8 calls; the first one, when it fails, and the last have no next one. With
  // releases refused and done.
  EXPECT_EQ(result.pair_points, 6u * 2);
  EXPECT_THAT(result.Summary(), HasSubstr(", and 12 pairs"));
}

// What one failed call alone does not show.
TEST_F(SweepTest, PairsFindWhatIsLostOnTheWayBack) {
  EXPECT_THAT(SweepToy(Bug::kGivesUpOnTheWayBack).problems, IsEmpty());
  EXPECT_THAT(SweepToy(Bug::kGivesUpOnTheWayBack, 1).problems,
              Contains(AllOf(HasSubstr("cuMemAddressReserve, call 2 and the "
                                       "next one failed, releases done"),
                             HasSubstr("handles: "))));
}

TEST_F(SweepTest, PairsFindWhatIsNotToldOnTheWayBack) {
  EXPECT_THAT(SweepToy(Bug::kHidesOnTheWayBack).problems, IsEmpty());
  EXPECT_THAT(SweepToy(Bug::kHidesOnTheWayBack, 1).problems,
              Contains(AllOf(HasSubstr("cuMemAddressReserve, call 2 and"),
                             HasSubstr("cuMemRelease failed, and neither"))));
}

TEST_F(SweepTest, AnErrorThatNamesNoCallTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kNamesNoCall).problems,
              Contains(HasSubstr("does not name the call")));
}

TEST_F(SweepTest, AnUnknownErrorTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kAnswersUnknown).problems,
              Contains(HasSubstr("has the code UNKNOWN")));
}

TEST_F(SweepTest, AnErrorWithoutAMessageTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kSaysNothing).problems,
              Contains(HasSubstr("has no message")));
}

TEST_F(SweepTest, AnOperationThatFailsUnharmedIsNotSwept) {
  const SweepResult result =
      Sweep({.name = "broken",
             .run = [] { return absl::InternalError("never works"); },
             .faults = &faults_,
             .inventory = [] { return Fake().held; }});
  EXPECT_THAT(result.problems,
              ElementsAre(HasSubstr("first run, nothing failed")));
  EXPECT_EQ(result.driver_points + result.system_points, 0u);
}

TEST_F(SweepTest, ALeakOfAnUnharmedRunTurnsItRed) {
  const SweepResult result =
      Sweep({.name = "leaky",
             .run =
                 [this] {
                   CUmemGenericAllocationHandle h = 0;
                   driver_->cuMemCreate(&h, 1, nullptr, 0);
                   return absl::OkStatus();
                 },
             .faults = &faults_,
             .inventory = [] { return Fake().held; }});
  EXPECT_THAT(result.problems,
              ElementsAre(HasSubstr("second run, nothing failed")));
}

TEST_F(SweepTest, AnEndlessRetryIsStopped) {
  int calls = 1;
  const SweepResult result =
      Sweep({.name = "growing",
             .run =
                 [&] {
                   // One call more each time: there always is an Nth.
                   ++calls;
                   absl::Status status;
                   for (int i = 0; i < calls; ++i) {
                     CUmemGenericAllocationHandle h = 0;
                     const CUresult r = driver_->cuMemCreate(&h, 1, nullptr, 0);
                     if (r != CUDA_SUCCESS) {
                       status = driver_.Error(r, "cuMemCreate()");
                     } else {
                       driver_->cuMemRelease(h);
                     }
                   }
                   return status;
                 },
             .faults = &faults_,
             .system_calls = false,
             .inventory = [] { return Fake().held; },
             .limit = 20});
  EXPECT_THAT(result.problems,
              Contains(HasSubstr("still finds calls after 20")));
}

TEST_F(SweepTest, ExpectSweptFailsTheTestForEachProblem) {
  ::testing::TestPartResultArray failures;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::
            INTERCEPT_ONLY_CURRENT_THREAD,
        &failures);
    ExpectSwept({.name = "toy",
                 .run = [this] { return Toy(Bug::kForgetsTheFirstHandle); },
                 .faults = &faults_,
                 .system_calls = false,
                 .inventory = [] { return Fake().held; }});
  }
  ASSERT_EQ(failures.size(), 4);
  EXPECT_THAT(failures.GetTestPartResult(0).message(), HasSubstr("handles: "));
}

}  // namespace
}  // namespace vmm::testing
