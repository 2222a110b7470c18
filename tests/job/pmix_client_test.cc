// libpmix as one process uses it, on one that answers as it is told.
#include "fabric/pmix_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/job/fake_pmix.h"
#include "tests/job/pmix_rank.h"
#include "tests/support/must.h"

namespace vmm::testing {
namespace {

namespace pmix = fabric::pmix;
using fabric::Bytes;
using fabric::PmixClient;
using ::testing::AllOf;
using ::testing::HasSubstr;

// For what is not answered at all.
// Time for what comes before that for which nothing is answered.
Deadline Soon() { return Deadline::In(absl::Seconds(1)); }

class PmixClientTest : public ::testing::Test {
 protected:
  PmixClientTest() { pmix_ = FakePmix(); }

  static absl::StatusOr<std::shared_ptr<PmixClient>> Join(Deadline deadline) {
    return PmixClient::Join(VMMSHARE_TEST_PMIX, deadline);
  }
  static std::shared_ptr<PmixClient> Join() { return Must(Join(Late())); }

  FakePmix& pmix_ = ThePmix();
};

TEST_F(PmixClientTest, DescribesTheLibraryThatItJoinedBy) {
  const auto client = Join();
  EXPECT_EQ(client->origin(), VMMSHARE_TEST_PMIX);
  EXPECT_EQ(client->Describe(),
            std::string("OpenPMIx 4.2.2 (") + VMMSHARE_TEST_PMIX + ")");
  EXPECT_TRUE(client->ShowsWhatWasPutAgain());
  pmix_.version = "OpenPMIx 5.0.7";
  EXPECT_EQ(client->Describe(),
            std::string("OpenPMIx 5.0.7 (") + VMMSHARE_TEST_PMIX + ")");
  EXPECT_FALSE(client->ShowsWhatWasPutAgain());
}

TEST_F(PmixClientTest, GivesEachOfItsResultsACode) {
  for (const auto& [result, code] :
       {std::pair{pmix::kErrTimeout, absl::StatusCode::kDeadlineExceeded},
        {pmix::kErrUnreachable, absl::StatusCode::kUnavailable},
        {pmix::kErrCommFailure, absl::StatusCode::kUnavailable},
        {pmix::kErrLostConnection, absl::StatusCode::kUnavailable},
        {pmix::kErrBadParameter, absl::StatusCode::kInvalidArgument},
        {pmix::kErrOutOfResource, absl::StatusCode::kResourceExhausted},
        {pmix::kErrNoMemory, absl::StatusCode::kResourceExhausted},
        {pmix::kErrNotFound, absl::StatusCode::kNotFound},
        {pmix::kErrProcEntryNotFound, absl::StatusCode::kNotFound},
        {pmix::kErrNotSupported, absl::StatusCode::kUnimplemented},
        {-1, absl::StatusCode::kInternal}}) {
    pmix_.init = result;
    const absl::Status status = Join(Late()).status();
    EXPECT_EQ(status.code(), code) << result;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("PMIx_Init() answered IN-ITS-WORDS (" +
                                std::to_string(result) + ")"),
                      HasSubstr("The launcher's server must be reachable")));
  }
}

TEST_F(PmixClientTest, LeavesAnInitThatHangsBehindAtTheDeadline) {
  struct Gate {
    std::promise<void> reached;
    std::promise<void> open;
  };
  const auto gate = std::make_shared<Gate>();
  pmix_.in_init = [gate] {
    gate->reached.set_value();
    gate->open.get_future().wait();
  };
  const absl::Status status = Join(Soon()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("PMIx_Init() did not end by the deadline"));
  // What it writes in the end nobody looks at, and it is there.
  gate->reached.get_future().wait();
  gate->open.set_value();
}

TEST_F(PmixClientTest, LearnsOfItsJobOnce) {
  pmix_.rank = 2;
  pmix_.size = 4;
  pmix_.local_rank = 1;
  const auto client = Join();
  Must(client->Learn(Late()));
  EXPECT_EQ(client->job(), "job");
  EXPECT_EQ(client->rank(), 2);
  EXPECT_EQ(client->size(), 4);
  EXPECT_EQ(client->local_rank(), 1);
  EXPECT_EQ(pmix_.gets, 2);
  pmix_.get.asked = pmix::kErrUnreachable;
  Must(client->Learn(Late()));
  EXPECT_EQ(pmix_.gets, 2);
}

