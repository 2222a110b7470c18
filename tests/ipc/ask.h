// Asking an endpoint by hand, as an importer does.
#ifndef VMMSHARE_TESTS_IPC_ASK_H_
#define VMMSHARE_TESTS_IPC_ASK_H_

#include <string>

#include "absl/strings/match.h"
#include "platform/ipc/channel.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {

// What a Share::ticket() says, of memory or of a pool.
inline ShareInvitation InvitationIn(const std::string& ticket) {
  return absl::StartsWith(ticket, "vmmshare-pool:")
             ? Must(ParsePoolString(ticket)).invitation
             : Must(ParseTicketString(ticket)).invitation;
}

// Asks for what `ticket` opens.
inline void Ask(platform::Channel& owner, const std::string& ticket) {
  Must(protocol::SendOpen(owner, {InvitationIn(ticket).key}, Late()));
}
inline void AskAndBeGranted(platform::Channel& owner,
                            const std::string& ticket) {
  Ask(owner, ticket);
  Must(protocol::ReceiveGranted(owner, Late()));
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_ASK_H_
