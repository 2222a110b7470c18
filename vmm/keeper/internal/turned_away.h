// TurnedAway: what the keeper's log says of whom it turns away; internal to
// vmm/.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_TURNED_AWAY_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_TURNED_AWAY_H_

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "platform/ipc/channel.h"

namespace vmm::keeper {

// Says it once of each user and kind of reason, and of few users: anybody may
// connect as often as they like. Thread-compatible.
class TurnedAway {
 public:
  // Users that are named, for each kind of reason.
  static constexpr std::size_t kMostUsers = 16;

  explicit TurnedAway(std::function<void(const std::string&)> log)
      : log_(std::move(log)) {}
  void Note(const platform::PeerCredentials& peer, const absl::Status& why);

 private:
  std::function<void(const std::string&)> log_;
  // By the reason's code: one that is not allowed, or there was no room.
  std::map<absl::StatusCode, std::set<std::string>> named_;
};

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_TURNED_AWAY_H_
