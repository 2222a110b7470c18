#include "vmm/keeper/internal/content.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "platform/os/machine.h"

namespace vmm::keeper {

absl::Status CheckTicketIsOfHere(const Ticket& ticket) {
  if (!IsVmm(ticket.kind)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a keeper keeps no memory that is shared as ", NameOf(ticket.kind),
        ": that ends with its owner. Put a copy in memory of cuMemCreate()"));
  }
  RETURN_IF_ERROR(FindExporter(ticket.kind).status());
  if (ticket.kind == HandleKind::kFabric) return absl::OkStatus();
  ASSIGN_OR_RETURN(const platform::Machine* const machine,
                   platform::ThisMachine());
  if (machine->boot_id == ticket.boot_id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ticket was made on host ", ticket.host_name,
      ", on another machine or before a restart; this keeper is on ",
      machine->host_name));
}

absl::Status CheckHandle(const Ticket& ticket, std::size_t index,
                         const ExportedHandle& handle) {
  const auto* os_handle = std::get_if<platform::OsHandle>(&handle);
  if (os_handle == nullptr) return absl::OkStatus();
  return platform::CheckMemoryHandle(
      *os_handle,
      ticket.host_memory_driver ? platform::MemoryBacking::kHostMemory
                                : platform::MemoryBacking::kNvidiaDriver,
      ticket.layout.SizeOf(index));
}

}  // namespace vmm::keeper
