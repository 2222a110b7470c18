#include "vmm/keeper/internal/turned_away.h"

#include "absl/strings/str_cat.h"

namespace vmm::keeper {

void TurnedAway::Note(const platform::PeerCredentials& peer,
                      const absl::Status& why) {
  std::set<std::string>& named = named_[why.code()];
  // The one beyond stands for all that are not named.
  if (named.size() > kMostUsers || !named.insert(peer.user.text()).second) {
    return;
  }
  const std::string user = absl::StrCat("user ", peer.user.text());
  log_(named.size() <= kMostUsers
           ? absl::StrCat("process ", peer.pid, " of ", user,
                          " is turned away, which is said once of a user: ",
                          why.message())
           : absl::StrCat("more users than ", kMostUsers,
                          " were turned away for such a reason, and no more "
                          "are named: ",
                          why.message()));
}

}  // namespace vmm::keeper
