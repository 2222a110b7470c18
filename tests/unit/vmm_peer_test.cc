// vmm/sync/internal/peer.h: a peer is one process, whoever came to hold its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "platform/ipc/lifeline.h"
#include "tests/support/fork.h"
#include "tests/unit/vmm_protocol_samples.h"
#include "vmm/sync/internal/peer.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint16_t kBye = 9;

class PeerTest : public HandlesCheckedTest {
 protected:
  std::pair<platform::Channel, platform::Channel> ends_ =
      Must(platform::Channel::Pair());
  platform::Channel& end_ = ends_.first;
  Peer peer_{std::move(ends_.second), "the reader"};
};

TEST_F(PeerTest, OneProcessSaysAsMuchAsItLikes) {
  for (std::uint16_t type : {1, 2, 3}) {
    Must(end_.Send(type, {}, {}, Late()));
    EXPECT_EQ(Must(peer_.Receive(Late())).type, type);
  }
  Must(platform::SendLifeline(end_, Late()));
  EXPECT_EQ(peer_.ReceiveLifeline(Late(), kBye), absl::OkStatus());
  EXPECT_FALSE(peer_.ProcessHasEnded());
  EXPECT_FALSE(peer_.HasEnded(absl::InfinitePast()));
  EXPECT_THAT(peer_.Describe(), HasSubstr("is not known to have ended"));
}

TEST_F(PeerTest, AMessageInPlaceOfItsLifelineIsNone) {
  Must(end_.Send(1, {}, {}, Late()));
  EXPECT_TRUE(absl::IsDataLoss(peer_.ReceiveLifeline(Late(), kBye)));
  EXPECT_FALSE(peer_.ProcessHasEnded());
}

TEST_F(PeerTest, AGoodbyeInPlaceOfItsLifelineIsHeard) {
  if (!MayFork()) GTEST_SKIP() << "no lifeline is sent here";
  Must(end_.Send(kBye, {}, {}, Late()));
  const absl::Status gone = peer_.ReceiveLifeline(Late(), kBye);
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(gone.message(), HasSubstr("the reader gave up while it opened"));
}

TEST_F(PeerTest, AnotherProcessThatSpeaksForItIsFound) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  Must(end_.Send(1, {}, {}, Late()));
  EXPECT_EQ(Must(peer_.Receive(Late())).type, 1);
  ASSERT_EQ(
      RunInFork([this] { return end_.Send(2, {}, {}, Late()).ok() ? 0 : 1; }),
      0);
  const absl::Status other = peer_.ReceiveNow().status();
  EXPECT_TRUE(absl::IsDataLoss(other)) << other;
  EXPECT_THAT(other.message(),
              HasSubstr("another process spoke for the reader"));
}

TEST_F(PeerTest, AnotherProcesssLifelineIsNotItsOwn) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  Must(end_.Send(1, {}, {}, Late()));
  EXPECT_EQ(Must(peer_.Receive(Late())).type, 1);
  ASSERT_EQ(RunInFork([this] {
              return platform::SendLifeline(end_, Late()).ok() ? 0 : 1;
            }),
            0);
  const absl::Status other = peer_.ReceiveLifeline(Late(), kBye);
  EXPECT_TRUE(absl::IsDataLoss(other) || absl::IsNotFound(other) ||
              absl::IsUnavailable(other))
      << other;
  EXPECT_FALSE(peer_.ProcessHasEnded());  // Nothing is known of it.
}

}  // namespace
}  // namespace vmm::testing
