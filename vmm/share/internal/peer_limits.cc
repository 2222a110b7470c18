#include "vmm/share/internal/peer_limits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace vmm {

PeerLimits PeerLimits::WithDefaults(const platform::PeerPolicy& peers) const {
  PeerLimits limits = *this;
  if (of_user == 0) {
    limits.of_user = peers.also_allowed.empty()
                         ? all
                         : std::max<std::size_t>(1, all - all / 4);
  }
  if (of_process == 0) {
    limits.of_process = std::max<std::size_t>(1, all - all / 2);
  }
  return limits;
}

PeerTally::PeerTally(platform::PeerCredentials asking)
    : asking_(std::move(asking)) {}

void PeerTally::Count(const platform::PeerCredentials& one) {
  ++all_;
  if (one.user != asking_.user) return;
  ++of_user_;
  // Those of hidden namespaces all have the number 0.
  if (one.pid == asking_.pid && one.pid != 0) ++of_process_;
}

absl::Status PeerTally::Check(const PeerLimits& limits, absl::string_view owner,
                              absl::string_view things) const {
  if (all_ >= limits.all) {
    return absl::ResourceExhaustedError(
        absl::StrCat(owner, " has ", all_, " ", things, ", its limit"));
  }
  if (of_user_ >= limits.of_user) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", asking_.user.text(), " has ", of_user_, " ",
                     things, " of ", owner, "'s, the limit of one user"));
  }
  if (of_process_ >= limits.of_process) {
    return absl::ResourceExhaustedError(
        absl::StrCat("process ", asking_.pid, " has ", of_process_, " ", things,
                     " of ", owner, "'s, the limit of one process"));
  }
  return absl::OkStatus();
}

}  // namespace vmm