TEST_F(PmixClientTest, RefusesAJobThatCannotBe) {
  const auto learn = [this](const FakePmix& job) {
    pmix_ = job;
    return Join()->Learn(Late());
  };
  FakePmix beyond;
  beyond.rank = beyond.size = 3;
  FakePmix huge;
  huge.size = UINT32_MAX;
  FakePmix without_size;
  without_size.size_type = pmix::kBool;
  FakePmix without_local_rank;
  without_local_rank.local_rank_type = pmix::kUint32;
  for (const FakePmix& job : {beyond, huge, without_size, without_local_rank}) {
    const absl::Status status = learn(job);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the PMIx server says that this is rank "));
  }
  EXPECT_THAT(std::string(learn(beyond).message()),
              HasSubstr("rank 3 of 3, local rank 0"));
}

// As one does that a rank started, and which has its environment.
TEST_F(PmixClientTest, ASecondProcessOfARankIsToldThatOneJoins) {
  pmix_.rank = 3;
  pmix_.size = 4;
  for (const pmix::Status answer :
       {pmix::kErrNotFound, pmix::kErrProcEntryNotFound}) {
    pmix_.local_rank_answer = answer;
    const absl::Status status = Join()->Learn(Late());
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("PMIx_Get(rank 3, pmix.lrank) answered "
                                "IN-ITS-WORDS (" +
                                std::to_string(answer) + ")"),
                      HasSubstr("another process has joined as rank 3"),
                      HasSubstr("CallbackExchange")));
  }
}

TEST_F(PmixClientTest, SaysWhichQuestionWasNotAnswered) {
  const auto client = Join();
  pmix_.get.asked = pmix::kErrUnreachable;
  EXPECT_EQ(client->Learn(Late()).message(),
            "PMIx_Get(job, pmix.job.size) answered IN-ITS-WORDS (-25)");
  const absl::Status refused = client->Get(3, "word", Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "PMIx_Get(rank 3, word) answered IN-ITS-WORDS (-25)");
  pmix_.get.asked = pmix::kSuccess;
  EXPECT_TRUE(absl::IsNotFound(client->Get(3, "word", Late()).status()));
  pmix_.get.answer = pmix::kErrTimeout;
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(client->Get(3, "word", Late()).status()));
}

TEST_F(PmixClientTest, AnAnswerThatComesAfterTheDeadlineFindsItsQuestion) {
  const auto client = Join();
  pmix_.get.answer.reset();
  const absl::Status status =
      client->Get(3, "a-word-of-some-length", Soon()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(),
            "PMIx_Get(rank 3, a-word-of-some-length) did not end by the "
            "deadline");
  ASSERT_EQ(pmix_.held.size(), 1u);
  pmix_.held[0]();
  EXPECT_EQ(pmix_.key_when_called_back, "a-word-of-some-length");
}

TEST_F(PmixClientTest, RefusesAValueThatIsNotBytes) {
  const auto client = Join();
  pmix_.values[{1, "word"}] = "abc";
  EXPECT_EQ(Must(client->Get(1, "word", Late())), (Bytes{'a', 'b', 'c'}));
  for (const std::uint16_t type : {pmix::kUint32, pmix::kUint16, pmix::kBool}) {
    pmix_.value_type = type;
    const absl::Status status = client->Get(1, "word", Late()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_EQ(status.message(),
              "PMIx_Get(rank 1, word) answered a value of type " +
                  std::to_string(type) + "; expected bytes");
  }
}

TEST_F(PmixClientTest, PutsAllValuesOrSaysWhichCallFailed) {
  const auto client = Join();
  Must(client->Put({{"a", {1, 2}}, {"b", {}}}, Late()));
  EXPECT_EQ(pmix_.values.at({0, "a"}), "\x01\x02");
  EXPECT_EQ(pmix_.values.at({0, "b"}), "");
  EXPECT_EQ(pmix_.commits, 1);
  // Peers see nothing of a part.
  pmix_.put = pmix::kErrNoMemory;
  const absl::Status status = client->Put({{"c", {3}}}, Late());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "PMIx_Put(c) answered IN-ITS-WORDS (-32)");
  EXPECT_EQ(pmix_.commits, 1);
  pmix_.put = pmix::kSuccess;
  pmix_.commit = pmix::kErrLostConnection;
  EXPECT_TRUE(absl::IsUnavailable(client->Put({{"d", {4}}}, Late())));
  EXPECT_EQ(client->Put({}, Late()).message(),
            "PMIx_Put() answered IN-ITS-WORDS (-61)");
}

