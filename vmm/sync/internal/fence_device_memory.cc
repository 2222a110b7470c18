#include "vmm/sync/internal/fence_device_memory.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/sync/internal/fence_words.h"

namespace vmm::fence {
namespace {

// How often Look() reads what somebody else is changing.
constexpr int kTries = 16;

absl::Status NotMyTurn() {
  return absl::DeadlineExceededError(
      "the device has not answered what another thread asked it of a fence of "
      "the same array: its memory is out of reach, the device has stopped, or "
      "as many streams of this process wait as there are hardware queues "
      "(CUDA_DEVICE_MAX_CONNECTIONS, 8 without it)");
}

// Gives back a turn that the caller has. Until then no call of its thread breaks
// a capture: a question after any stream would, the array's own one too.
class ABSL_SCOPED_LOCKABLE TurnGiver {
 public:
  TurnGiver(Turn& turn, const platform::Driver& driver)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn)
      : turn_(turn), relaxed_(driver) {}
  ~TurnGiver() ABSL_UNLOCK_FUNCTION() { turn_.Give(); }
  TurnGiver(const TurnGiver&) = delete;
  TurnGiver& operator=(const TurnGiver&) = delete;

 private:
  Turn& turn_;
  const RelaxedCapture relaxed_;
};

}  // namespace

bool Turn::TakeBy(Deadline deadline) {
  const platform::MutexLock lock(mutex_);
  while (taken_) {
    if (deadline.Passed()) return false;
    given_.WaitFor(mutex_, deadline.Slice());
  }
  taken_ = true;
  return true;
}

void Turn::Give() {
  {
    const platform::MutexLock lock(mutex_);
    taken_ = false;
  }
  given_.NotifyOne();
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Make(
    const Device& device, CUdeviceptr first, std::uint64_t count) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceWords> words,
                   DeviceWords::Make(device, first));
  return std::unique_ptr<DeviceMemory>(
      new DeviceMemory(first, count, std::move(words)));
}

DeviceMemory::Seen& DeviceMemory::SeenOf(CUdeviceptr fence) {
  return seen_[(fence - first_) / kFenceBytes];
}

void DeviceMemory::Note(CUdeviceptr fence, const Progress& progress) {
  if (progress.corrupt) return;
  Seen& seen = SeenOf(fence);
  fence::Raise(seen.value, progress.value);
  if (progress.abandoned) seen.abandoned = true;
}

Progress DeviceMemory::Glance(CUdeviceptr fence, std::uint64_t) {
  const Seen& seen = SeenOf(fence);
  Progress progress;
  progress.abandoned = seen.abandoned;
  progress.value = seen.value;
  return progress;
}

absl::Status DeviceMemory::End(CUdeviceptr fence, std::uint64_t reached,
                               std::uint64_t end, Deadline deadline) {
  // In this order: who finds the end finds also where the fence came.
  RETURN_IF_ERROR(
      words_->Write(fence + offsetof(Words, abandoned), reached + 1));
  RETURN_IF_ERROR(words_->Write(fence, end));
  return words_->Await(deadline);
}

absl::StatusOr<Progress> DeviceMemory::Look(CUdeviceptr fence,
                                            std::uint64_t base,
                                            Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, words_->driver());
  ASSIGN_OR_RETURN(const CurrentContext current, words_->Enter());
  return Judge(fence, base, deadline);
}

absl::StatusOr<Progress> DeviceMemory::Judge(CUdeviceptr fence,
                                             std::uint64_t base,
                                             Deadline deadline) {
  const std::uint64_t end = base + kSpan;
  absl::StatusOr<DeviceWords::Found> found = words_->Read(fence, deadline);
  // Somebody is abandoning it: the copy was not made in one moment.
  for (int i = 0;
       i < kTries && found.ok() && found->value == end && found->abandoned == 0;
       ++i) {
    found = words_->Read(fence, deadline);
  }
  if (!found.ok()) return found.status();
  std::uint64_t raw = found->value;
  if (found->abandoned != 0) {
    raw = found->abandoned - 1;
    if (found->value != end) {
      // A signal that was on its way then. It counts.
      if (found->value < end) raw = std::max(raw, found->value);
      RETURN_IF_ERROR(End(fence, raw, end, deadline));
    }
  }
  const Progress progress = ProgressOf(raw, base, found->abandoned != 0);
  Note(fence, progress);
  return progress;
}

absl::Status DeviceMemory::Raise(CUdeviceptr fence, std::uint64_t raw,
                                 Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, words_->driver());
  ASSIGN_OR_RETURN(const CurrentContext current, words_->Enter());
  RETURN_IF_ERROR(words_->Write(fence, raw));
  return words_->Await(deadline);
}

absl::Status DeviceMemory::Abandon(CUdeviceptr fence, std::uint64_t base,
                                   Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, words_->driver());
  ASSIGN_OR_RETURN(const CurrentContext current, words_->Enter());
  ASSIGN_OR_RETURN(Progress now, Judge(fence, base, deadline));
  if (now.abandoned) return absl::OkStatus();
  absl::Status ended = End(fence, base + now.value, base + kSpan, deadline);
  now.abandoned = true;
  if (ended.ok()) Note(fence, now);
  return ended;
}

absl::Status DeviceMemory::Warm(const FenceKernels& kernels,
                                Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, words_->driver());
  ASSIGN_OR_RETURN(const CurrentContext current, words_->Enter());
  RETURN_IF_ERROR(words_->Warm(kernels));
  return words_->Await(deadline);
}

absl::Status DeviceMemory::Clear(Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, words_->driver());
  ASSIGN_OR_RETURN(const CurrentContext current, words_->Enter());
  // A call before this one may not have waited for its own: fills that stand must not
  // become more with each call.
  RETURN_IF_ERROR(words_->Await(deadline));
  RETURN_IF_ERROR(words_->Zero(seen_.size() * kFenceBytes));
  RETURN_IF_ERROR(words_->Await(deadline));
  for (Seen& seen : seen_) {
    seen.value = 0;
    seen.abandoned = false;
  }
  return absl::OkStatus();
}

}  // namespace vmm::fence
