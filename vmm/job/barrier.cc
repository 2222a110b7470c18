#include "vmm/job/barrier.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/job/internal/barrier_state.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {

absl::Status Barrier::State::CheckStream(CUstream stream) const {
  if (!whole().ok()) return absl::OkStatus();
  return CheckNotCaptured(
      driver_, stream, "meet at a barrier",
      "each launch of the graph would come to the same round: come again after "
      "cuStreamEndCapture()");
}

absl::Status Barrier::State::Arrive(
    const std::function<absl::Status(Fence&)>& signal, Deadline deadline) {
  RETURN_IF_ERROR(whole());
  const absl::Status signalled = signal(fences_[rank_]);
  if (!signalled.ok()) return Judge(signalled, rank_, deadline);
  platform::MutexLock lock(mutex_);
  ++round_;
  return absl::OkStatus();
}

absl::Status Barrier::State::ArriveOnHost(Deadline deadline) {
  return Arrive(
      [this](Fence& fence) { return fence.SignalFromHost(round_ + 1); },
      deadline);
}

absl::Status Barrier::State::Wait(CUstream stream) {
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    // Of a barrier that is broken nobody may come to that round.
    absl::Status put = whole().ok()
                           ? fences_[rank].Wait(stream, round_)
                           : fences_[rank].WaitOnHost(
                                 round_, absl::InfinitePast(), WhileWhole());
    if (!put.ok()) return Judge(put, rank, absl::InfinitePast());
  }
  return absl::OkStatus();
}

absl::Status Barrier::State::WaitOnHost(Deadline deadline) {
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    absl::Status came =
        fences_[rank].WaitOnHost(round_, deadline, WhileWhole());
    if (!came.ok()) return Judge(came, rank, deadline);
  }
  return absl::OkStatus();
}

void Barrier::State::LetGo() {
  {
    platform::MutexLock lock(mutex_);
    if (status_.ok()) {
      status_ = absl::AbortedError("the barrier was let go by LetGo()");
    }
  }
  LetGoOfAll();
  changed_.NotifyAll();
}

Barrier::Barrier(std::unique_ptr<State> state) : state_(std::move(state)) {}

Barrier::~Barrier() { State::Leave(std::move(state_)); }

absl::Status Barrier::Arrive(CUstream stream) {
  RETURN_IF_ERROR(state_->CheckStream(stream));
  return state_->Arrive(
      [this, stream](Fence& fence) -> absl::Status {
        // The arrival before may be on another stream, where it would come later
        // and take this one back. Asked of the fence, for a stream's value may
        // have been another one's.
        const std::uint64_t round = state_->round();
        ASSIGN_OR_RETURN(const std::uint64_t reached, fence.Query());
        if (reached < round) RETURN_IF_ERROR(fence.Wait(stream, round));
        return fence.Signal(stream, round + 1);
      },
      absl::InfinitePast());
}

absl::Status Barrier::ArriveOnHost() {
  return state_->ArriveOnHost(absl::InfinitePast());
}

absl::Status Barrier::Wait(CUstream stream) const {
  RETURN_IF_ERROR(state_->CheckStream(stream));
  return state_->Wait(stream);
}

absl::Status Barrier::WaitOnHost(Deadline deadline) const {
  return state_->WaitOnHost(deadline);
}

absl::Status Barrier::Meet(CUstream stream) {
  RETURN_IF_ERROR(Arrive(stream));
  return state_->Wait(stream);
}

absl::Status Barrier::MeetOnHost(Deadline deadline) {
  RETURN_IF_ERROR(state_->ArriveOnHost(deadline));
  return WaitOnHost(deadline);
}

void Barrier::LetGo() { state_->LetGo(); }
absl::Status Barrier::status() const { return state_->status(); }
std::uint32_t Barrier::rank() const { return state_->rank(); }
std::uint32_t Barrier::size() const { return state_->size(); }
std::uint64_t Barrier::round() const { return state_->round(); }

}  // namespace vmm
