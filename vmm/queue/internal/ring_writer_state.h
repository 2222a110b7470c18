// What a ring's writer is made of; internal to vmm/queue.
#ifndef VMMSHARE_VMM_QUEUE_INTERNAL_RING_WRITER_STATE_H_
#define VMMSHARE_VMM_QUEUE_INTERNAL_RING_WRITER_STATE_H_

#include <cuda.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/base/abandon.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/queue/internal/last_point.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/internal/watcher.h"
#include "vmm/queue/ring.h"
#include "vmm/sync/fence.h"

namespace vmm {
namespace ring {

// A buffer and what orders it.
struct Slot {
  CUdeviceptr address = 0;
  Fence full;
  Fence free;
  RingItem item;  // The last that was acquired. Its tickets stay.
  bool held = false;
  std::uint64_t published = 0;  // Laps.
  LastPoint last = {};          // Of this process's GPU.
};

}  // namespace ring

// Calls are ring_writer.cc's; how it offers its buffers and goes, and what looks
// after the reader between calls, are ring_writer_offer.cc's.
class RingWriter::State : public platform::Abandonable {
 public:
  State(RingHome& home, platform::Channel channel, const RingOptions& options)
      : home_(home),
        bytes_(options.bytes),
        patience_(options.patience),
        peer_(std::move(channel), "reader") {
    ++home_.writers_;
  }
  ~State();

  bool IsOfAnotherProcess() const { return !made_.is_still_here(); }
  absl::Status MakeSlots(std::uint32_t count, Deadline deadline);
  absl::Status Offer(Deadline deadline);
  absl::StatusOr<RingBuffer> Acquire(CUstream stream, Deadline deadline);
  absl::Status Publish(const RingBuffer& buffer, CUstream stream,
                       Deadline deadline);
  absl::Status Finish(Deadline deadline);
  void LetGo();

 private:
  absl::StatusOr<ring::Slot> MakeSlot();
  absl::Status Judge(const absl::Status& status, Deadline deadline);
  // Why the ring has ended; OK until it has. Whether the reader's end is proven
  // may be known since.
  absl::Status Over(Deadline deadline) {
    return lost_.ok() ? over_ : Judge(lost_, deadline);
  }
  // Between calls, on the watcher's thread.
  void LookAfterReader();
  // Lets this process's streams go that wait for the reader. REQUIRES: its end
  // is proven, or it said so: they write over what it had.
  void LetGoOfReader() {
    for (ring::Slot& slot : slots_) slot.free.Abandon().IgnoreError();
  }

  RingHome& home_;
  const std::uint64_t bytes_;
  const absl::Duration patience_;
  const platform::MadeHere made_;
  ring::RingPeer peer_;
  std::vector<ring::Slot> slots_;  // As many as there are before it is offered.
  std::uint64_t next_ = 1;         // Number of the next item.
  bool finished_ = false;          // kRingEnd was sent.
  absl::Status over_;              // Why the ring has ended.
  absl::Status lost_;      // The same, of a reader whose end is not proven.
  ring::Watcher watcher_;  // Ends before what it looks at.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_RING_WRITER_STATE_H_
