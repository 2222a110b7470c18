#include "vmm/share/transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
absl::Status SendAllocations(platform::Channel& channel,
                             absl::Span<const Shareable> memory,
                             Deadline deadline) {
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
                            Deadline deadline) {
  return SendAllocations(channel, absl::MakeConstSpan(&memory, 1), deadline);
}

absl::StatusOr<std::vector<ImportedAllocation>> ReceiveAllocations(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, Deadline deadline) {
  std::vector<ImportedAllocation> imported;
  absl::StatusOr<std::size_t> count = protocol::ReceiveAll(
      channel,
      [&](const protocol::Incoming& incoming) -> absl::Status {
        absl::StatusOr<ImportedAllocation> one = ImportedAllocation::Open(
            driver, incoming.ticket, incoming.handles, options);
        if (!one.ok()) {
          imported.clear();  // First: the refusal says that nothing is kept.
          return one.status();
        }
        imported.push_back(*std::move(one));
        return absl::OkStatus();
      },
      deadline);
  if (!count.ok()) return count.status();
  return imported;
}

absl::StatusOr<ImportedAllocation> ReceiveAllocation(
    platform::Channel& channel, const platform::Driver& driver,
    const ImportOptions& options, Deadline deadline) {
  ASSIGN_OR_RETURN(std::vector<ImportedAllocation> imported,
                   ReceiveAllocations(channel, driver, options, deadline));
  if (imported.size() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(imported.size(),
                     " allocations came in one exchange; expected 1. Use "
                     "ReceiveAllocations()."));
  }
  return std::move(imported.front());
}

}  // namespace vmm
