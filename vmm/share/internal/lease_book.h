// LeaseBook: what an endpoint knows of those who imported from it; internal to
// vmm/.
//
// One entry a connection, from before the first handle is sent until all of it
// is returned, or the holder is known to have ended: what cannot be confirmed
// stays in the book.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_LEASE_BOOK_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_LEASE_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/base/mutex.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/peer_watch.h"
#include "platform/os/deadline.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/internal/peer_limits.h"
#include "vmm/share/lease.h"

namespace vmm {

// Thread-safe.
class LeaseBook {
 public:
  enum class Entry : std::uint64_t {};  // Not used again for another.
  struct Item {
    MemoryId memory;
    std::uint64_t size = 0;  // Bytes.
  };

  explicit LeaseBook(const PeerLimits& limits) : limits_(limits) {}

  // A peer is about to be given `items`. RESOURCE_EXHAUSTED when a limit is
  // reached: of entries that nothing ended, and that a session has still.
  absl::StatusOr<Entry> Add(platform::PeerCredentials peer,
                            platform::PeerWatch watch,
                            absl::Span<const Item> items);
  // It has been, and the exchange is over: until Detach() or Remove() recalls
  // are sent on `channel`, those first that came meanwhile. The caller goes on
  // to receive from it, and sends no more.
  void Attach(Entry entry, platform::Channel& channel);
  // The peer returned these. INVALID_ARGUMENT, and nothing is changed, when it
  // does not hold one of them. Whether it still holds others.
  absl::StatusOr<bool> Return(Entry entry, absl::Span<const MemoryId> ids);
  // The peer hung up without having returned all: what it has is its own until
  // it has ended.
  void Detach(Entry entry);
  // It has nothing any more, or never had.
  void Remove(Entry entry);
  // Forgets whom it kept until their end was proven. Whether it keeps others
  // that have hung up.
  bool Tidy();
  // Whether the holder's end is proven: whoever has its connection now holds
  // nothing by it.
  bool HasEnded(Entry entry);

  std::vector<MemoryLease> List();
  // Asks every holder of `memory`, or of anything.
  void Recall(const std::optional<MemoryId>& memory, absl::Time until);
  // DEADLINE_EXCEEDED says who holds what.
  absl::Status WaitUntilReturned(const std::optional<MemoryId>& memory,
                                 Deadline deadline);

 private:
  struct Held {
    Item item;
    std::optional<absl::Time> return_by;
    // By when the holder was told to return it. Later than that is not worth a
    // message: whoever asks often must not fill the connection of one that looks
    // seldom.
    std::optional<absl::Time> told;

    bool MustBeTold() const {
      return return_by.has_value() && (!told.has_value() || *return_by < *told);
    }
  };
  struct Holder {
    platform::PeerCredentials credentials;
    absl::Time since;
    platform::PeerWatch watch;
    platform::PeerEnd end = platform::PeerEnd::kNotEnded;  // When last asked.
    platform::Channel* channel = nullptr;                  // From Attach() on.
    bool hung_up = false;                                  // By Detach().
    std::vector<Held> held = {};
  };

  void ForgetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void SendRecalls(Holder& holder);  // Of holders_.
  std::vector<MemoryLease> ListOf(const std::optional<MemoryId>& memory) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PeerLimits limits_;
  platform::Mutex mutex_;
  platform::CondVar changed_;
  std::uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<Entry, Holder> holders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_LEASE_BOOK_H_
