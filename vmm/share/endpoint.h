// Endpoint: serves the handles of published memory to whoever holds a ticket
// string.
//
//   // The owner:
//   auto endpoint = Endpoint::Start({});
//   auto published = (*endpoint)->Publish(weights.shareable());
//   WriteFile("weights.ticket", published->ticket());
//   // Any process of the same user that can read the file, later:
//   std::string text = ReadFile("weights.ticket");
//   auto weights = OpenTicket(driver, text, {}, deadline);
//
// A background thread accepts connections and each is served on a thread of
// its own, so that a slow or silent peer delays nobody. None of these threads
// calls the CUDA driver, but to see that adopted memory of a weaker kind has not
// been freed: handles are exported when memory is published, on the publisher's
// thread.
#ifndef VMMSHARE_VMM_SHARE_ENDPOINT_H_
#define VMMSHARE_VMM_SHARE_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/lease.h"
#include "vmm/share/servable.h"

namespace vmm {

struct EndpointOptions {
  platform::ListenerOptions listener = {};  // Where it listens.
  platform::PeerPolicy peers = {};  // Who may ask: this user, and these.
  // A peer that has said nothing for so long is disconnected: before it asks, and
  // after it was told that no more comes.
  absl::Duration request_timeout = absl::Seconds(5);
  // A peer that has not imported for so long after its request is too.
  absl::Duration transfer_timeout = absl::Seconds(30);
  // Peers served at once: connections that are not leases, those of pools'
  // subscribers among them; and how many of these one user and one process may
  // have. 0: half of all for a process; for a user three quarters where `peers`
  // allows others than this one. Who comes when a limit is reached is told
  // RESOURCE_EXHAUSTED, and tries again until its deadline.
  std::size_t max_sessions = 64;
  std::size_t max_user_sessions = 0;
  std::size_t max_process_sessions = 0;
  // Leases out at once: connections over which memory was opened, as long as any of
  // it is held or the connection is there. An OpenTicket() has one; an OpenTickets()
  // has one for each endpoint, access and 1,024 tickets. Each costs three descriptors
  // and a thread that sleeps. The rest as above.
  std::size_t max_leases = 256;
  std::size_t max_user_leases = 0;
  std::size_t max_process_leases = 0;
};

// What an endpoint has done since it started. A snapshot.
struct EndpointStatistics {
  std::uint64_t served = 0;   // Sessions that ended well.
  std::uint64_t failed = 0;   // Sessions that ended with an error.
  std::uint64_t refused = 0;  // Peers turned away: too many at once.
  absl::Status last_error;    // Why the last failed one did.
};

// To whom something is shared, and for what.
struct ShareOptions {
  // Which of the users that the endpoint admits (EndpointOptions::peers) may
  // have it, beside its own. Default: all of them.
  std::optional<std::vector<platform::UserId>> users = std::nullopt;
  // kRead: importers refuse to map it for writing. A guard against mistakes and
  // not a wall: who has a handle can map it as it likes, so give a process that
  // is not trusted a copy.
  Access access = Access::kReadWrite;
};

class ShareRegistry;

// What can be had from an endpoint while this object lives: published memory,
// or what a Servable has. Published memory is kept alive by it, even if its
// Allocation is gone. Those that have it keep it when this goes, but for memory
// of a weaker kind (driver_block.h): there, wait until it is returned first.
// Move-only; may outlive the endpoint and what it is of, then serves nobody. In a
// forked child its end withdraws nothing, for the share is the parent's, and closes
// the child's handles of the memory.
class Share {
 public:
  Share(Share&&) noexcept = default;
  Share& operator=(Share&& other) noexcept;
  ~Share();

  // Text for OpenTicket(), ImportedPool::Subscribe() and the like. The key to
  // what is shared is in it and nowhere else: whoever of the allowed users has
  // the text can have the memory. No two shares have the same, not even of the
  // same memory.
  const std::string& ticket() const { return ticket_; }

