// A ticket as a string, to be put into a file, an environment variable or a
// message queue.
//
// The string names the owner's endpoint as well, and holds the key to what it
// names: whoever has it and is an allowed user dials there and receives the
// handles (endpoint.h). Keep it from users who must not have the memory. Form:
// "vmmshare:2:" and URL-safe base64; no white space, no character that a shell
// or a file name minds.
#ifndef VMMSHARE_VMM_SHARE_TICKET_STRING_H_
#define VMMSHARE_VMM_SHARE_TICKET_STRING_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "vmm/share/servable.h"
#include "vmm/share/ticket.h"

namespace vmm {

struct AddressedTicket {
  Ticket ticket;
  ShareInvitation invitation;
  friend bool operator==(const AddressedTicket&,
                         const AddressedTicket&) = default;
};

// REQUIRES: the address has 1 to 1024 bytes; access is kRead or kReadWrite.
std::string FormatTicketString(const AddressedTicket& ticket);

// Total: takes any text. White space around the string is dropped, as a
// file or `cat` leaves it there. INVALID_ARGUMENT for text that is no ticket
// or was changed in any character; UNIMPLEMENTED for another version.
absl::StatusOr<AddressedTicket> ParseTicketString(absl::string_view text);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_TICKET_STRING_H_
