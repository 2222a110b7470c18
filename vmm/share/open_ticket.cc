// The importer's side of an endpoint: OpenTicket(), OpenTickets() and FetchRaw().
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/dial.h"
#include "vmm/share/internal/lease_connection.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/raw_handle.h"
#include "vmm/share/ticket.h"

namespace vmm {
namespace {

// One thing that is asked for, and where in the caller's list it goes: it may
// stand there more than once.
struct Wanted {
  AddressedTicket ticket;
  std::vector<std::size_t> places;
};

// Whether `came` is the memory of `wanted`, or what its owner has restored in its
// place since (restorable.h).
bool IsMemoryOf(const Ticket& came, const Ticket& wanted) {
  if (came.id.generation < wanted.id.generation) return false;
  Ticket same = wanted;
  same.id.generation = came.id.generation;
  return came == same;
}

// What becomes of one that came, and how it may be mapped.
using Take = std::function<absl::Status(const Wanted&, protocol::Incoming,
                                        Access granted)>;
// Lets go of all that came: the owner is told that nothing is kept.
using Drop = std::function<void()>;

using Leases = std::vector<std::shared_ptr<const HeldLease>>;

// Receives up to protocol::kMaxRequested tickets' memory over one connection:
// the leases of it, in order.
absl::StatusOr<Leases> ReceiveBatch(absl::Span<const Wanted> batch,
                                    Deadline deadline,
                                    const platform::PeerPolicy& owners,
                                    const Take& take, const Drop& drop) {
  const Wanted& first = batch.front();
  std::vector<ShareKey> keys;
  std::vector<MemoryId> ids;  // Of what came.
  for (const Wanted& one : batch) {
    keys.push_back(one.ticket.invitation.key);
  }
  ASSIGN_OR_RETURN(Granted granted,
                   DialShare(first.ticket.invitation.address, keys, owners,
                             first.ticket.ticket.Describe(), deadline));
  std::size_t stated = 0;
  std::size_t next = 0;
  bool in_step = true;
  const absl::StatusOr<std::size_t> count = protocol::TryReceiveAll(
      granted.channel,
      [&](protocol::Incoming incoming) -> absl::Status {
        ids.push_back(incoming.ticket.id);
        absl::Status taken =
            take(batch[next++], std::move(incoming), granted.access);
        // The refusal comes next.
        if (!taken.ok()) drop();
        return taken;
      },
      deadline, &in_step, nullptr, protocol::kMaxAllocations,
      [&](const Ticket& ticket) -> absl::Status {
        if (stated == batch.size() ||
            !IsMemoryOf(ticket, batch[stated].ticket.ticket)) {
          return absl::DataLossError(absl::StrCat("the owner sent ",
                                                  ticket.Describe(),
                                                  ", which was not asked for"));
        }
        ++stated;
        return absl::OkStatus();
      });
  if (!count.ok()) {
    drop();
    protocol::GiveUp(granted.channel, count.status());
    return count.status();
  }
  if (*count != batch.size()) {
    return absl::DataLossError(absl::StrCat("the owner sent ", *count, " of ",
                                            batch.size(), " allocations"));
  }
  const auto connection =
      std::make_shared<LeaseConnection>(std::move(granted.channel), ids);
  Leases leases;
  for (const MemoryId& id : ids) {
    leases.push_back(std::make_shared<const HeldLease>(connection, id));
  }
  return leases;
}

// Imports them, each to its places in `out`.
absl::Status OpenBatch(const platform::Driver& driver,
                       absl::Span<const Wanted> batch,
                       const ImportOptions& options, Deadline deadline,
                       const platform::PeerPolicy& owners,
                       std::vector<std::optional<ImportedAllocation>>& out) {
  ASSIGN_OR_RETURN(
      const Leases leases,
      ReceiveBatch(
          batch, deadline, owners,
          [&](const Wanted& wanted, const protocol::Incoming& incoming,
              Access granted) -> absl::Status {
            RETURN_IF_ERROR(CheckGranted(granted, WantsToWrite(options)));
            for (std::size_t place : wanted.places) {
              ASSIGN_OR_RETURN(
                  ImportedAllocation one,
                  ImportedAllocation::Open(driver, incoming.ticket,
                                           incoming.handles, options));
              one.LimitTo(granted);
              out[place] = std::move(one);
            }
            return absl::OkStatus();
          },
          [&] {
            for (const Wanted& one : batch) {
              for (std::size_t place : one.places) out[place].reset();
            }
          }));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    for (std::size_t place : batch[i].places) out[place]->HoldLease(leases[i]);
  }
  return absl::OkStatus();
}

// What can be asked for over one connection: of one endpoint, for one access.
using BatchName = std::pair<std::string, Access>;

using Batches = std::map<BatchName, std::vector<Wanted>>;

absl::StatusOr<Batches> Sort(const platform::Driver& driver,
                             absl::Span<const std::string> tickets,
                             const ImportOptions& options) {
  Batches batches;
  std::map<absl::string_view, std::size_t> seen;  // Where in its batch.
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    ASSIGN_OR_RETURN(AddressedTicket parsed, ParseTicketString(tickets[i]));
    RETURN_IF_ERROR(CheckUsableHere(parsed.ticket, driver));
    const ShareInvitation& invitation = parsed.invitation;
    RETURN_IF_ERROR(CheckGranted(invitation.access, WantsToWrite(options)));
    std::vector<Wanted>& batch =
        batches[{invitation.address, invitation.access}];
    const auto [found, is_new] =
        seen.try_emplace(absl::StripAsciiWhitespace(tickets[i]), batch.size());
    if (is_new) batch.push_back({std::move(parsed), {}});
    batch[found->second].places.push_back(i);
  }
  return batches;
}

}  // namespace

