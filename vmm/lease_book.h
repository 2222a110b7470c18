// LeaseBook: what an endpoint knows of those who imported from it; internal to
// vmm/.
//
// One entry a connection, from before the first handle is sent until all of it
// is returned, or the holder is known to have ended: what cannot be confirmed
// stays in the book.
#ifndef VMMSHARE_VMM_LEASE_BOOK_H_
#define VMMSHARE_VMM_LEASE_BOOK_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/channel.h"
#include "platform/process.h"
#include "vmm/lease.h"
#include "vmm/memory_id.h"

namespace vmm {

// Thread-safe.
class LeaseBook {
 public:
  enum class Entry : std::uint64_t {};  // Not used again for another.
  struct Item {
    MemoryId memory;
    std::uint64_t size = 0;  // Bytes.
  };

  explicit LeaseBook(std::size_t limit) : limit_(limit) {}

  // The peer of `channel` is about to be given `items`. RESOURCE_EXHAUSTED with
  // `limit` entries; else as OpenHolder().
  absl::StatusOr<Entry> Add(const platform::Channel& channel,
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

  std::vector<MemoryLease> List();
  // Asks every holder of `memory`, or of anything.
  void Recall(const std::optional<MemoryId>& memory, absl::Time until);
  // DEADLINE_EXCEEDED says who holds what.
  absl::Status WaitUntilReturned(const std::optional<MemoryId>& memory,
                                 absl::Time deadline);

 private:
  struct Held {
    Item item;
    std::optional<absl::Time> return_by;
    bool to_send = false;  // The holder was not told of return_by yet.
  };
  struct Holder {
    platform::PeerCredentials credentials;
    absl::Time since;
    // Empty: the system cannot refer to it, so it is never known to have ended.
    std::optional<platform::Process> process;
    platform::Channel* channel = nullptr;  // From Attach() on.
    bool hung_up = false;
    std::vector<Held> held;
  };

  // The rest: mutex_ is held.
  void ForgetEnded();
  static void SendRecalls(Holder& holder);
  std::vector<MemoryLease> ListOf(const std::optional<MemoryId>& memory) const;

  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 1;
  std::map<Entry, Holder> holders_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_LEASE_BOOK_H_