TEST_F(PmixClientTest, AFenceEndsAsItIsAnswered) {
  const auto client = Join();
  int late = 0;
  const auto fence = [&] {
    return client->Fence(
        absl::Seconds(10), [&late] { ++late; }, Late());
  };
  Must(fence());
  // Done at once: it does not call back.
  pmix_.fence.asked = pmix::kOperationSucceeded;
  Must(fence());
  pmix_.fence.asked = pmix::kErrNotSupported;
  EXPECT_TRUE(absl::IsUnimplemented(fence()));
  pmix_.fence.asked = pmix::kSuccess;
  pmix_.fence.answer = pmix::kErrLostConnection;
  EXPECT_EQ(fence().message(), "PMIx_Fence() answered IN-ITS-WORDS (-61)");
  EXPECT_EQ(late, 0);
}

TEST_F(PmixClientTest, AFenceThatIsLateSaysSoOnceAndGoesOn) {
  const auto client = Join();
  pmix_.fence.answer.reset();
  int late = 0;
  Must(client->Fence(
      absl::Milliseconds(1),
      [&] {
        ++late;
        pmix_.held[0]();
      },
      Late()));
  EXPECT_EQ(late, 1);
  const absl::Status status = client->Fence(
      absl::Milliseconds(1), [&late] { ++late; }, Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(), "PMIx_Fence() did not end by the deadline");
  EXPECT_EQ(late, 2);
  pmix_.held[1]();  // To nobody's harm.
}

// A server that waits on when its processes leave may hang at the end of the job.
TEST_F(PmixClientTest, TheServersWaitForAFenceEndsFirst) {
  const auto client = Join();
  const auto timeout_of_fence = [&](absl::Duration time) {
    Must(client->Fence(
        time, [] {}, Deadline::In(time)));
    return pmix_.timeout;
  };
  EXPECT_EQ(timeout_of_fence(absl::Seconds(10.9)), 10);
  EXPECT_EQ(timeout_of_fence(absl::Seconds(2.9)), 2);
  // In whole seconds that would be half of the time.
  EXPECT_EQ(timeout_of_fence(absl::Seconds(1.9)), std::nullopt);
  EXPECT_EQ(timeout_of_fence(absl::Hours(24) * 365 * 100), std::nullopt);
  EXPECT_EQ(timeout_of_fence(absl::InfiniteDuration()), std::nullopt);

  // Those would tell a part of their ranks that all is well, or were not tried.
  for (const char* version :
       {"OpenPMIx 4.2.3", "OpenPMIx 5.0.1a1", "OpenPMIx 4.0.0", "PMIx 3.2.3"}) {
    pmix_.version = version;
    EXPECT_EQ(timeout_of_fence(absl::Seconds(10.9)), std::nullopt) << version;
  }

  pmix_.fence.answer = pmix::kErrTimeout;
  const absl::Status status = client->Fence(
      absl::Seconds(10), [] {}, Late());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(),
            "PMIx_Fence() did not end by the deadline: "
            "PMIx_Fence() answered IN-ITS-WORDS (-24)");
}

TEST_F(PmixClientTest, LeavesItsJob) {
  const auto client = Join();
  int finalized = 0;
  pmix_.in_finalize = [&finalized] { ++finalized; };
  client->Leave(Late());
  EXPECT_EQ(finalized, 1);
}

}  // namespace
}  // namespace vmm::testing
