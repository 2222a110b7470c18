// What an endpoint serves, each under a key of its own; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_SHARE_REGISTRY_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_SHARE_REGISTRY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/os/process.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/servable.h"
#include "vmm/share/ticket.h"

namespace vmm {

// Published memory. Never changes; whoever sends it holds it.
struct PublishedMemory {
  Ticket ticket;
  std::vector<ExportedHandle> handles;  // One a chunk.
  // Of another allocator's, which may free it and have another allocation there.
  struct Lent {
    platform::Driver driver;
    DriverBlock block;
  };
  std::optional<Lent> lent;
};
// Exports `memory`. Errors as Endpoint::Publish().
absl::StatusOr<std::shared_ptr<const PublishedMemory>> MakePublished(
    const Shareable& memory);
// FAILED_PRECONDITION when the allocator of `memory` has freed it. Asks the driver,
// of memory that is lent alone.
absl::Status CheckIsStillThere(const PublishedMemory& memory);
// What is sent of `memory`, which its handles keep alive.
protocol::Outgoing OutgoingOf(std::shared_ptr<const PublishedMemory> memory);

// Memory may be null: that was released, and is yet to be restored.
using Served = std::variant<std::shared_ptr<const PublishedMemory>,
                            std::shared_ptr<PeerService>>;

// Thread-safe.
class ShareRegistry : public platform::Abandonable {
 public:
  // Remove(), where `registry` was made. In a forked child, where nobody serves,
  // `registry` is left as it is but for the child's handles of memory, which are
  // closed; these, too, stay where a thread that is not there holds the lock.
  static void Withdraw(std::shared_ptr<ShareRegistry> registry,
                       const ShareKey& key);

  // Serves `what` until Remove(). Errors as platform::FillRandom().
  absl::StatusOr<ShareKey> Add(Served what, ShareOptions options);
  // REQUIRES: no call for the same key before.
  void Remove(const ShareKey& key);
  // Serves `memory` in place of the memory that is there, which is returned; null
  // for none. REQUIRES: the key of memory, not removed.
  std::shared_ptr<const PublishedMemory> Exchange(
      const ShareKey& key, std::shared_ptr<const PublishedMemory> memory);

  struct Found {
    Served what;
    Access access;
  };
  // What `user` asked for, in the order asked. Each answer keeps its handles
  // open, so that a withdrawal meanwhile does no harm.
  //   NOT_FOUND           a key that opens nothing (any more)
  //   PERMISSION_DENIED   not for this user
  //   RESOURCE_EXHAUSTED  memory that was released: it may come back
  // `admit` has the last word, and writes down who has it: no memory is exchanged
  // meanwhile, so that whoever exchanges it finds all those who found it.
  absl::StatusOr<std::vector<Found>> Find(
      absl::Span<const ShareKey> keys, const platform::UserId& user,
      const std::function<absl::Status(absl::Span<const Found>)>& admit =
          nullptr) const;

 private:
  struct Entry {
    std::array<std::uint8_t, 16> secret;
    Served what;
    ShareOptions options;
  };

  // Unless the lock is held.
  void LetGoOfMemory(const ShareKey& key);

  const platform::MadeHere made_;
  mutable platform::Mutex mutex_;
  // By ShareKey::place.
  std::map<std::array<std::uint8_t, 8>, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_SHARE_REGISTRY_H_
