// Servable: what an Endpoint can serve beside published memory.
//
// Pool is one. An endpoint knows none of them: it finds what a peer asks for by
// its key, and has it serve that peer.
#ifndef VMMSHARE_VMM_SHARE_SERVABLE_H_
#define VMMSHARE_VMM_SHARE_SERVABLE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "vmm/share/ticket.h"

namespace vmm::platform {
class PeerWatch;
}  // namespace vmm::platform

namespace vmm {

// What serves the peers that have come for one share. Thread-safe: each peer is
// served on a thread of its own. May outlive what it is of, then serves nobody.
class PeerService {
 public:
  virtual ~PeerService() = default;

  // The text by which peers find `invitation` and know what it is of.
  virtual std::string Format(const ShareInvitation& invitation) const = 0;

  // Serves one peer on its connection until it leaves or `cancel`. What it was
  // given is its own until `watch` proves its end. A peer that takes longer
  // than `timeout` over one message is disconnected.
  virtual absl::Status ServePeer(platform::Channel& channel,
                                 platform::PeerWatch watch,
                                 absl::Duration timeout,
                                 const platform::CancelEvent& cancel) = 0;
  // Lets go of what is kept of peers that have ended; whether anything is kept
  // of others that have left.
  virtual bool Tidy() = 0;
};

class Servable {
 public:
  virtual ~Servable() = default;

  // Makes ready what peers will be given. For Endpoint::Serve(), which returns
  // its errors.
  virtual absl::StatusOr<std::shared_ptr<PeerService>> MakeService() = 0;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_SERVABLE_H_
