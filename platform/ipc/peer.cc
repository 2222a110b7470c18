#include "platform/ipc/peer.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace vmm::platform {

bool IsListed(const UserId& user, const PeerPolicy& policy) {
  return user == CurrentUser() ||
         absl::c_linear_search(policy.also_allowed, user);
}

absl::Status CheckListed(const PeerCredentials& peer,
                         const PeerPolicy& policy) {
  if (IsListed(peer.user, policy)) return absl::OkStatus();
  std::string allowed = CurrentUser().text();
  for (const UserId& user : policy.also_allowed) {
    absl::StrAppend(&allowed, ", ", user.text());
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "the peer is ", Describe(peer),
      ", and only these users may connect: ", allowed,
      ". Others are named from C++ in PeerPolicy::also_allowed, to `vmmshare "
      "keep` by --allow-user."));
}

std::string Describe(const PeerCredentials& peer) {
  return absl::StrCat("process ", peer.pid, " of user ", peer.user.text());
}

absl::Status Listener::Admit(const PeerCredentials& peer) const {
  absl::Status allowed = CheckPeer(peer, policy_);
  if (!allowed.ok() && tell_) tell_(peer, allowed);
  return allowed;
}

absl::Status HungUpError(const Channel& channel) {
  const PeerCredentials peer = channel.peer();
  std::string text = absl::StrCat("the peer, ", Describe(peer), ", hung up");
  const UserId self = CurrentUser();
  if (channel.speakers() == 0 && peer.user != self) {
    absl::StrAppend(
        &text, " before anything came from it. It may not allow user ",
        self.text(),
        ", of which this process is: a keeper allows that one if it is started "
        "with --allow-user=",
        self.text(),
        ", another program if its PeerPolicy::also_allowed names it "
        "(docs/security.md)");
  }
  return absl::UnavailableError(text);
}

absl::Status ClosedError() {
  return absl::UnavailableError(
      "this channel is closed: it was closed here, or after an error; connect "
      "anew");
}

}  // namespace vmm::platform
