#include "vmm/pool/internal/share_protocol.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::pool {
namespace {

// How long a subscriber that leaves waits for the owner's hang-up, where it
// does: an owner that stands still or is hostile costs no more.
constexpr absl::Duration kOwnersHangUpTimeout = absl::Milliseconds(500);

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the pool's owner broke the protocol: ", what,
                   "; the channel is closed"));
}

absl::StatusOr<std::uint32_t> TakeNumber(WireReader& in) {
  const auto number = in.Take<std::uint32_t>();
  if (number == 0) return Broken("a segment without a number");
  return number;
}

// What follows a segment's handle; an owner of an older version sends nothing.
bool TakePlace(WireReader& in, const Ticket& ticket, SegmentPlace& place) {
  if (in.left() == 0) return true;
  place.range = in.Take<std::uint32_t>();
  const auto zero = in.Take<std::uint32_t>();
  place.offset = in.Take<std::uint64_t>();
  place.size = in.Take<std::uint64_t>();
  if (in.overrun() || in.left() != 0 || zero != 0) return false;
  if (place.range == 0) return place.offset == 0 && place.size == 0;
  return IsVmm(ticket.kind) && place.size <= kMaxRangeSize &&
         place.offset <= place.size &&
         ticket.layout.size <= place.size - place.offset;
}

absl::StatusOr<Notice> DecodeSegment(platform::Message& message) {
  WireReader in(message.payload);
  ASSIGN_OR_RETURN(const std::uint32_t number, TakeNumber(in));
  std::vector<std::uint8_t> bytes(kTicketBytes);
  in.TakeBytes(absl::MakeSpan(bytes));
  absl::StatusOr<Ticket> ticket = DecodeTicket(bytes);
  if (absl::IsUnimplemented(ticket.status())) return ticket.status();
  if (in.overrun() || !ticket.ok()) {
    return Broken(absl::StrCat("a segment without a ticket: ",
                               ticket.status().message()));
  }
  const bool is_bytes = HasBytes(ticket->kind);
  HandleBytes handle_bytes{};
  if (is_bytes) in.TakeBytes(absl::MakeSpan(handle_bytes));
  SegmentPlace place;
  if (in.overrun() || !TakePlace(in, *ticket, place) ||
      ticket->layout.count() != 1 || ticket->kind == HandleKind::kStreamPool ||
      message.handles.size() != (is_bytes ? 0 : 1)) {
    return Broken(absl::StrCat("a segment of ", ticket->layout.count(),
                               " chunks with ", message.handles.size(),
                               " handles and ", message.payload.size(),
                               " bytes"));
  }
  auto segment = std::make_shared<SharedSegment>();
  segment->number = number;
  segment->ticket = *std::move(ticket);
  segment->place = place;
  platform::OsHandle os_handle;
  if (!is_bytes) os_handle = std::move(message.handles.front());
  segment->handle =
      HandleOf(segment->ticket.kind, std::move(os_handle), handle_bytes);
  return Notice(std::shared_ptr<const SharedSegment>(std::move(segment)));
}

absl::StatusOr<Notice> DecodeRecall(absl::Span<const std::uint8_t> payload) {
  WireReader in(payload);
  const std::optional<absl::Duration> within = protocol::TakeWithin(in);
  const std::size_t count = in.left() / kRecalledSlotBytes;
  if (!within.has_value() || in.left() % kRecalledSlotBytes != 0 ||
      count == 0 || count > kMaxRecalled) {
    return Broken(absl::StrCat("a recall of ", payload.size(), " bytes"));
  }
  RecallBlocks recall{*within, {}};
  recall.blocks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    RecalledSlot& block = recall.blocks.emplace_back();
    block.segment = in.Take<std::uint32_t>();
    block.slot = in.Take<std::uint32_t>();
    block.generation = in.Take<std::uint64_t>();
    block.offset = in.Take<std::uint64_t>();
    block.size = in.Take<std::uint64_t>();
    if (block.segment == 0 || block.slot >= kPoolSlots ||
        block.generation == 0) {
      return Broken(absl::StrCat("a recall of slot ", block.slot,
                                 ", generation ", block.generation,
                                 ", segment ", block.segment));
    }
  }
  return Notice(std::move(recall));
}

}  // namespace

absl::Status SendWelcome(platform::Channel& channel, const Welcome& welcome,
                         Deadline deadline) {
  const platform::OsHandle* const handles[] = {&welcome.table, &welcome.holds};
  return channel.Send(kWelcome, {}, handles, deadline);
}

