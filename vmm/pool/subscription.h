// Subscription: what is behind an ImportedPool; internal to vmm/.
//
// Two threads of its own: one receives and maps segments, the other, started
// when it is first needed, waits for streams. Neither needs a CUDA context.
#ifndef VMMSHARE_VMM_POOL_SUBSCRIPTION_H_
#define VMMSHARE_VMM_POOL_SUBSCRIPTION_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/abandon.h"
#include "platform/channel.h"
#include "platform/driver.h"
#include "vmm/imported_allocation.h"
#include "vmm/imported_pool.h"
#include "vmm/pool/share_protocol.h"
#include "vmm/pool/shared_table_view.h"
#include "vmm/recorded_event.h"

namespace vmm::pool {

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
  bool IsOfAnotherProcess() const;

  absl::StatusOr<ImportedBlock> Import(const PoolTicket& ticket,
                                       absl::Time deadline);
  // All or nothing.
  absl::StatusOr<std::vector<ImportedBlock>> ImportAll(
      absl::Span<const PoolTicket> tickets, absl::Time deadline);
  void Release(ImportedBlock& block);
  absl::Status ReleaseAfter(absl::Span<ImportedBlock> blocks, CUstream stream);
  absl::Status connection() const;
  std::vector<RecalledBlock> Recalled() const;
  void Watch(ImportedPoolWatch watch);
  ImportedPoolStatistics statistics() const;

 private:
  struct Segment {
    // Or why it could not be mapped.
    absl::StatusOr<ImportedAllocation> memory;
    std::uint64_t blocks = 0;  // Imported from it.
    bool forgotten = false;    // By the owner: goes with its last block.
  };
  struct Place {
    std::uint32_t segment;
    std::uint32_t slot;
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

  void ReceiveLoop();
  absl::Status Take(Notice notice);
  absl::Status TakeSegment(Notice notice);
  void TakeForget(const ForgetSegment& forget);
  absl::Status TakeRecall(const RecallBlocks& recall);
  // REQUIRES: mutex_ is not held.
  void TellRecalled(absl::Span<const RecalledBlock> blocks);
  void ReleaseLoop();
  absl::Status ImportSome(absl::Span<const PoolTicket> tickets,
                          absl::Time deadline, std::vector<ImportedBlock>& out);
  // The block of a ticket that is held. `lock` is of mutex_.
  absl::StatusOr<ImportedBlock> Locate(std::unique_lock<std::mutex>& lock,
                                       const PoolTicket& ticket,
                                       absl::Time deadline);
  void GiveBack(absl::Span<const Place> places);

  const platform::Driver driver_;
  const ImportOptions options_;
  const std::unique_ptr<SharedTableView> table_;
  const std::uint64_t forks_;  // When it was started.
  platform::Channel channel_;
  const platform::CancelEvent stop_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status connection_;
  std::map<std::uint32_t, Segment> segments_;  // By number.
  std::vector<Batch> releasing_;
  absl::Status last_error_;
  std::uint64_t imported_ = 0;
  bool stopping_ = false;
  std::map<std::uint32_t, RecalledHere> recalled_;  // By slot.

  std::mutex watch_mutex_;  // Held while watch_ is told; before mutex_.
  ImportedPoolWatch watch_;

  std::thread receiver_;
  std::thread releaser_;  // Started under mutex_.
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_SUBSCRIPTION_H_
