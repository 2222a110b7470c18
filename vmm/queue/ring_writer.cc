// The producer's side of a ring.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/process.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/queue/internal/last_point.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/internal/watcher.h"
#include "vmm/queue/ring.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

using ring::RingPeer;

// Laps that the host may be ahead of the reader's GPU. With one it could put
// nothing on its stream before the reader is done, and the GPU would stand
// still meanwhile.
constexpr std::uint64_t kLapsAhead = 2;

struct Slot {
  CUdeviceptr address = 0;
  Fence full;
  Fence free;
  RingItem item;  // The last that was acquired. Its tickets stay.
  bool held = false;
  std::uint64_t published = 0;  // Laps.
  ring::LastPoint last = {};    // Of this process's GPU.
};

}  // namespace

class RingWriter::State : public platform::Abandonable {
 public:
  State(RingHome& home, platform::Channel channel, const RingOptions& options)
      : home_(home),
        bytes_(options.bytes),
        patience_(options.patience),
        forks_(platform::ForksSoFar()),
        peer_(std::move(channel), "reader") {
    ++home_.writers_;
  }
  ~State();

  bool IsOfAnotherProcess() const { return platform::ForksSoFar() != forks_; }
  absl::Status MakeSlots(std::uint32_t count, Deadline deadline);
  absl::Status Offer(Deadline deadline);
  absl::StatusOr<RingBuffer> Acquire(CUstream stream, Deadline deadline);
  absl::Status Publish(const RingBuffer& buffer, CUstream stream,
                       Deadline deadline);
  absl::Status Finish(Deadline deadline);
  void LetGo();

 private:
  absl::StatusOr<Slot> MakeSlot();
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
    for (Slot& slot : slots_) slot.free.Abandon().IgnoreError();
  }

  RingHome& home_;
  const std::uint64_t bytes_;
  const absl::Duration patience_;
  const std::uint64_t forks_;
  RingPeer peer_;
  std::vector<Slot> slots_;  // As many as there are before it is offered.
  std::uint64_t next_ = 1;   // Number of the next item.
  bool finished_ = false;    // kRingEnd was sent.
  absl::Status over_;        // Why the ring has ended.
  absl::Status lost_;        // The same, of a reader whose end is not proven.
  ring::Watcher watcher_;    // Ends before what it looks at.
};

absl::StatusOr<Slot> RingWriter::State::MakeSlot() {
  ASSIGN_OR_RETURN(Fence full, home_.fences().New());
  ASSIGN_OR_RETURN(Fence free, home_.fences().New());
  RingItem item;
  ASSIGN_OR_RETURN(item.full, home_.fences().Export(full));
  ASSIGN_OR_RETURN(item.free, home_.fences().Export(free));
  // No work is on any stream yet, so any will do.
  ASSIGN_OR_RETURN(const CUdeviceptr block,
                   home_.pool().Allocate(bytes_, nullptr));
  absl::StatusOr<PoolTicket> ticket = home_.pool().Export(block);
  if (!ticket.ok()) {
    home_.pool().Free(block, nullptr).IgnoreError();
    return ticket.status();
  }
  item.block = *ticket;
  return Slot{block, std::move(full), std::move(free), item};
}

absl::Status RingWriter::State::MakeSlots(std::uint32_t count,
                                          Deadline deadline) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i > 0 && deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("of a ring's ", count, " buffers of ", bytes_, " bytes ",
                       i, " were made before the deadline"));
    }
    ASSIGN_OR_RETURN(Slot slot, MakeSlot());
    slots_.push_back(std::move(slot));
  }
  return absl::OkStatus();
}

