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
      "the peer is ", Describe(peer), ", and only these users may connect: ",
      allowed, ". From C++ others can be named in PeerPolicy::also_allowed."));
}

std::string Describe(const PeerCredentials& peer) {
  return absl::StrCat("process ", peer.pid, " of user ", peer.user.text());
}

absl::Status HungUpError(const PeerCredentials& peer) {
  return absl::UnavailableError(
      absl::StrCat("the peer, ", Describe(peer), ", hung up"));
}

absl::Status ClosedError() {
  return absl::UnavailableError(
      "this channel is closed: it was closed here, or after an error; connect "
      "anew");
}

}  // namespace vmm::platform
