// PendingBlocks: blocks that wait until the GPU has passed the point where they
// were freed; internal to vmm/.
#ifndef VMMSHARE_VMM_POOL_PENDING_H_
#define VMMSHARE_VMM_POOL_PENDING_H_

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "platform/driver.h"
#include "vmm/pool/block.h"
#include "vmm/recorded_event.h"

namespace vmm::pool {

// Thread-compatible.
class PendingBlocks {
 public:
  explicit PendingBlocks(platform::Driver driver)
      : driver_(std::move(driver)) {}

  // `block` waits for what is on block->freed_on now, or a little more. No
  // driver call: the point is recorded by the next Collect().
  void Add(Block* block);

  // Records points for what came since the last call, and answers the blocks
  // that the GPU has passed. Does not wait. A stream that cannot be asked
  // keeps its blocks; `error` gets the last such failure.
  BlockList Collect(absl::Status* error);

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Batch {
    OwnedEvent point;
    BlockList blocks;
  };

  platform::Driver driver_;
  std::vector<std::pair<CUstream, BlockList>> fresh_;  // Without a point.
  std::deque<Batch> batches_;
  std::uint64_t bytes_ = 0;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_PENDING_H_
