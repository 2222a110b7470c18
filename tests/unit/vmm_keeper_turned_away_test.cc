#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "vmm/keeper/internal/turned_away.h"

namespace vmm::keeper {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class KeeperTurnedAway : public ::testing::Test {
 protected:
  static platform::PeerCredentials Peer(int user, int process) {
    return {platform::UserId(std::to_string(user)), process};
  }

  std::vector<std::string> log_;
  TurnedAway turned_away_{
      [this](const std::string& line) { log_.push_back(line); }};
  const absl::Status not_allowed_ = absl::PermissionDeniedError("not allowed");
  const absl::Status no_room_ = absl::ResourceExhaustedError("no room");
};

TEST_F(KeeperTurnedAway, EachUserIsNamedOnceForEitherReason) {
  turned_away_.Note(Peer(1000, 71), not_allowed_);
  turned_away_.Note(Peer(1000, 72), not_allowed_);
  turned_away_.Note(Peer(1000, 73), no_room_);
  turned_away_.Note(Peer(1001, 74), not_allowed_);
  turned_away_.Note(Peer(1000, 75), no_room_);
  EXPECT_THAT(log_,
              ElementsAre(AllOf(HasSubstr("process 71 of user 1000 is turned"),
                                HasSubstr(": not allowed")),
                          AllOf(HasSubstr("process 73 of user 1000 is turned"),
                                HasSubstr(": no room")),
                          HasSubstr("process 74 of user 1001 is turned")));
}

TEST_F(KeeperTurnedAway, FewUsersAreNamedAndItIsSaidThatThereAreMore) {
  constexpr int kMost = TurnedAway::kMostUsers;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3 * kMost; ++i) {
      turned_away_.Note(Peer(1000 + i, 1), not_allowed_);
    }
  }
  ASSERT_EQ(log_.size(), TurnedAway::kMostUsers + 1);
  EXPECT_THAT(log_.back(), HasSubstr("no more are named"));
  // Strangers do not hide whom there was no room for.
  turned_away_.Note(Peer(5, 1), no_room_);
  EXPECT_THAT(log_.back(), HasSubstr("user 5 is turned away"));
}

}  // namespace
}  // namespace vmm::keeper
