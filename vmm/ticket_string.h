// A ticket as a string, to be put into a file, an environment variable or a
// message queue.
//
// The string names the owner's endpoint as well. Whoever opens it dials there,
// is authenticated, and receives the handles (endpoint.h); the string alone
// gives no access. Form: "vmmshare:1:" and URL-safe base64; no white space,
// no character that a shell or a file name minds.
#ifndef VMMSHARE_VMM_TICKET_STRING_H_
#define VMMSHARE_VMM_TICKET_STRING_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "vmm/pool_ticket.h"
#include "vmm/ticket.h"

namespace vmm {

struct AddressedTicket {
  Ticket ticket;
  std::string address;  // Of the owner's endpoint.
  friend bool operator==(const AddressedTicket&,
                         const AddressedTicket&) = default;
};

// REQUIRES: the address has 1 to 1024 bytes.
std::string FormatTicketString(const AddressedTicket& ticket);

// Total: any text is answered. White space around the string is dropped, as a
// file or `cat` leaves it there. INVALID_ARGUMENT for text that is no ticket
// or was changed in any character; UNIMPLEMENTED for a newer version.
absl::StatusOr<AddressedTicket> ParseTicketString(absl::string_view text);

// The same for a sharing domain of a pool: what ImportedPool::Subscribe() is
// given. It begins with "vmmshare-pool:1:".
struct AddressedPool {
  DomainId domain;
  std::string address;  // Of the owner's endpoint.
  friend bool operator==(const AddressedPool&, const AddressedPool&) = default;
};
std::string FormatPoolString(const AddressedPool& pool);
absl::StatusOr<AddressedPool> ParsePoolString(absl::string_view text);

}  // namespace vmm

#endif  // VMMSHARE_VMM_TICKET_STRING_H_
