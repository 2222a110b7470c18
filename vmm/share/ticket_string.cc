#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/share/internal/addressed_string.h"
#include "vmm/share/ticket.h"

namespace vmm {
namespace {

constexpr AddressedForm kForm = {"vmmshare:", "ticket", kTicketBytes};

}  // namespace

std::string FormatTicketString(const AddressedTicket& ticket) {
  return FormatAddressed(kForm, EncodeTicket(ticket.ticket), ticket.invitation);
}

absl::StatusOr<AddressedTicket> ParseTicketString(absl::string_view text) {
  ASSIGN_OR_RETURN(AddressedString parsed, ParseAddressed(kForm, text));
  ASSIGN_OR_RETURN(Ticket ticket, DecodeTicket(parsed.body));
  return AddressedTicket{std::move(ticket), std::move(parsed.invitation)};
}

}  // namespace vmm
