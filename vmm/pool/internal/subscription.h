// Subscription: what is behind an ImportedPool; internal to vmm/.
//
// Two threads of its own: one receives and maps segments, and makes pages of
// the tables ahead; the other, started when it is first needed, waits for
// streams. Neither needs a CUDA context.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SUBSCRIPTION_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SUBSCRIPTION_H_

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/shared_table_view.h"
#include "vmm/share/imported_allocation.h"

namespace vmm::pool {

// For tests that refuse descriptors for ever: how long a subscription takes up again
// what has come and finds none. 10 s at first.
void SetTakeAgainFor(std::chrono::milliseconds time);

// Thread-safe.
class Subscription : public platform::Abandonable {
 public:
  static absl::StatusOr<std::unique_ptr<Subscription>> Start(
      const platform::Driver& driver, platform::Channel channel,
      std::unique_ptr<SharedTableView> table, const ImportOptions& options);
  // REQUIRES: no ImportedBlock of it is left; !IsOfAnotherProcess().
  ~Subscription();

  // Whether this process was forked from the one that started it. The threads
  // and what is held are that one's. No system call.
  bool IsOfAnotherProcess() const { return !made_.is_still_here(); }

  absl::StatusOr<ImportedBlock> Import(const PoolTicket& ticket,
                                       Deadline deadline);
  // All or nothing.
  absl::StatusOr<std::vector<ImportedBlock>> ImportAll(
      absl::Span<const PoolTicket> tickets, Deadline deadline);
  void Release(ImportedBlock& block);
  absl::Status ReleaseAfter(absl::Span<ImportedBlock> blocks, CUstream stream);
  void KeepWhatIsForgotten();
  absl::Status connection() const;
  std::vector<RecalledBlock> Recalled() const;
  void Watch(ImportedPoolWatch watch);
  ImportedPoolStatistics statistics() const;
  std::string weakness() const;

 private:
  // As an error says it.
  static constexpr absl::string_view kThreadsAreFor = "for a pool's memory";

  struct Segment {
    // Or why it could not be mapped.
    absl::StatusOr<ImportedAllocation> memory;
    SegmentPlace place;
    std::uint64_t size;        // Bytes.
    std::uint64_t blocks = 0;  // Imported that have a part of it.
    bool forgotten = false;    // By the owner: goes with its last block.
    bool used = false;         // A block of it was imported.
  };
  using Segments = std::map<std::uint32_t, Segment>;  // By number.
  // Out of the books, with the memory that they took there.
  using Gone = std::multimap<std::uint32_t, Segment>;
  // A block that is given back.
  struct Place {
    std::uint32_t segment;  // In which it begins.
    std::uint32_t slot;
    CUdeviceptr address;
    std::uint64_t size;
  };
  struct Addresses {
    std::uint64_t size = 0;
    bool on_host = false;                        // The segments there.
    std::weak_ptr<const AddressRange> reserved;  // By them.
  };
  struct RecalledHere {
    std::uint64_t generation;
    RecalledBlock block;
  };
  struct Batch {
    OwnedEvent point;
    std::vector<Place> places;
  };

  Subscription(const platform::Driver& driver, platform::Channel channel,
               platform::CancelEvent stop,
               std::unique_ptr<SharedTableView> table,
               const ImportOptions& options);

  void ReceiveLoop(const SharedTableView& view);
  // Until what has come may be taken up again, which failed with `lacking`.
  void AwaitDescriptors(const absl::Status& lacking);
  absl::Status Take(Notice notice);
  absl::Status TakeSegment(Notice notice);
  // Where a segment is to be mapped: as far from others as the owner has it.
  // DATA_LOSS when it does not fit beside them: a block may have parts of
  // several, and is the host's or a device's as a whole.
  absl::StatusOr<Placement> PlacementOf(const SegmentPlace& place,
                                        bool on_host);
  // Whether something that was forgotten, and is kept, is there.
  bool IsKept(const SegmentPlace& place, std::uint64_t size) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeForget(const ForgetSegment& forget);
  absl::Status TakeRecall(const RecallBlocks& recall);
  void TellRecalled(absl::Span<const RecalledBlock> blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(watch_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseLoop();
  absl::Status ImportSome(absl::Span<const PoolTicket> tickets,
                          Deadline deadline, std::vector<ImportedBlock>& out);
  // Where the block of a ticket is; waits for it, without mutex_.
  absl::StatusOr<Segment*> Locate(const PoolTicket& ticket, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether all of it is mapped; false while some is on its way.
  absl::StatusOr<bool> IsHere(const Segment& first,
                              const PoolTicket& ticket) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: held, and located there.
  ImportedBlock BlockOf(Segment& segment, const PoolTicket& ticket)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The segment that begins where this one ends; end() without.
  Segments::iterator Next(const Segment& segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Segments::iterator FindSegment(std::uint32_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Call>
  void ForEachMapped(const Call& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes no memory of the host: it is called by destructors.
  void GiveBack(absl::Span<const Place> places);
  // Of one; what is forgotten and in no block any more goes to `gone`.
  void GiveBackOne(const Place& place, Gone& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a segment that is forgotten out of the books. What is returned is to
  // be unmapped without mutex_.
  Segments::node_type TakeOut(Segments::iterator segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const platform::Driver driver_;
  const ImportOptions options_;
  const std::unique_ptr<SharedTableView> table_ ABSL_PT_GUARDED_BY(mutex_);
  const platform::MadeHere made_;
  platform::Channel channel_;
  const platform::CancelEvent stop_;

  mutable platform::Mutex mutex_;
  platform::CondVar changed_;
  absl::Status connection_ ABSL_GUARDED_BY(mutex_);
  // Why what has come is not taken yet.
  absl::Status lacking_ ABSL_GUARDED_BY(mutex_);
  Segments segments_ ABSL_GUARDED_BY(mutex_);
  // That of the last block: many of a lot are in one.
  Segments::iterator recent_ ABSL_GUARDED_BY(mutex_) = segments_.end();
  // Numbers of those that lie among others, by range and offset.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> placed_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::uint32_t, Addresses>
      ranges_;  // For the receiving thread alone.
  bool keeps_ ABSL_GUARDED_BY(mutex_) = false;
  // Forgotten, and mapped.
  Gone kept_ ABSL_GUARDED_BY(mutex_);
  // Of these, those that could not be mapped.
  std::size_t unmapped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Batch> releasing_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t imported_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // By slot.
  std::map<std::uint32_t, RecalledHere> recalled_ ABSL_GUARDED_BY(mutex_);

  // Held while watch_ is told.
  platform::Mutex watch_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  ImportedPoolWatch watch_ ABSL_GUARDED_BY(watch_mutex_);

  std::thread receiver_;
  std::thread releaser_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SUBSCRIPTION_H_
