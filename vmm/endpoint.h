// Endpoint: serves the handles of published memory to whoever holds a ticket
// string.
//
//   // The owner:
//   auto endpoint = Endpoint::Start({});
//   auto published = (*endpoint)->Publish(weights.shareable());
//   WriteFile("weights.ticket", published->ticket());
//   // Any process of the same user, later:
//   auto weights = OpenTicket(driver, ReadFile("weights.ticket"), {},
//   deadline);
//
// A background thread accepts connections and each is served on a thread of
// its own, so that a slow or silent peer delays nobody. None of these threads
// calls the CUDA driver: handles are exported when memory is published, on the
// publisher's thread.
#ifndef VMMSHARE_VMM_ENDPOINT_H_
#define VMMSHARE_VMM_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/channel.h"
#include "platform/driver.h"
#include "vmm/imported_allocation.h"
#include "vmm/lease.h"
#include "vmm/pool.h"
#include "vmm/shareable.h"

namespace vmm {

struct EndpointOptions {
  platform::ListenerOptions listener = {};  // Where it listens.
  platform::PeerPolicy peers = {};  // Who may ask: this user, and these.
  // A peer that has said nothing for so long is disconnected.
  absl::Duration request_timeout = absl::Seconds(5);
  // A peer that has not imported for so long after its request is too.
  absl::Duration transfer_timeout = absl::Seconds(30);
  // Peers served at once; more are told RESOURCE_EXHAUSTED and disconnected.
  std::size_t max_sessions = 64;
  // Leases out at once: one for each OpenTicket() or OpenTickets() of which
  // something is held still. Each costs two descriptors and a thread that
  // sleeps. More are told RESOURCE_EXHAUSTED.
  std::size_t max_leases = 256;
};

// What an endpoint has done since it started. A snapshot.
struct EndpointStatistics {
  std::uint64_t served = 0;   // Sessions that ended well.
  std::uint64_t failed = 0;   // Sessions that ended with an error.
  std::uint64_t refused = 0;  // Peers turned away: too many at once.
  absl::Status last_error;    // Why the last failed one did.
};

class EndpointRegistry;

// Memory that can be had from an endpoint while this object lives. It holds
// exported handles: the memory lives until it is withdrawn, even if its
// Allocation is gone. Move-only; may outlive its endpoint, then serves nobody.
class Publication {
 public:
  Publication(Publication&&) noexcept = default;
  Publication& operator=(Publication&&) noexcept;
  ~Publication();

  // Text for the importer: see ticket_string.h.
  const std::string& ticket() const { return ticket_; }
  // Of the memory.
  const MemoryId& id() const { return id_; }

 private:
  friend class Endpoint;
  Publication(std::shared_ptr<EndpointRegistry> registry, const MemoryId& id,
              std::string ticket)
      : registry_(std::move(registry)), id_(id), ticket_(std::move(ticket)) {}

  std::shared_ptr<EndpointRegistry> registry_;
  MemoryId id_;
  std::string ticket_;
};

// A pool's sharing domain that can be subscribed to while this object lives.
// Those that have subscribed stay so when it goes. Move-only; may outlive the
// endpoint and the pool, then serves nobody.
class PoolPublication {
 public:
  PoolPublication(PoolPublication&&) noexcept = default;
  PoolPublication& operator=(PoolPublication&&) noexcept;
  ~PoolPublication();

  // Text for ImportedPool::Subscribe().
  const std::string& ticket() const { return ticket_; }

 private:
  friend class Endpoint;
  PoolPublication(std::shared_ptr<EndpointRegistry> registry,
                  const DomainId& domain, std::string ticket)
      : registry_(std::move(registry)),
        domain_(domain),
        ticket_(std::move(ticket)) {}

  std::shared_ptr<EndpointRegistry> registry_;
  DomainId domain_;
  std::string ticket_;
};

// Thread-safe. Destroying it ends all sessions; in a forked child it only
// closes the child's copy of the listening socket, since all else is the
// parent's threads'.
class Endpoint {
 public:
  // Errors as platform::Listener::Bind; RESOURCE_EXHAUSTED when no thread can
  // be had.
  static absl::StatusOr<std::unique_ptr<Endpoint>> Start(
      const EndpointOptions& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Exports `memory` and serves it. ALREADY_EXISTS when it is published here
  // already; FAILED_PRECONDITION for private memory; otherwise as the driver
  // answers the export.
  absl::StatusOr<Publication> Publish(const Shareable& memory);
  // All or nothing, in the order given.
  absl::StatusOr<std::vector<Publication>> PublishAll(
      absl::Span<const Shareable> memory);

  // Lets peers subscribe to a sharing domain of `pool`: each is given all
  // segments of the domain, those made later too, and is one of max_sessions
  // as long as it stays subscribed. ALREADY_EXISTS when this endpoint serves it
  // already; FAILED_PRECONDITION for a private pool; INVALID_ARGUMENT for a
  // domain that the pool has not; otherwise as the driver answers the export of
  // the segments there are.
  absl::StatusOr<PoolPublication> Serve(
      Pool& pool, SharingDomain domain = SharingDomain::kFirst);

  // Who holds which published memory, withdrawn memory too: one for each
  // import. Those of pools: Pool::Leases().
  std::vector<MemoryLease> Leases() const;
  // Asks all who hold `memory` to let go of it by `until`, which they see in
  // ImportedAllocation::lease(). Waits for nobody and refuses nothing: withdraw
  // it first, so that nobody imports it anew. A peer that does not read what
  // it is sent is disconnected.
  void Recall(const MemoryId& memory, absl::Time until);
  void RecallAll(absl::Time until);
  // Returns once nobody holds `memory`: given back, or the holder is known to
  // have ended. DEADLINE_EXCEEDED names who still does.
  absl::Status WaitUntilReturned(const MemoryId& memory,
                                 absl::Time deadline) const;
  absl::Status WaitUntilAllReturned(absl::Time deadline) const;

  const std::string& address() const;
  EndpointStatistics statistics() const;

 private:
  class Server;
  explicit Endpoint(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

// Imports what `ticket` (Publication::ticket()) names: dials the owner's
// endpoint, whose user must be allowed by `owners`, and maps the memory.
//   INVALID_ARGUMENT     text that is no ticket, or damaged
//   FAILED_PRECONDITION  a ticket of another machine or driver, or no device
//                        to map it
//   NOT_FOUND            withdrawn, or nobody serves it: the owner is gone
//   PERMISSION_DENIED    the endpoint is not an allowed user's
//   RESOURCE_EXHAUSTED   the owner serves, or has leased to, as many as it may
//   DEADLINE_EXCEEDED, UNAVAILABLE, DATA_LOSS as in ReceiveAllocations
// The connection stays: it is the owner's lease (see lease.h), and ends with
// the ImportedAllocation.
absl::StatusOr<ImportedAllocation> OpenTicket(
    const platform::Driver& driver, absl::string_view ticket,
    const ImportOptions& options, absl::Time deadline,
    const platform::PeerPolicy& owners = {});
// Many at once, with one connection to each endpoint for 1,024 of them. All or
// nothing, in the order given.
absl::StatusOr<std::vector<ImportedAllocation>> OpenTickets(
    const platform::Driver& driver, absl::Span<const std::string> tickets,
    const ImportOptions& options, absl::Time deadline,
    const platform::PeerPolicy& owners = {});

}  // namespace vmm

#endif  // VMMSHARE_VMM_ENDPOINT_H_
