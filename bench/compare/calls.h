// Counting of calls: into the driver, and into the operating system.
#ifndef VMMSHARE_BENCH_COMPARE_CALLS_H_
#define VMMSHARE_BENCH_COMPARE_CALLS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"

namespace bench::compare {

// `real` behind a table whose entries count, each thread for itself: about a
// nanosecond a call. REQUIRES: called once.
absl::StatusOr<vmm::platform::Driver> CountingDriver(
    const vmm::platform::Driver& real);
// Calls of this thread so far into the driver that CountingDriver() answered.
std::uint64_t DriverCalls();

// Of the calling thread, from Start to Stop: whether it makes a system call
// between Arm and Disarm. By Linux's PR_SET_SYSCALL_USER_DISPATCH, on x86-64;
// Start answers false where there is none.
bool StartSystemCallWatch();
void StopSystemCallWatch();
void ArmSystemCallWatch();
bool DisarmSystemCallWatch();

// What pieces of work called. Plain: it travels as it lies.
struct CallCounts {
  std::uint64_t pieces = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t watched = 0;           // Pieces seen by the system call watch.
  std::uint64_t with_system_call = 0;  // Of these; at least one each.
};

// Adds to `counts` what pieces of the calling thread's work call. Null: it does
// nothing, for counting takes time.
class CallCounter {
 public:
  explicit CallCounter(CallCounts* counts)
      : counts_(counts),
        watches_(counts != nullptr && StartSystemCallWatch()) {}
  ~CallCounter() {
    if (watches_) StopSystemCallWatch();
  }
  CallCounter(const CallCounter&) = delete;
  CallCounter& operator=(const CallCounter&) = delete;

  // Answers what `piece` does.
  template <typename Piece>
  auto Count(Piece piece) {
    if (counts_ == nullptr) return piece();
    const std::uint64_t before = DriverCalls();
    if (watches_) ArmSystemCallWatch();
    auto result = piece();
    const bool called = watches_ && DisarmSystemCallWatch();
    ++counts_->pieces;
    counts_->driver_calls += DriverCalls() - before;
    counts_->watched += watches_ ? 1 : 0;
    counts_->with_system_call += called ? 1 : 0;
    return result;
  }

 private:
  CallCounts* counts_;
  bool watches_;
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_CALLS_H_
