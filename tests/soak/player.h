// A process that plays a part of the soak (part.h), as the test sees it.
#ifndef VMMSHARE_TESTS_SOAK_PLAYER_H_
#define VMMSHARE_TESTS_SOAK_PLAYER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/ipc/channel.h"
#include "tests/support/child.h"
#include "tests/support/process_usage_posix.h"

namespace vmm::testing {

class Player {
 public:
  enum class Life {
    kSteady,  // Lives through all rounds.
    kMortal,  // Is killed, in rounds and at the end of each.
  };

  // Starts nothing yet. `args` follow the address of `listener`, at which its
  // process calls for orders.
  Player(std::string part, Life life, platform::Listener& listener,
         std::vector<std::string> args);
  Player(Player&&) = default;

  const std::string& part() const { return part_; }
  Life life() const { return life_; }

  void Start();
  void Go();
  // Returns once it has given back all that it had.
  void Rest();
  // The test fails if it has ended by itself.
  void Kill();
  // Stands still for a moment.
  void Pause();
  // It ends well, and with it its process.
  void End();

  // Since the test began; not of those that were killed.
  std::uint64_t steps() const { return steps_; }
  ProcessUsage Uses() const { return UsageOf(child_->pid()); }

 private:
  std::string part_;
  Life life_;
  platform::Listener* listener_;
  std::vector<std::string> args_;
  std::unique_ptr<Child> child_;
  std::optional<platform::Channel> orders_;
  std::uint64_t steps_ = 0;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SOAK_PLAYER_H_
