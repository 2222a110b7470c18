// The producer's side of a ring.
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/spare_context.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/queue/internal/ring_writer_state.h"

namespace vmm {

using ring::Slot;

namespace {

// Laps that the host may be ahead of the reader's GPU. With one it could put
// nothing on its stream before the reader is done, and the GPU would stand
// still meanwhile.
constexpr std::uint64_t kLapsAhead = 2;

}  // namespace

absl::Status RingWriter::State::Judge(const absl::Status& status,
                                      Deadline deadline) {
  if (!absl::IsUnavailable(status) && !absl::IsAborted(status)) {
    if (absl::IsDataLoss(status)) over_ = status;
    return status;
  }
  // What the reader said last is why.
  const absl::Status said = peer_.StillHere();
  if (absl::IsAborted(said)) {
    // It does not know the fences of what it has not acquired.
    LetGoOfReader();
    over_ = platform::Annotate(said, "the ring was let go");
    return over_;
  }
  // A reader that leaves lets go of its writer, and so does the watcher.
  if (absl::IsAborted(status) && !absl::IsUnavailable(said) &&
      !peer_.end_is_proven()) {
    over_ = platform::Annotate(status, "the ring was let go");
    return over_;
  }
  const absl::Status gone = absl::IsUnavailable(said)
                                ? said
                                : absl::UnavailableError(status.message());
  over_ = peer_.Gone(gone, deadline, &lost_);
  if (lost_.ok()) LetGoOfReader();
  return over_;
}

absl::StatusOr<RingBuffer> RingWriter::State::Acquire(CUstream stream,
                                                      Deadline deadline) {
  RETURN_IF_ERROR(Over(deadline));
  if (finished_) {
    return absl::FailedPreconditionError(
        "the ring is finished: its reader was told that no more come");
  }
  Slot& slot = slots_[(next_ - 1) % slots_.size()];
  const std::uint64_t lap = (next_ - 1) / slots_.size() + 1;
  if (slot.held) {
    return absl::FailedPreconditionError(absl::StrCat(
        "item ", slot.item.number, " was acquired and is not published; item ",
        next_, " has the same buffer"));
  }
  ASSIGN_OR_RETURN(const CurrentContext current,
                   home_.spare_->EnterFor(stream));
  RETURN_IF_ERROR(
      ring::CheckMayAcquire(home_.pool().device().driver(), stream));
  if (lap > kLapsAhead) {
    absl::Status near_enough =
        slot.free.WaitOnHost(lap - kLapsAhead, deadline, peer_.Watch(true));
    if (!near_enough.ok()) {
      return Judge(platform::Annotate(near_enough,
                                      absl::StrCat("the buffer of item ", next_,
                                                   " is not given back")),
                   deadline);
    }
  }
  if (lap > 1) {
    absl::Status put = slot.free.Wait(stream, lap - 1);
    if (!put.ok()) return Judge(put, deadline);
  }
  slot.held = true;
  slot.item.number = next_++;
  slot.item.lap = lap;
  return RingBuffer{slot.address, bytes_, 0, slot.item.number};
}

absl::Status RingWriter::State::Publish(const RingBuffer& buffer,
                                        CUstream stream, Deadline deadline) {
  Slot& slot = slots_[(buffer.number - 1) % slots_.size()];
  if (!slot.held || slot.item.number != buffer.number ||
      slot.address != buffer.address) {
    return absl::FailedPreconditionError(
        absl::StrCat("item ", buffer.number,
                     " is not acquired from this ring, or published already"));
  }
  if (buffer.size > bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("item ", buffer.number, " cannot have ", buffer.size,
                     " bytes; the ring's buffers have ", bytes_));
  }
  const platform::Driver& driver = home_.pool().device().driver();
  absl::Status put = Over(deadline);
  const absl::StatusOr<CurrentContext> current = home_.spare_->EnterFor(stream);
  put.Update(current.status());
  if (put.ok()) {
    // After a failed send what the reader said before could not be read.
    put = peer_.StillHere();
    if (put.ok()) put = slot.last.Record(driver, stream);
    if (put.ok()) put = slot.full.Signal(stream, slot.item.lap);
    if (!put.ok()) put = Judge(put, deadline);
  }
  if (!put.ok()) {
    // Of a ring that has ended it is given back, in the stream's order.
    if (!over_.ok()) slot.held = !slot.last.Record(driver, stream).ok();
    return put;
  }
  slot.held = false;
  slot.published = slot.item.lap;
  slot.item.size = buffer.size;
  slot.item.tag = buffer.tag;
  const RingItemBytes bytes = EncodeRingItem(slot.item);
  absl::Status sent =
      peer_.channel().Send(ring::kRingItem, bytes, {}, deadline);
  if (sent.ok()) return sent;
  if (absl::IsUnavailable(sent)) return Judge(sent, deadline);
  sent = platform::Annotate(sent, "an item could not be sent to the reader",
                            "The ring has ended");
  // Later calls do not say what may be tried again.
  over_ = absl::AbortedError(sent.message());
  return sent;
}

absl::Status RingWriter::State::Finish(Deadline deadline) {
  RETURN_IF_ERROR(Over(deadline));
  for (const Slot& slot : slots_) {
    if (!slot.held) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "item ", slot.item.number, " was acquired and is not published"));
  }
  if (!finished_) {
    std::vector<std::uint8_t> count;
    WireWriter(count).Put<std::uint64_t>(next_ - 1);
    absl::Status sent =
        peer_.channel().Send(ring::kRingEnd, count, {}, deadline);
    if (!sent.ok()) return Judge(sent, deadline);
    finished_ = true;
  }
  for (Slot& slot : slots_) {
    absl::Status back =
        slot.free.WaitOnHost(slot.published, deadline, peer_.Watch(true));
    if (!back.ok()) {
      return Judge(
          platform::Annotate(back, absl::StrCat("item ", slot.item.number,
                                                " is not given back")),
          deadline);
    }
  }
  return absl::OkStatus();
}

void RingWriter::State::LetGo() {
  peer_.SayLetGo();
  for (Slot& slot : slots_) slot.full.Abandon().IgnoreError();
  LetGoOfReader();
  if (over_.ok()) over_ = ring::LetGoHere();
}

absl::StatusOr<RingBuffer> RingWriter::Acquire(CUstream stream,
                                               Deadline deadline) {
  RETURN_IF_ERROR(ring::CheckStream(stream));
  return state_->Acquire(stream, deadline);
}

absl::Status RingWriter::Publish(const RingBuffer& buffer, CUstream stream,
                                 Deadline deadline) {
  RETURN_IF_ERROR(ring::CheckStream(stream));
  return state_->Publish(buffer, stream, deadline);
}

absl::Status RingWriter::Finish(Deadline deadline) {
  return state_->Finish(deadline);
}

void RingWriter::LetGo() { state_->LetGo(); }

}  // namespace vmm
