#include <cstring>
#include <unordered_map>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/pool.h"
#include "vmm/pool/pool.h"

using vmm::c::Call;
using vmm::c::CheckGiven;
using vmm::c::Clear;

vmmshare_status vmmshare_tickets_around(
    const std::uint64_t* addresses, std::size_t count, std::uint8_t* tickets,
    std::uint32_t* which, std::uint64_t* offsets, std::size_t* ticket_count,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(ticket_count, "ticket_count"));
    if (count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(CheckGiven(addresses, "addresses"));
    RETURN_IF_ERROR(CheckGiven(tickets, "tickets"));
    RETURN_IF_ERROR(CheckGiven(which, "which"));
    RETURN_IF_ERROR(CheckGiven(offsets, "offsets"));
    std::unordered_map<std::uint64_t, std::uint32_t> known;
    vmm::PoolBlock last;  // What comes next is mostly in the same block.
    std::uint32_t number = 0;
    std::size_t found_so_far = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (addresses[i] - last.address >= last.size) {
        ASSIGN_OR_RETURN(const vmm::ExportedBlock found,
                         vmm::ExportAround(addresses[i]));
        last = found.block;
        const auto [entry, is_new] = known.try_emplace(
            last.address, static_cast<std::uint32_t>(found_so_far));
        number = entry->second;
        if (is_new) {
          const vmm::PoolTicketBytes bytes =
              vmm::EncodePoolTicket(found.ticket);
          std::memcpy(tickets + found_so_far * bytes.size(), bytes.data(),
                      bytes.size());
          ++found_so_far;
        }
      }
      which[i] = number;
      offsets[i] = addresses[i] - last.address;
    }
    *ticket_count = found_so_far;
    return absl::OkStatus();
  });
}
