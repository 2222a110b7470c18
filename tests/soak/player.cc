#include "tests/soak/player.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "tests/soak/part.h"

namespace vmm::testing {

Player::Player(std::string part, Life life, platform::Listener& listener,
               std::vector<std::string> args)
    : part_(std::move(part)),
      life_(life),
      listener_(&listener),
      args_(std::move(args)) {
  args_.insert(args_.begin(), listener.address());
}

void Player::Start() {
  child_ = std::make_unique<Child>(Child::Start("soak-" + part_, args_));
  orders_.emplace(Must(listener_->Accept(Late())));
}

void Player::Go() {
  const absl::Status said = Say(*orders_, "go");
  EXPECT_TRUE(said.ok()) << part_ << ": " << said;
}

void Player::Rest() {
  const absl::StatusOr<std::string> answer = Request(*orders_, "rest");
  std::uint64_t steps = 0;
  EXPECT_TRUE(answer.ok() && absl::SimpleAtoi(*answer, &steps))
      << part_ << ": " << answer.status();
  steps_ += steps;
}

void Player::Kill() {
  child_->Kill();
  EXPECT_EQ(child_->Wait(), Child::kKilled) << part_;
  child_ = nullptr;
  orders_.reset();
}

void Player::Pause() {
  child_->Stop();
  absl::SleepFor(absl::Milliseconds(100));
  child_->Continue();
}

void Player::End() {
  orders_.reset();
  EXPECT_EQ(child_->Wait(), 0) << part_;
  child_ = nullptr;
}

}  // namespace vmm::testing
