#include "vmm/weights/internal/staging.h"

#include <cstddef>

#include "platform/base/status_macros.h"

namespace vmm::weights {

Staging::Piece::~Piece() {
  if (!pinned_.has_value()) return;  // Moved from.
  const platform::MutexLock lock(staging_->mutex_);
  staging_->free_.push_back(std::move(pinned_));
}

absl::Span<std::uint8_t> Staging::Piece::bytes() const {
  return {static_cast<std::uint8_t*>(pinned_.get().at),
          static_cast<std::size_t>(pinned_.get().size)};
}

absl::StatusOr<Staging::Piece> Staging::Take() {
  {
    const platform::MutexLock lock(mutex_);
    if (!free_.empty()) {
      Piece piece(this, std::move(free_.back()));
      free_.pop_back();
      return piece;
    }
  }
  ASSIGN_OR_RETURN(auto pinned, Pin(driver_, context_, kPiece));
  return Piece(this, std::move(pinned));
}

}  // namespace vmm::weights
