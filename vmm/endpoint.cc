#include "vmm/endpoint.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/annotate.h"
#include "vmm/endpoint_server.h"
#include "vmm/lease_connection.h"
#include "vmm/pool/core.h"
#include "vmm/ticket_string.h"
#include "vmm/transfer.h"

namespace vmm {

Publication& Publication::operator=(Publication&& other) noexcept {
  if (this != &other) {
    Publication old(std::move(*this));
    registry_ = std::move(other.registry_);
    id_ = other.id_;
    ticket_ = std::move(other.ticket_);
  }
  return *this;
}

Publication::~Publication() {
  if (registry_ != nullptr) registry_->Remove(id_);
}

Endpoint::Endpoint(std::unique_ptr<Server> server)
    : server_(std::move(server)) {}

Endpoint::~Endpoint() {
  if (server_->IsOfAnotherProcess()) Server::Abandon(std::move(server_));
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Start(
    const EndpointOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) return server.status();
  return std::unique_ptr<Endpoint>(new Endpoint(*std::move(server)));
}

absl::StatusOr<Publication> Endpoint::Publish(const Shareable& memory) {
  absl::StatusOr<protocol::Outgoing> made = protocol::MakeOutgoing(memory);
  if (!made.ok()) return made.status();
  std::vector<ExportedHandle> handles;
  for (std::size_t i = 0; i < made->ticket.layout.count(); ++i) {
    absl::StatusOr<ExportedHandle> handle = made->handle(i);
    if (!handle.ok()) return handle.status();
    handles.push_back(*std::move(handle));
  }
  absl::Status added =
      server_->registry()->Add(made->ticket, std::move(handles));
  if (!added.ok()) return added;
  return Publication(server_->registry(), made->ticket.id,
                     FormatTicketString({made->ticket, server_->address()}));
}

absl::StatusOr<std::vector<Publication>> Endpoint::PublishAll(
    absl::Span<const Shareable> memory) {
  std::vector<Publication> publications;
  publications.reserve(memory.size());
  for (const Shareable& one : memory) {
    absl::StatusOr<Publication> published = Publish(one);
    if (!published.ok()) return published.status();
    publications.push_back(*std::move(published));
  }
  return publications;
}

PoolPublication& PoolPublication::operator=(PoolPublication&& other) noexcept {
  if (this != &other) {
    PoolPublication old(std::move(*this));
    registry_ = std::move(other.registry_);
    domain_ = other.domain_;
    ticket_ = std::move(other.ticket_);
  }
  return *this;
}

PoolPublication::~PoolPublication() {
  if (registry_ != nullptr) registry_->RemovePool(domain_);
}

absl::StatusOr<PoolPublication> Endpoint::Serve(Pool& pool,
                                                SharingDomain domain) {
  absl::StatusOr<DomainId> id = pool.core_->Serve(domain);
  if (!id.ok()) return id.status();
  absl::Status added = server_->registry()->AddPool(*id, pool.core_);
  if (!added.ok()) return added;
  return PoolPublication(server_->registry(), *id,
                         FormatPoolString({*id, server_->address()}));
}

std::vector<MemoryLease> Endpoint::Leases() const {
  return server_->leases().List();
}

void Endpoint::Recall(const MemoryId& memory, absl::Time until) {
  server_->leases().Recall(memory, until);
}

void Endpoint::RecallAll(absl::Time until) {
  server_->leases().Recall(std::nullopt, until);
}

absl::Status Endpoint::WaitUntilReturned(const MemoryId& memory,
                                         absl::Time deadline) const {
  return server_->leases().WaitUntilReturned(memory, deadline);
}

absl::Status Endpoint::WaitUntilAllReturned(absl::Time deadline) const {
  return server_->leases().WaitUntilReturned(std::nullopt, deadline);
}

const std::string& Endpoint::address() const { return server_->address(); }

EndpointStatistics Endpoint::statistics() const {
  return server_->statistics();
}

namespace {

// Tickets of one endpoint, by their place in the caller's list.
using Batch = std::vector<std::pair<std::size_t, Ticket>>;

// Imports up to protocol::kMaxRequested tickets over one connection.
absl::Status OpenBatch(const platform::Driver& driver,
                       const std::string& address,
                       absl::Span<const std::pair<std::size_t, Ticket>> batch,
                       const ImportOptions& options, absl::Time deadline,
                       const platform::PeerPolicy& owners,
                       std::vector<std::optional<ImportedAllocation>>& out) {
  absl::StatusOr<platform::Channel> channel =
      platform::Channel::Connect(address, owners, deadline);
  if (!channel.ok()) {
    return platform::Annotate(
        channel.status(),
        absl::StrCat("nobody can be asked for ",
                     batch.front().second.Describe()),
        absl::IsNotFound(channel.status())
            ? "The owner has ended, or its socket directory is not mounted "
              "here (containers must share it)."
            : "");
  }
  std::vector<MemoryId> ids;
  ids.reserve(batch.size());
  for (const auto& [place, ticket] : batch) ids.push_back(ticket.id);
  absl::Status asked = protocol::SendRequest(*channel, ids, deadline);
  if (!asked.ok()) return asked;

  std::size_t next = 0;
  absl::StatusOr<std::size_t> count = protocol::ReceiveAll(
      *channel,
      [&](const protocol::Incoming& incoming) -> absl::Status {
        if (next == batch.size() || !(incoming.ticket == batch[next].second)) {
          return absl::DataLossError(absl::StrCat("the owner sent ",
                                                  incoming.ticket.Describe(),
                                                  ", which was not asked for"));
        }
        absl::StatusOr<ImportedAllocation> one = ImportedAllocation::Open(
            driver, incoming.ticket, incoming.handles, options);
        if (!one.ok()) return one.status();
        out[batch[next++].first] = *std::move(one);
        return absl::OkStatus();
      },
      deadline);
  if (!count.ok()) return count.status();
  if (next != batch.size()) {
    return absl::DataLossError(absl::StrCat("the owner sent ", next, " of ",
                                            batch.size(), " allocations"));
  }
  const auto lease =
      std::make_shared<LeaseConnection>(*std::move(channel), std::move(ids));
  for (const auto& [place, ticket] : batch) {
    out[place]->HoldLease(std::make_shared<const HeldLease>(lease, ticket.id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ImportedAllocation>> OpenTickets(
    const platform::Driver& driver, absl::Span<const std::string> tickets,
    const ImportOptions& options, absl::Time deadline,
    const platform::PeerPolicy& owners) {
  // All are checked before anybody is dialled.
  std::map<std::string, Batch> by_address;
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    absl::StatusOr<AddressedTicket> parsed = ParseTicketString(tickets[i]);
    if (!parsed.ok()) return parsed.status();
    absl::Status usable = CheckUsableHere(parsed->ticket, driver);
    if (!usable.ok()) return usable;
    by_address[parsed->address].emplace_back(i, std::move(parsed->ticket));
  }
  std::vector<std::optional<ImportedAllocation>> opened(tickets.size());
  for (const auto& [address, batch] : by_address) {
    absl::Span<const std::pair<std::size_t, Ticket>> left(batch);
    while (!left.empty()) {
      absl::Status status =
          OpenBatch(driver, address, left.subspan(0, protocol::kMaxRequested),
                    options, deadline, owners, opened);
      if (!status.ok()) return status;
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
    const ImportOptions& options, absl::Time deadline,
    const platform::PeerPolicy& owners) {
  const std::string text(ticket);
  absl::StatusOr<std::vector<ImportedAllocation>> opened = OpenTickets(
      driver, absl::MakeConstSpan(&text, 1), options, deadline, owners);
  if (!opened.ok()) return opened.status();
  return std::move(opened->front());
}

}  // namespace vmm
