// How a ring's writer makes its buffers, offers them and goes, and what looks
// after the reader meanwhile.
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "vmm/queue/internal/ring_writer_state.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {

using ring::Slot;

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

}  // namespace vmm
