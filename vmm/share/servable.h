// Servable: what an Endpoint can serve beside published memory; and ShareKey,
// by which a peer asks for any of it.
//
// Pool is one. An endpoint knows none of them: it finds what a peer asks for by
// its key, and has it serve that peer.
#ifndef VMMSHARE_VMM_SHARE_SERVABLE_H_
#define VMMSHARE_VMM_SHARE_SERVABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_watch.h"
#include "vmm/memory/location.h"

namespace vmm {

// Who has it may have what it opens: it stands in the text that the owner hands
// out (Share::ticket()) and nowhere else. Both halves are random.
struct ShareKey {
  std::array<std::uint8_t, 8> place{};  // Finds the share, and proves nothing.
  std::array<std::uint8_t, 16> secret{};  // Compared in constant time.
  friend bool operator==(const ShareKey&, const ShareKey&) = default;
};

// What a share opens, as the text that names it says.
struct ShareInvitation {
  ShareKey key = {};
  Access access = Access::kReadWrite;  // What an importer may map it for.
  std::string address = {};            // Of the endpoint.
  friend bool operator==(const ShareInvitation&,
                         const ShareInvitation&) = default;
};

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