absl::StatusOr<Welcome> ReceiveWelcome(platform::Channel& channel,
                                       Deadline deadline) {
  absl::StatusOr<platform::Message> message = channel.Receive(deadline);
  if (!message.ok()) {
    // Nothing of it is here. An open channel would be taken for that of an owner
    // without room, which is asked again.
    protocol::GiveUp(channel, message.status());
    channel.Close();
    return message.status();
  }
  if (message->type == protocol::kAbort) {
    return protocol::DecodeError(message->payload, "the owner");
  }
  if (message->type != kWelcome || !message->payload.empty() ||
      message->handles.size() != 2) {
    channel.Close();
    return Broken(absl::StrCat("a message of type 0x", absl::Hex(message->type),
                               " with ", message->handles.size(),
                               " handles in place of a welcome"));
  }
  return Welcome{std::move(message->handles[0]),
                 std::move(message->handles[1])};
}

absl::Status SendBye(platform::Channel& channel, Deadline deadline) {
  absl::Status sent = channel.Send(kBye, {}, {}, deadline);
  if (sent.ok() && platform::kHangingUpMayLoseHandles) {
    // Segments may be under way. If it takes too long they are lost.
    channel
        .WaitForHangUp(std::min(deadline, Deadline::In(kOwnersHangUpTimeout)))
        .IgnoreError();
  }
  return sent;
}

bool IsBye(const platform::Message& message) {
  return message.handles.empty() &&
         (message.type == protocol::kRefused ||
          (message.type == kBye && message.payload.empty()));
}

absl::Status SendNotice(platform::Channel& channel, const Notice& notice,
                        Deadline deadline,
                        const platform::CancelEvent* cancel) {
  std::vector<std::uint8_t> payload;
  WireWriter out(payload);
  if (const auto* forget = std::get_if<ForgetSegment>(&notice)) {
    out.Put(forget->number);
    return channel.Send(kForget, payload, {}, deadline, cancel);
  }
  if (std::holds_alternative<Closed>(notice)) {
    return channel.Send(kClosed, payload, {}, deadline, cancel);
  }
  if (const auto* recall = std::get_if<RecallBlocks>(&notice)) {
    protocol::PutWithin(out, recall->within);
    for (const RecalledSlot& block : recall->blocks) {
      out.Put(block.segment);
      out.Put(block.slot);
      out.Put(block.generation);
      out.Put(block.offset);
      out.Put(block.size);
    }
    return channel.Send(kRecall, payload, {}, deadline, cancel);
  }
  const SharedSegment& segment =
      *std::get<std::shared_ptr<const SharedSegment>>(notice);
  out.Put(segment.number);
  out.PutBytes(EncodeTicket(segment.ticket));
  std::vector<const platform::OsHandle*> handles;
  if (const auto* os = std::get_if<platform::OsHandle>(&segment.handle)) {
    handles.push_back(os);
  } else {
    out.PutBytes(*BytesOf(segment.handle));
  }
  out.Put(segment.place.range);
  out.Put(std::uint32_t{0});
  out.Put(segment.place.offset);
  out.Put(segment.place.size);
  return channel.Send(kSegment, payload, handles, deadline, cancel);
}

absl::StatusOr<Notice> DecodeNotice(platform::Message message) {
  if (message.type == kSegment) return DecodeSegment(message);
  WireReader in(message.payload);
  if (message.handles.empty()) {
    if (message.type == kClosed && in.left() == 0) return Notice(Closed());
    if (message.type == kRecall) return DecodeRecall(message.payload);
    if (message.type == kForget && in.left() == sizeof(std::uint32_t)) {
      ASSIGN_OR_RETURN(const std::uint32_t number, TakeNumber(in));
      return Notice(ForgetSegment{number});
    }
  }
  return Broken(absl::StrCat("a message of type 0x", absl::Hex(message.type),
                             " with ", message.payload.size(), " bytes and ",
                             message.handles.size(), " handles"));
}

absl::StatusOr<Notice> ReceiveNotice(platform::Channel& channel,
                                     Deadline deadline,
                                     const platform::CancelEvent* cancel) {
  ASSIGN_OR_RETURN(platform::Message message,
                   channel.Receive(deadline, cancel));
  absl::StatusOr<Notice> notice = DecodeNotice(std::move(message));
  if (!notice.ok()) channel.Close();
  return notice;
}

}  // namespace vmm::pool
