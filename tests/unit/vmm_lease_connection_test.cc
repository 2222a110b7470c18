// vmm/share/internal/lease_connection.h: what an importer and its owner say of
// leases, from an owner that says anything; and whose leases they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/fork.h"
#include "tests/unit/vmm_protocol_samples.h"
#include "vmm/share/internal/lease_connection.h"
#include "vmm/share/internal/peer_limits.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MemoryId Id(std::uint64_t number) {
  MemoryId id;
  id.number = number;
  return id;
}

class LeaseConnectionTest : public HandlesCheckedTest {
 protected:
  std::vector<MemoryId> Returned() {
    return Must(protocol::DecodeReturn(Must(owner_.Receive(Late()))));
  }
  void Recall(const std::vector<MemoryId>& ids, absl::Duration within) {
    Must(protocol::SendRecall(owner_, ids, within, Late()));
  }

  std::pair<platform::Channel, platform::Channel> ends_ =
      Must(platform::Channel::Pair());
  platform::Channel& owner_ = ends_.first;
  // Has one twice and another once.
  LeaseConnection importer_{std::move(ends_.second), {Id(1), Id(1), Id(2)}};
};

TEST_F(LeaseConnectionTest, ARecallIsOfWhatIsHeldHere) {
  const absl::Time before = absl::Now();
  Recall({Id(3), Id(1)}, absl::Minutes(1));
  const LeaseStatus recalled = importer_.StatusOf(Id(1));
  EXPECT_EQ(recalled.connection, absl::OkStatus());
  ASSERT_TRUE(recalled.return_by.has_value());
  EXPECT_GE(*recalled.return_by, before + absl::Minutes(1));
  EXPECT_LE(*recalled.return_by, absl::Now() + absl::Minutes(1));
  for (const std::uint64_t number : {2, 3}) {
    const LeaseStatus other = importer_.StatusOf(Id(number));
    EXPECT_EQ(other.connection, absl::OkStatus());
    EXPECT_FALSE(other.return_by.has_value()) << number;
  }
}

TEST_F(LeaseConnectionTest, EachIsReturnedAndTheLastHangsUp) {
  Recall({Id(1)}, absl::Minutes(1));
  importer_.Return(Id(1));
  EXPECT_THAT(Returned(), ElementsAre(Id(1)));
  EXPECT_TRUE(importer_.StatusOf(Id(1)).return_by.has_value());
  importer_.Return(Id(1));
  EXPECT_THAT(Returned(), ElementsAre(Id(1)));
  EXPECT_FALSE(importer_.StatusOf(Id(1)).return_by.has_value());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(owner_.Receive(absl::InfinitePast()).status()));
  importer_.Return(Id(2));
  EXPECT_THAT(Returned(), ElementsAre(Id(2)));
  EXPECT_EQ(owner_.WaitForHangUp(Late()), absl::OkStatus());
}

TEST_F(LeaseConnectionTest, AnOwnerThatSendsSomethingElseIsHungUpOn) {
  Recall({Id(1)}, absl::Minutes(1));
  Must(owner_.Send(protocol::kGranted, {}, {}, Late()));
  for (int i = 0; i < 2; ++i) {
    const LeaseStatus status = importer_.StatusOf(Id(1));
    EXPECT_TRUE(absl::IsDataLoss(status.connection)) << status.connection;
    EXPECT_THAT(status.connection.message(), HasSubstr("the owner of the"));
    EXPECT_TRUE(status.return_by.has_value());  // It was said before.
  }
  EXPECT_EQ(owner_.WaitForHangUp(Late()), absl::OkStatus());
  importer_.Return(Id(1));  // Nobody is there to be told.
}

// The leases are its parent's.
TEST_F(LeaseConnectionTest, AForkedChildHasNoneAndReturnsNone) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  EXPECT_EQ(RunInFork([this] {
              const LeaseStatus status = importer_.StatusOf(Id(1));
              importer_.Return(Id(1));
              const bool is_right =
                  absl::IsFailedPrecondition(status.connection) &&
                  !status.return_by.has_value();
              return is_right ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(owner_.Receive(absl::InfinitePast()).status()));
  EXPECT_EQ(importer_.StatusOf(Id(1)).connection, absl::OkStatus());
  importer_.Return(Id(1));
  EXPECT_THAT(Returned(), ElementsAre(Id(1)));
}

TEST(LeaseText, OfAHolderInAHiddenNamespaceHasNoNumber) {
  Lease lease;
  lease.holder = {platform::UserId("1000"), 4711};
  lease.size = 65536;
  lease.since = absl::Now();
  EXPECT_THAT(lease.Describe(),
              HasSubstr("65536 bytes, process 4711 of user 1000"));
  lease.holder.pid = 0;
  EXPECT_THAT(lease.Describe(),
              HasSubstr("65536 bytes, a process of another namespace of user"));
}

TEST(PeerTally, OthersCountForAllAlone) {
  const platform::UserId mine("1000");
  PeerTally tally({mine, 5});
  tally.Count({platform::UserId("1001"), 5});
  tally.Count({platform::UserId("1001"), 6});
  EXPECT_EQ(tally.Check({.all = 3, .of_user = 1, .of_process = 1}, "it", "x"),
            absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(
      tally.Check({.all = 2, .of_user = 1, .of_process = 1}, "it", "x")));
  tally.Count({mine, 6});
  EXPECT_EQ(tally.Check({.all = 9, .of_user = 2, .of_process = 1}, "it", "x"),
            absl::OkStatus());
  tally.Count({mine, 5});
  EXPECT_TRUE(absl::IsResourceExhausted(
      tally.Check({.all = 9, .of_user = 9, .of_process = 1}, "it", "x")));
}

// Those of hidden namespaces all have the number 0.
TEST(PeerTally, WhoseNumberIsHiddenAreNotOneProcess) {
  PeerTally tally({platform::UserId("1000"), 0});
  for (int i = 0; i < 5; ++i) tally.Count({platform::UserId("1000"), 0});
  EXPECT_EQ(tally.Check({.all = 9, .of_user = 9, .of_process = 1}, "it", "x"),
            absl::OkStatus());
}

}  // namespace
}  // namespace vmm::testing