absl::Status RingWriter::State::Offer(Deadline deadline) {
  platform::Channel& channel = peer_.channel();
  absl::Status sent = channel.Send(
      ring::kRingOffer,
      ring::EncodeOffer({static_cast<std::uint32_t>(slots_.size()), bytes_,
                         home_.pool_ticket(), home_.fences_ticket()}),
      {}, deadline);
  if (sent.ok()) sent = platform::SendLifeline(channel, deadline);
  if (!sent.ok()) return platform::Annotate(sent, "offering a ring");
  absl::StatusOr<platform::Message> answer = peer_.Receive(deadline);
  if (!answer.ok()) {
    return platform::Annotate(answer.status(), "the reader did not join");
  }
  if (answer->type == ring::kRingJoined) {
    RETURN_IF_ERROR(platform::Annotate(peer_.ReceiveLifeline(deadline),
                                       "the reader did not join"));
    return peer_.LookAfter(watcher_, [this] { LookAfterReader(); });
  }
  if (answer->type == protocol::kRefused) {
    return protocol::DecodeError(answer->payload, "the reader");
  }
  return absl::DataLossError(
      absl::StrCat("the reader answered the offer of a ring by a message of "
                   "type 0x",
                   absl::Hex(answer->type)));
}

void RingWriter::State::LookAfterReader() {
  peer_.Hear().IgnoreError();  // The next call says what was heard.
  if (peer_.has_let_go()) {
    LetGoOfReader();
  } else if (peer_.end_is_proven() || peer_.has_left()) {
    // Mostly after it has given all back. Abandoned fences wear their memory out.
    for (Slot& slot : slots_) {
      const absl::StatusOr<std::uint64_t> full = slot.full.Query();
      const absl::StatusOr<std::uint64_t> free = slot.free.Query();
      if (full.ok() && free.ok() && *free >= *full) continue;
      slot.free.Abandon().IgnoreError();
    }
  }
}

RingWriter::State::~State() {
  // Not let go at once: what waits for a buffer would write over what the
  // reader still uses, and what it has not imported yet it could not any more.
  Deadline deadline = Deadline::In(patience_);
  bool is_lost = false;
  for (Slot& slot : slots_) {
    if (slot.free.WaitOnHost(slot.published, deadline, peer_.Watch(true))
            .ok()) {
      continue;
    }
    // Nor when its process has ended: what that has forked may use it, too.
    FenceWatch until_proven;
    until_proven.still_worth = [this] {
      peer_.StillHere().IgnoreError();  // It may have said that it left.
      return peer_.HasEnded() ? absl::UnavailableError("") : absl::OkStatus();
    };
    for (Slot& one : slots_) {
      if (one.item.lap < 2) continue;  // Its stream waits for nobody.
      one.free.WaitOnHost(one.item.lap - 1, deadline, until_proven)
          .IgnoreError();
    }
    LetGoOfReader();
    is_lost = true;
    deadline = Deadline::In(patience_);
    break;
  }
  bool passed = true;
  for (Slot& slot : slots_) {
    // The GPU may still write there, whatever the fences say.
    const bool done = slot.last.Await(deadline).ok();
    passed &= done;
    // What was acquired and never published, too, its reader is not to wait for.
    // Only now: where its process has ended and its GPU goes on, that would use
    // what this GPU still fills.
    if (is_lost) slot.full.Abandon().IgnoreError();
    if (slot.held || !done) continue;
    home_.pool().Free(slot.address, nullptr).IgnoreError();
  }
  peer_.Leave(passed);
  --home_.writers_;
}

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
  over_ = peer_.Gone(gone, deadline);
  lost_ = peer_.has_ended() ? absl::OkStatus() : gone;
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
  over_ = platform::Annotate(sent, "an item could not be sent to the reader",
                             "The ring has ended");
  return over_;
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
  if (over_.ok()) over_ = absl::AbortedError("the ring was let go by LetGo()");
}

absl::StatusOr<std::unique_ptr<RingWriter>> RingWriter::Open(
    RingHome& home, platform::Channel channel, const RingOptions& options,
    Deadline deadline) {
  if (options.buffers == 0 || options.buffers > kMaxRingBuffers ||
      options.bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ring of ", options.buffers, " buffers of ",
                     options.bytes, " bytes was asked for; expected 1 to ",
                     kMaxRingBuffers, ", of at least a byte"));
  }
  auto state = std::make_unique<State>(home, std::move(channel), options);
  RETURN_IF_ERROR(state->MakeSlots(options.buffers, deadline));
  RETURN_IF_ERROR(state->Offer(deadline));
  return std::unique_ptr<RingWriter>(new RingWriter(std::move(state)));
}

RingWriter::RingWriter(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

RingWriter::~RingWriter() {
  if (state_->IsOfAnotherProcess()) platform::Abandon(std::move(state_));
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
