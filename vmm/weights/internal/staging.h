// Staging: pinned pieces of the host's memory, by which bytes go to a device and
// come from there at the rate of the bus; internal to vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_STAGING_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_STAGING_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/pinned_bytes.h"
#include "vmm/memory/internal/recorded_event.h"

namespace vmm::weights {

// Large enough for the bus, and small enough for a processor's cache, in which a
// piece still is when its checksum is taken.
inline constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

// As many pieces as are in use at once, which is two a thread. Thread-safe.
class Staging {
 public:
  // A piece, until it is destroyed; the Staging outlives it.
  class Piece {
   public:
    Piece(Piece&&) noexcept = default;
    Piece& operator=(Piece&&) = delete;
    ~Piece();
    absl::Span<std::uint8_t> bytes() const;  // kPiece of them.

   private:
    friend class Staging;
    Piece(Staging* staging, std::unique_ptr<PinnedBytes> pinned)
        : staging_(staging), pinned_(std::move(pinned)) {}
    Staging* staging_;
    std::unique_ptr<PinnedBytes> pinned_;
  };

  // `context` is `device`'s.
  Staging(Device device, std::shared_ptr<const PrimaryContext> context)
      : device_(std::move(device)), context_(std::move(context)) {}

  // Errors as PinnedBytes::Pin(). REQUIRES: the context is current.
  absl::StatusOr<Piece> Take();
  const platform::Driver& driver() const { return device_.driver(); }
  const PrimaryContext& context() const { return *context_; }

 private:
  const Device device_;
  const std::shared_ptr<const PrimaryContext> context_;
  platform::Mutex mutex_;
  std::vector<std::unique_ptr<PinnedBytes>> free_ ABSL_GUARDED_BY(mutex_);
};

// What one thread writes to a device, by two pieces in turn: one is filled while the
// device reads the other. Nobody spins for the bus: the driver does when it is asked
// for a copy that has ended on return, which cost a load a seventh of its CPU time
// with one thread and more with several (measured).
// Of one thread, whose current context it is from Next() on until it goes.
class StagedWrites {
 public:
  // The Staging outlives it.
  explicit StagedWrites(Staging& staging) : staging_(&staging) {}
  StagedWrites(StagedWrites&&) noexcept = default;
  StagedWrites& operator=(StagedWrites&&) = delete;
  // Waits as Finish() does; what fails is reported.
  ~StagedWrites();

  // A piece that may be filled, once nothing reads it any more. The same one until it
  // is written. Errors as Staging::Take(); otherwise the error of a write before.
  absl::StatusOr<absl::Span<std::uint8_t>> Next();
  // Begins to copy the first `size` bytes of that piece to `to`, on the default stream
  // of the device's primary context.
  absl::Status Write(CUdeviceptr to, std::uint64_t size);
  // Returns when all that was written is there.
  absl::Status Finish();

 private:
  struct Turn {
    Staging::Piece piece;
    OwnedEvent read;  // Has a value while the device may read the piece.
  };
  static constexpr std::size_t kTurns = 2;

  absl::Status Await(Turn& turn) const;
  // Where nobody can say when a piece is free again: returns `why` when all are.
  absl::Status AwaitAll(const absl::Status& why) const;

  Staging* staging_;
  // From the first piece on: without it nobody could wait for the copies, and the
  // pieces go next.
  std::optional<CurrentContext> current_;
  std::vector<Turn> turns_;
  std::size_t next_ = 0;
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_STAGING_H_
