// Staging: pinned pieces of the host's memory, by which bytes go to a device and
// come from there at the rate of the bus; internal to vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_STAGING_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_STAGING_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/base/mutex.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/memory/primary_context.h"

namespace vmm::weights {

// Large enough for the bus, and small enough for a processor's cache, in which a
// piece still is when its checksum is taken.
inline constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

// As many pieces as are in use at once, which is one a thread. Thread-safe.
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
    Piece(Staging* staging, platform::Owned<PinnedBytesTraits> pinned)
        : staging_(staging), pinned_(std::move(pinned)) {}
    Staging* staging_;
    platform::Owned<PinnedBytesTraits> pinned_;
  };

  Staging(platform::Driver driver,
          std::shared_ptr<const PrimaryContext> context)
      : driver_(std::move(driver)), context_(std::move(context)) {}

  // RESOURCE_EXHAUSTED when the host has no memory to pin. REQUIRES: the context
  // is current.
  absl::StatusOr<Piece> Take();
  // For whoever lets one copy at a time have the bus.
  platform::Mutex& bus() { return bus_; }

 private:
  const platform::Driver driver_;
  const std::shared_ptr<const PrimaryContext> context_;
  platform::Mutex bus_;  // Guards no member: who has it copies.
  platform::Mutex mutex_;
  std::vector<platform::Owned<PinnedBytesTraits>> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_STAGING_H_