 private:
  friend class Endpoint;
  friend class RestorableAllocation;  // restorable.h
  Share(std::shared_ptr<ShareRegistry> registry, const ShareKey& key,
        std::string ticket,
        std::shared_ptr<const OwnedMadeBlock> kept = nullptr)
      : registry_(std::move(registry)),
        key_(key),
        ticket_(std::move(ticket)),
        kept_(std::move(kept)) {}

  std::shared_ptr<ShareRegistry> registry_;
  ShareKey key_;
  std::string ticket_;
  // Of memory that its handles do not keep alive (Shareable::keeper()).
  std::shared_ptr<const OwnedMadeBlock> kept_;
};

// Thread-safe. Destroying it ends all sessions. A forked child has no endpoint, for
// that is the parent's threads': there it has no leases and no statistics, recalls
// nothing, returns FAILED_PRECONDITION for all else, and closes only the child's copy
// of the listening socket when it is destroyed.
class Endpoint {
 public:
  // Errors as platform::Listener::Bind; RESOURCE_EXHAUSTED when no thread can
  // be had.
  static absl::StatusOr<std::unique_ptr<Endpoint>> Start(
      const EndpointOptions& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Exports `memory` and serves it. The same memory may be published more than
  // once, each time with options of its own.
  //   FAILED_PRECONDITION  private memory
  //   INVALID_ARGUMENT     Access::kNone; kRead of memory that cannot be shared so
  //                        (driver_block.h); more than 65,536 chunks
  //   else                 as the driver answers the export
  absl::StatusOr<Share> Publish(const Shareable& memory,
                                const ShareOptions& options = {});
  // All or nothing, in the order given.
  absl::StatusOr<std::vector<Share>> PublishAll(
      absl::Span<const Shareable> memory, const ShareOptions& options = {});

  // Serves a pool, say, to those that subscribe to it: each is one of
  // max_sessions as long as it stays subscribed. INVALID_ARGUMENT for
  // Access::kNone; otherwise as Servable::MakeService().
  absl::StatusOr<Share> Serve(Servable& what, const ShareOptions& options = {});

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
                                 Deadline deadline) const;
  absl::Status WaitUntilAllReturned(Deadline deadline) const;

  const std::string& address() const;
  EndpointStatistics statistics() const;

 private:
  friend class RestorableAllocation;  // restorable.h
  class Server;
  // FAILED_PRECONDITION in a forked child.
  absl::Status CheckIsOfThisProcess() const;
  explicit Endpoint(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

// Imports what `ticket` (Share::ticket()) names: dials the owner's
// endpoint, whose user must be allowed by `owners`, and maps the memory.
//   INVALID_ARGUMENT     text that is no ticket, or damaged
//   UNIMPLEMENTED        a ticket or an owner of another release
//   FAILED_PRECONDITION  a ticket of another machine or driver, or no device
//                        to map it; or the allocator of adopted memory has
//                        freed it
//   NOT_FOUND            withdrawn, or nobody serves it: the owner is gone
//   PERMISSION_DENIED    the endpoint is not an allowed user's; it is not
//                        shared with this user, or not for writing
//   RESOURCE_EXHAUSTED   the owner serves, or has leased to, as many as it may,
//                        or has released the memory (restorable.h), and so it
//                        was at each try until the deadline; with an infinite
//                        one it is tried once
//   DEADLINE_EXCEEDED, UNAVAILABLE, DATA_LOSS as in ReceiveAllocations
// The connection stays: it is the owner's lease (see lease.h), and ends with
// the ImportedAllocation.
absl::StatusOr<ImportedAllocation> OpenTicket(
    const platform::Driver& driver, absl::string_view ticket,
    const ImportOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners = {});
// Many at once, with one connection to each endpoint for 1,024 of them. All or
// nothing, in the order given.
absl::StatusOr<std::vector<ImportedAllocation>> OpenTickets(
    const platform::Driver& driver, absl::Span<const std::string> tickets,
    const ImportOptions& options, Deadline deadline,
    const platform::PeerPolicy& owners = {});

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_ENDPOINT_H_