absl::StatusOr<std::vector<ImportedAllocation>> OpenTickets(
    const platform::Driver& driver, absl::Span<const std::string> tickets,
    const ImportOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners) {
  // All are checked before anybody is dialled.
  ASSIGN_OR_RETURN(const Batches batches, Sort(driver, tickets, options));
  std::vector<std::optional<ImportedAllocation>> opened(tickets.size());
  for (const auto& [name, batch] : batches) {
    absl::Span<const Wanted> left(batch);
    while (!left.empty()) {
      RETURN_IF_ERROR(OpenBatch(driver,
                                left.subspan(0, protocol::kMaxRequested),
                                options, deadline, owners, opened));
      left.remove_prefix(std::min(left.size(), protocol::kMaxRequested));
    }
  }
  std::vector<ImportedAllocation> imported;
  imported.reserve(opened.size());
  for (std::optional<ImportedAllocation>& one : opened) {
    imported.push_back(*std::move(one));
  }
  return imported;
}

absl::StatusOr<ImportedAllocation> OpenTicket(
    const platform::Driver& driver, absl::string_view ticket,
    const ImportOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners) {
  const std::string text(ticket);
  ASSIGN_OR_RETURN(std::vector<ImportedAllocation> opened,
                   OpenTickets(driver, absl::MakeConstSpan(&text, 1), options,
                               deadline, owners));
  return std::move(opened.front());
}

absl::StatusOr<FetchedHandles> FetchRaw(const platform::Driver& driver,
                                        absl::string_view ticket,
                                        Deadline deadline,
                                        const platform::PeerPolicy& owners) {
  ASSIGN_OR_RETURN(AddressedTicket parsed, ParseTicketString(ticket));
  RETURN_IF_ERROR(CheckUsableHere(parsed.ticket, driver));
  RETURN_IF_ERROR(CheckGranted(parsed.invitation.access, true));
  const Wanted wanted{std::move(parsed), {0}};
  Ticket came;
  std::vector<RawHandle> chunks;
  ASSIGN_OR_RETURN(Leases leases,
                   ReceiveBatch(
                       absl::MakeConstSpan(&wanted, 1), deadline, owners,
                       [&](const Wanted&, protocol::Incoming incoming,
                           Access granted) -> absl::Status {
                         RETURN_IF_ERROR(CheckGranted(granted, true));
                         came = incoming.ticket;
                         for (std::size_t i = 0; i < incoming.handles.size();
                              ++i) {
                           chunks.push_back({came.kind, came.layout.SizeOf(i),
                                             std::move(incoming.handles[i])});
                         }
                         return absl::OkStatus();
                       },
                       [&] { chunks.clear(); }));
  return FetchedHandles(std::move(came), std::move(chunks),
                        std::move(leases.front()));
}

LeaseStatus FetchedHandles::lease() const { return lease_->status(); }

}  // namespace vmm
