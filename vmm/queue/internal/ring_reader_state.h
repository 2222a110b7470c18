// What a ring's reader is made of; internal to vmm/queue.
#ifndef VMMSHARE_VMM_QUEUE_INTERNAL_RING_READER_STATE_H_
#define VMMSHARE_VMM_QUEUE_INTERNAL_RING_READER_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/base/abandon.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/spare_context.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/queue/internal/last_point.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/internal/watcher.h"
#include "vmm/queue/ring.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"

namespace vmm {
namespace ring {

// A buffer, once an item in it has come.
struct Buffer {
  ImportedBlock block;
  Fence full;
  Fence free;
  RingItem item;  // The last that came.
  bool held = false;
  // LetGoOfWriter() was first: its fence is abandoned for that. Under a mutex.
  bool let_go = false;
  std::uint64_t awaited = 0;  // Laps, by some stream.
  std::uint64_t acquired = 0;
  std::uint64_t released = 0;
  LastPoint last = {};  // Of this process's GPU.
};

}  // namespace ring

// Calls are ring_reader.cc's; how it joins and goes, and what looks after the
// writer between calls, are ring_reader_join.cc's.
class RingReader::State : public platform::Abandonable {
 public:
  State(platform::Channel channel, absl::Duration patience)
      : patience_(patience), peer_(std::move(channel), "writer") {}

  bool IsOfAnotherProcess() const { return !made_.is_still_here(); }
  absl::Status Join(const Device& device, const RingReaderOptions& options,
                    Deadline deadline);
  absl::StatusOr<RingBuffer> Acquire(CUstream stream, Deadline deadline);
  absl::Status Release(const RingBuffer& buffer, CUstream stream);
  absl::Status Await(const RingBuffer& buffer, Deadline deadline);
  absl::Status Finish(Deadline deadline);
  void LetGo();
  // Whether nothing of it is in use any more, so that it can be destroyed.
  bool End();

 private:
  absl::Status Subscribe(const Device& device, const RingReaderOptions& options,
                         Deadline deadline);
  absl::StatusOr<RingItem> Next(Deadline deadline);
  absl::StatusOr<ring::Buffer*> BufferOf(const RingItem& item,
                                         Deadline deadline);
  // Whether this process's GPU has done with the buffer by the deadline, or,
  // if `while_here`, before the writer's end is proven: what that has forked
  // may still bring the contents.
  bool HasPassed(ring::Buffer& buffer, Deadline deadline, bool while_here);
  // The buffer of an item that is acquired; null when it is not.
  ring::Buffer* Held(const RingBuffer& buffer);
  absl::Status AwaitContents(ring::Buffer& buffer, Deadline deadline);
  absl::Status Judge(const absl::Status& status, Deadline deadline);
  // Why the ring has ended; OK until it has. Whether the writer's end is proven
  // may be known since.
  absl::Status Over(Deadline deadline) {
    return lost_.ok() ? over_ : Judge(lost_, deadline);
  }
  // Between calls, on the watcher's thread.
  void LookAfterWriter();
  // Lets this process's streams go that wait for the writer. Thread-safe.
  void LetGoOfWriter();
  // What the `full` of a buffer answered: UNAVAILABLE in place of ABORTED where
  // that came of LetGoOfWriter().
  absl::Status OfFull(const ring::Buffer& buffer, const absl::Status& status);

  const platform::MadeHere made_;
  const absl::Duration patience_;
  ring::RingPeer peer_;
  std::optional<platform::Driver> driver_;  // Once it has joined.
  std::optional<SpareContext> spare_;       // The same.
  // Go after the buffers.
  std::unique_ptr<ImportedPool> pool_;
  std::unique_ptr<ImportedFencePool> fences_;
  std::vector<std::optional<ring::Buffer>> buffers_;
  platform::Mutex filling_;  // Of buffers that are new, and of `let_go`.
  std::uint64_t bytes_ = 0;
  // Received, and not acquired because of an error that may pass.
  std::optional<RingItem> pending_;
  std::uint64_t acquired_ = 0;          // Items.
  std::optional<std::uint64_t> count_;  // Of all items, once it is known.
  absl::Status over_;                   // Why the ring has ended.
  absl::Status lost_;      // The same, of a writer whose end is not proven.
  ring::Watcher watcher_;  // Ends before what it looks at.
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_RING_READER_STATE_H_
