#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "vmm/keeper/internal/troubles.h"

namespace vmm::keeper {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class KeeperTroubles : public ::testing::Test {
 protected:
  std::vector<std::string> log_;
  Troubles troubles_{[this](const std::string& line) { log_.push_back(line); }};
  const Troubles::Clock::time_point start_ = Troubles::Clock::now();
  const absl::Status no_descriptor_ =
      absl::ResourceExhaustedError("accept4() failed with EMFILE");
};

TEST_F(KeeperTroubles, OneThatLastsIsSaidOnceAMinuteWithHowOften) {
  for (int i = 0; i < 3000; ++i) {
    troubles_.Note(no_descriptor_, start_ + i * std::chrono::milliseconds(20));
  }
  EXPECT_THAT(log_, ElementsAre("accept4() failed with EMFILE"));
  troubles_.Note(no_descriptor_, start_ + Troubles::kQuiet);
  troubles_.Note(no_descriptor_, start_ + 3 * Troubles::kQuiet);
  EXPECT_THAT(log_, ElementsAre("accept4() failed with EMFILE",
                                AllOf(HasSubstr("accept4() failed with EMFILE"),
                                      HasSubstr("2999 times more")),
                                "accept4() failed with EMFILE"));
}

TEST_F(KeeperTroubles, OneDoesNotHideAnother) {
  troubles_.Note(no_descriptor_, start_);
  troubles_.Note(absl::PermissionDeniedError("refused"), start_);
  EXPECT_THAT(log_, ElementsAre("accept4() failed with EMFILE", "refused"));
}

}  // namespace
}  // namespace vmm::keeper
