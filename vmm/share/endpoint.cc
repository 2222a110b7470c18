#include "vmm/share/endpoint.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/share/internal/endpoint_server.h"
#include "vmm/share/internal/share_registry.h"
#include "vmm/share/ticket.h"

namespace vmm {

Share& Share::operator=(Share&& other) noexcept {
  if (this != &other) {
    Share old(std::move(*this));
    registry_ = std::move(other.registry_);
    key_ = other.key_;
    ticket_ = std::move(other.ticket_);
    kept_ = std::move(other.kept_);
  }
  return *this;
}

Share::~Share() {
  if (registry_ != nullptr) ShareRegistry::Withdraw(std::move(registry_), key_);
}

namespace {

absl::Status CheckOptions(const ShareOptions& options) {
  if (options.access != Access::kNone) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "ShareOptions::access is kNone; expected kRead or kReadWrite");
}

}  // namespace

Endpoint::Endpoint(std::unique_ptr<Server> server)
    : server_(std::move(server)) {}

Endpoint::~Endpoint() {
  if (server_->IsOfAnotherProcess()) Server::Abandon(std::move(server_));
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Start(
    const EndpointOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(options));
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(server)));
}

// A forked child has its parent's sockets, and none of its threads: what it sent
// there would be taken for the parent's word, and a lock that a thread had at the
// fork is never given back.
absl::Status Endpoint::CheckIsOfThisProcess() const {
  if (!server_->IsOfAnotherProcess()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a forked child has no endpoint: its parent has. Call it there, or start "
      "one in the child");
}

absl::StatusOr<Share> Endpoint::Publish(const Shareable& memory,
                                        const ShareOptions& options) {
  RETURN_IF_ERROR(CheckIsOfThisProcess());
  RETURN_IF_ERROR(CheckOptions(options));
  if (memory.block() != nullptr && options.access != Access::kReadWrite) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory that is shared as ", NameOf(memory.block()->kind),
                     " cannot be shared for reading alone. Share it for "
                     "reading and writing, or a copy"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const PublishedMemory> published,
                   MakePublished(memory));
  const Ticket ticket = published->ticket;
  ASSIGN_OR_RETURN(const ShareKey key,
                   server_->registry()->Add(std::move(published), options));
  return Share(
      server_->registry(), key,
      FormatTicketString({ticket, {key, options.access, server_->address()}}),
      memory.keeper());
}

absl::StatusOr<std::vector<Share>> Endpoint::PublishAll(
    absl::Span<const Shareable> memory, const ShareOptions& options) {
  std::vector<Share> shares;
  shares.reserve(memory.size());
  for (const Shareable& one : memory) {
    ASSIGN_OR_RETURN(Share share, Publish(one, options));
    shares.push_back(std::move(share));
  }
  return shares;
}

absl::StatusOr<Share> Endpoint::Serve(Servable& what,
                                      const ShareOptions& options) {
  RETURN_IF_ERROR(CheckIsOfThisProcess());
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const std::shared_ptr<PeerService> service,
                   what.MakeService());
  ASSIGN_OR_RETURN(const ShareKey key,
                   server_->registry()->Add(service, options));
  return Share(server_->registry(), key,
               service->Format({key, options.access, server_->address()}));
}

std::vector<MemoryLease> Endpoint::Leases() const {
  if (server_->IsOfAnotherProcess()) return {};
  return server_->leases().List();
}

void Endpoint::Recall(const MemoryId& memory, absl::Time until) {
  if (server_->IsOfAnotherProcess()) return;
  server_->leases().Recall(memory, until);
}

void Endpoint::RecallAll(absl::Time until) {
  if (server_->IsOfAnotherProcess()) return;
  server_->leases().Recall(std::nullopt, until);
}

absl::Status Endpoint::WaitUntilReturned(const MemoryId& memory,
                                         Deadline deadline) const {
  RETURN_IF_ERROR(CheckIsOfThisProcess());
  return server_->leases().WaitUntilReturned(memory, deadline);
}

absl::Status Endpoint::WaitUntilAllReturned(Deadline deadline) const {
  RETURN_IF_ERROR(CheckIsOfThisProcess());
  return server_->leases().WaitUntilReturned(std::nullopt, deadline);
}

const std::string& Endpoint::address() const { return server_->address(); }

EndpointStatistics Endpoint::statistics() const {
  if (server_->IsOfAnotherProcess()) return {};
  return server_->statistics();
}

}  // namespace vmm
