// PeerLimits: how much of something peers may have at once; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_PEER_LIMITS_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_PEER_LIMITS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "platform/ipc/channel.h"

namespace vmm {

struct PeerLimits {
  std::size_t all = 0;
  std::size_t of_user = 0;     // 0: as WithDefaults() says.
  std::size_t of_process = 0;  // 0: the same.

  // A process has half of all at most; a user three quarters where `peers`
  // allows others than this one.
  PeerLimits WithDefaults(const platform::PeerPolicy& peers) const;
};

// What is there when one more is asked for. Thread-compatible.
class PeerTally {
 public:
  explicit PeerTally(platform::PeerCredentials asking);
  void Count(const platform::PeerCredentials& one);
  // OK when there is room for one more. RESOURCE_EXHAUSTED says which limit of
  // the `things` of `owner`, "the owner", is reached.
  absl::Status Check(const PeerLimits& limits, absl::string_view owner,
                     absl::string_view things) const;

 private:
  const platform::PeerCredentials asking_;
  std::size_t all_ = 0;
  std::size_t of_user_ = 0;
  std::size_t of_process_ = 0;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_PEER_LIMITS_H_
