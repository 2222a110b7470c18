// Blocks that are given back to a pool's owner, at once or behind a stream.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/os/start_thread.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/pool/internal/stream_context.h"
#include "vmm/pool/internal/subscription.h"

namespace vmm::pool {
namespace {

// How often the GPU is asked whether it has passed a point: CUDA has no wait
// that can be cancelled.
constexpr absl::Duration kLookAtPoints = absl::Milliseconds(1);

}  // namespace

void Subscription::GiveBackOne(const Place& place, Gone& gone) {
  table_->Release(place.slot);
  auto part = FindSegment(place.segment);
  std::uint64_t end =
      place.address - part->second.memory->address() + place.size;
  for (;;) {
    Segment& segment = part->second;
    const bool is_last = end <= segment.size;
    end -= std::min(end, segment.size);
    const auto next = is_last ? segments_.end() : Next(segment);
    if (--segment.blocks == 0 && segment.forgotten) {
      gone.insert(TakeOut(part));
    }
    if (is_last) return;
    part = next;
  }
}

void Subscription::GiveBack(absl::Span<const Place> places) {
  Gone gone;
  {
    platform::MutexLock lock(mutex_);
    imported_ -= places.size();
    for (const Place& place : places) GiveBackOne(place, gone);
  }
  if (gone.empty()) return;
  const RelaxedCapture relaxed(driver_);
  gone.clear();
}

void Subscription::Release(ImportedBlock& block) {
  // A child that gave it back would take it from under its parent.
  if (IsOfAnotherProcess()) return;
  const Place place{block.segment_, block.slot_, block.address_, block.size_};
  GiveBack(absl::MakeConstSpan(&place, 1));
  block.pool_ = nullptr;
}

absl::Status Subscription::ReleaseAfter(absl::Span<ImportedBlock> blocks,
                                        CUstream stream) {
  RETURN_IF_ERROR(CheckIsOneStream(stream));
  Batch batch;
  for (const ImportedBlock& block : blocks) {
    platform::Check(block.pool_ == this,
                    "a block of another pool, or one moved from, is released");
    batch.places.push_back(
        {block.segment_, block.slot_, block.address_, block.size_});
  }
  ASSIGN_OR_RETURN(batch.point, RecordEvent(driver_, stream));
  platform::MutexLock lock(mutex_);
  if (!releaser_.joinable()) {
    RETURN_IF_ERROR(platform::StartThread(
        releaser_, "vmmshare-free", kThreadsAreFor, [this] { ReleaseLoop(); }));
  }
  releasing_.push_back(std::move(batch));
  for (ImportedBlock& block : blocks) block.pool_ = nullptr;
  changed_.NotifyAll();
  return absl::OkStatus();
}

void Subscription::ReleaseLoop() {
  RelaxCaptureForThread(driver_);
  platform::MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && releasing_.empty()) changed_.Wait(mutex_);
    if (stopping_) return;
    std::list<Batch> passed;
    // What comes meanwhile is asked after next time: else what has passed might
    // never go back.
    std::size_t left = releasing_.size();
    // A stream whose work failed keeps its blocks: nobody knows what the GPU
    // still does with them.
    for (auto batch = releasing_.begin(); left != 0; --left) {
      // The driver may have it wait for another thread's call, as one that frees
      // does. Nobody else takes a batch out.
      const OwnedEvent& point = batch->point;
      lock.Unlock();
      const absl::StatusOr<bool> has_passed = HasPassed(point);
      lock.Lock();
      if (!has_passed.ok()) last_error_ = has_passed.status();
      const auto looked_at = batch++;
      if (has_passed.ok() && *has_passed) {
        passed.splice(passed.end(), releasing_, looked_at);
      }
    }
    lock.Unlock();
    for (const Batch& batch : passed) GiveBack(batch.places);
    passed.clear();
    lock.Lock();
    const Deadline again = Deadline::In(kLookAtPoints);
    while (!releasing_.empty() && !stopping_ && !again.Passed()) {
      changed_.WaitFor(mutex_, again.Slice());
    }
  }
}

}  // namespace vmm::pool
