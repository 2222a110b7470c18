// Inquiry: asks the GPU how far it is with what one stream has freed; internal
// to vmm/.
//
//   under the lock     Inquiry inquiry(backlog);
//   without it         inquiry.Ask(device, context);
//   under the lock     heap.Pass(backlog, inquiry.passed()), inquiry.End();
//
// An idle stream costs one question, whatever was freed on it. A busy one costs
// as many as points were passed since the last time, and one more; and a point
// is recorded, so that the next time something is known.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_POINTS_H_
#define VMMSHARE_VMM_POOL_INTERNAL_POINTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/pool/internal/backlog.h"

namespace vmm::pool {

// Move-only. Between construction and End() nobody else can ask for that
// backlog.
class Inquiry {
 public:
  // Under the lock. REQUIRES: !backlog.is_asked.
  explicit Inquiry(Backlog& backlog);
  // Under the lock: the backlog may be asked for again.
  void End();

  // Without the lock. Waits for nothing. `context`, whose default streams are
  // meant: as DefaultContext::Enter() (stream_context.h).
  void Ask(const Device& device, CUcontext context);
  // Makes the later work of `stream` wait, on the GPU, for all that was on the
  // backlog's when this was constructed. Waits for nothing. False: the backlog's
  // stream is captured into a graph.
  absl::StatusOr<bool> MakeWait(const Device& device, CUcontext context,
                                CUstream stream);

  Backlog& backlog() const { return *backlog_; }
  // The GPU has passed all that was freed up to it; 0 is none.
  std::uint64_t passed() const { return passed_; }
  // All that was there at construction was freed up to it.
  std::uint64_t epoch() const { return epoch_; }
  // Why the driver could not say, if it could not.
  const absl::Status& error() const { return error_; }

 private:
  // The same once the context is current.
  void AskEntered(const platform::Driver& driver);
  // Has the driver make a point after what is on the stream now.
  absl::Status Record(const platform::Driver& driver);

  Backlog* backlog_;
  CUstream stream_;
  std::uint64_t epoch_;
  bool needs_point_;
  std::vector<StreamPoint> points_;
  std::uint64_t passed_ = 0;
  absl::Status error_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_POINTS_H_
