#include "vmm/transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "vmm/exporter.h"

namespace vmm {
namespace protocol {
namespace {

// The first kind of Exporters() that the memory has: the system's own kind
// stands before fabric handles there.
absl::StatusOr<const Exporter*> ExporterFor(const Shareable& memory) {
  for (const Exporter& exporter : Exporters()) {
    if (memory.memory().kinds().Has(exporter.kind)) return &exporter;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "memory ", memory.id().ToString(), " was created private (handle kinds: ",
      memory.memory().kinds().ToString(),
      ") and cannot be shared. Name a kind in AllocationOptions::sharing: "
      "kinds cannot be added later."));
}

}  // namespace

absl::StatusOr<Outgoing> MakeOutgoing(const Shareable& memory) {
  absl::StatusOr<const Exporter*> exporter = ExporterFor(memory);
  if (!exporter.ok()) return exporter.status();
  absl::StatusOr<Ticket> ticket = MakeTicket(memory, (*exporter)->kind);
  if (!ticket.ok()) return ticket.status();
  return Outgoing{*std::move(ticket),
                  [memory, make = (*exporter)->make](std::size_t chunk) {
                    return make(memory.device().driver(),
                                memory.memory().handle(chunk));
                  }};
}

}  // namespace protocol

absl::Status SendAllocations(platform::Channel& channel,
                             absl::Span<const Shareable> memory,
                             absl::Time deadline) {
  if (memory.empty() || memory.size() > protocol::kMaxAllocations) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory.size(), " allocations to send; expected 1 to ",
                     protocol::kMaxAllocations));
  }
  std::vector<protocol::Outgoing> outgoing;
  outgoing.reserve(memory.size());
  for (const Shareable& one : memory) {
    absl::StatusOr<protocol::Outgoing> made = protocol::MakeOutgoing(one);
    if (!made.ok()) {
      // The importer waits already: it must not wait for its deadline.
      protocol::SendError(channel, protocol::kAbort, made.status(), deadline)
          .IgnoreError();
      return made.status();
    }
    outgoing.push_back(*std::move(made));
  }
  return protocol::SendAll(channel, outgoing, deadline);
}

absl::Status SendAllocation(platform::Channel& channel, const Shareable& memory,
                            absl::Time deadline) {
  return SendAllocations(channel, absl::MakeConstSpan(&memory, 1), deadline);
}

absl::StatusOr<std::vector<ImportedAllocation>> ReceiveAllocations(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, absl::Time deadline) {
  std::vector<ImportedAllocation> imported;
  absl::StatusOr<std::size_t> count = protocol::ReceiveAll(
      channel,
      [&](const protocol::Incoming& incoming) -> absl::Status {
        absl::StatusOr<ImportedAllocation> one = ImportedAllocation::Open(
            driver, incoming.ticket, incoming.handles, options);
        if (!one.ok()) return one.status();
        imported.push_back(*std::move(one));
        return absl::OkStatus();
      },
      deadline);
  if (!count.ok()) return count.status();
  return imported;
}

absl::StatusOr<ImportedAllocation> ReceiveAllocation(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, absl::Time deadline) {
  absl::StatusOr<std::vector<ImportedAllocation>> imported =
      ReceiveAllocations(channel, driver, options, deadline);
  if (!imported.ok()) return imported.status();
  if (imported->size() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(imported->size(),
                     " allocations came in one exchange; expected 1. Use "
                     "ReceiveAllocations()."));
  }
  return std::move(imported->front());
}

}  // namespace vmm
