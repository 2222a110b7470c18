#include "vmm/weights/internal/staging.h"

#include "absl/time/time.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/memory/stream_capture.h"

namespace vmm::weights {

Staging::Piece::~Piece() {
  if (pinned_ == nullptr) return;  // Moved from.
  const platform::MutexLock lock(staging_->mutex_);
  staging_->free_.push_back(std::move(pinned_));
}

absl::Span<std::uint8_t> Staging::Piece::bytes() const {
  return {static_cast<std::uint8_t*>(pinned_->at()),
          static_cast<std::size_t>(pinned_->size())};
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
  ASSIGN_OR_RETURN(PinnedBytes pinned,
                   PinnedBytes::Pin(device_, context_, kPiece));
  return Piece(this, std::make_unique<PinnedBytes>(std::move(pinned)));
}

StagedWrites::~StagedWrites() {
  if (const absl::Status finished = Finish(); !finished.ok()) {
    platform::ReportReleaseFailure(finished);
  }
}

absl::Status StagedWrites::Await(Turn& turn) const {
  if (!turn.read.has_value()) return absl::OkStatus();
  const OwnedEvent read = std::move(turn.read);
  // As long as the copy takes, and what the program put on the stream before it.
  const absl::Status passed = AwaitPassing(read, absl::InfiniteFuture());
  return passed.ok() ? passed : AwaitAll(passed);
}

absl::Status StagedWrites::AwaitAll(const absl::Status& why) const {
  // What it fails of is no news.
  (void)AwaitDefaultStream(staging_->driver());
  return why;
}

absl::StatusOr<absl::Span<std::uint8_t>> StagedWrites::Next() {
  if (!current_.has_value()) {
    ASSIGN_OR_RETURN(current_, staging_->context().MakeCurrent());
  }
  if (next_ == turns_.size()) {
    ASSIGN_OR_RETURN(Staging::Piece piece, staging_->Take());
    turns_.push_back({std::move(piece), OwnedEvent()});
  }
  RETURN_IF_ERROR(Await(turns_[next_]));
  return turns_[next_].piece.bytes();
}

absl::Status StagedWrites::Write(CUdeviceptr to, std::uint64_t size) {
  const platform::Driver& driver = staging_->driver();
  Turn& turn = turns_[next_];
  RETURN_IF_ERROR(
      Copied(driver,
             driver->cuMemcpyHtoDAsync(to, turn.piece.bytes().data(),
                                       static_cast<std::size_t>(size), nullptr),
             "cuMemcpyHtoDAsync", to, size));
  absl::StatusOr<OwnedEvent> read = RecordEvent(driver, nullptr);
  if (!read.ok()) return AwaitAll(read.status());
  turn.read = *std::move(read);
  next_ = (next_ + 1) % kTurns;
  return absl::OkStatus();
}

absl::Status StagedWrites::Finish() {
  absl::Status status;
  for (Turn& turn : turns_) status.Update(Await(turn));
  return status;
}

}  // namespace vmm::weights
