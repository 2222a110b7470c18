// The sending half of the exchange that protocol.h describes.
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::protocol {
namespace {

// Collects tickets and handles, and sends them whenever a message is full.
class PartSender {
 public:
  PartSender(platform::Channel& channel, Deadline deadline,
             const platform::CancelEvent* cancel)
      : channel_(channel), deadline_(deadline), cancel_(cancel) {}

  absl::Status Add(const Outgoing& memory) {
    // All handles of a part are of one kind: its bytes stand behind its handles
    // of the system, whichever ticket they are of.
    if (memory.ticket.kind != kind_ || kind_ == HandleKind::kStreamPool) {
      RETURN_IF_ERROR(Flush());
      kind_ = memory.ticket.kind;
    }
    WireWriter(tickets_).PutBytes(EncodeTicket(memory.ticket));
    ++ticket_count_;
    for (std::size_t i = 0; i < memory.ticket.layout.count(); ++i) {
      if (handles_.empty()) RETURN_IF_ERROR(AwaitReceipt());
      ASSIGN_OR_RETURN(ExportedHandle handle, memory.handle(i));
      handles_.push_back(std::move(handle));
      if (handles_.size() == platform::kMaxHandles) {
        RETURN_IF_ERROR(Flush());
      }
    }
    return absl::OkStatus();
  }

  // Whether the peer may have got a handle.
  bool gave() const { return gave_; }
  // Whether it failed because the peer does not receive what was sent.
  bool is_stuck() const { return is_stuck_; }

  absl::Status Flush() {
    if (handles_.empty()) return absl::OkStatus();
    std::vector<const platform::OsHandle*> os_handles;
    std::vector<std::uint8_t> bytes;
    for (const ExportedHandle& handle : handles_) {
      if (const auto* os = OsHandleOf(handle)) os_handles.push_back(os);
      if (const auto* some = BytesOf(handle)) WireWriter(bytes).PutBytes(*some);
    }
    std::vector<std::uint8_t> payload;
    WireWriter out(payload);
    out.Put<std::uint16_t>(ticket_count_);
    out.Put<std::uint16_t>(
        static_cast<std::uint16_t>(bytes.size() / sizeof(HandleBytes)));
    out.PutBytes(tickets_);
    out.PutBytes(bytes);
    absl::Status sent =
        channel_.Send(kPart, payload, os_handles, deadline_, cancel_);
    // The channel is open after that error where nothing went: it was not tried.
    const bool nothing_went =
        absl::IsPermissionDenied(sent) && channel_.is_open();
    gave_ |= sent.ok() || (platform::kHangingUpMayLoseHandles && !nothing_went);
    are_on_their_way_ = !os_handles.empty();
    tickets_.clear();
    ticket_count_ = 0;
    handles_.clear();
    return sent;
  }

 private:
  // Handles of one part at most are on their way.
  absl::Status AwaitReceipt() {
    if (!std::exchange(are_on_their_way_, false)) return absl::OkStatus();
    absl::Status received = channel_.WaitUntilReceived(deadline_, cancel_);
    is_stuck_ = !received.ok();
    return received;
  }

  platform::Channel& channel_;
  Deadline deadline_;
  const platform::CancelEvent* cancel_;
  HandleKind kind_ = HandleKind::kPosixFd;  // Of the part.
  std::vector<std::uint8_t> tickets_;
  std::uint16_t ticket_count_ = 0;
  std::vector<ExportedHandle> handles_;
  bool gave_ = false;
  bool are_on_their_way_ = false;
  bool is_stuck_ = false;
};

SendResult SendParts(platform::Channel& channel,
                     absl::Span<const Outgoing> memory, Deadline deadline,
                     const platform::CancelEvent* cancel) {
  std::vector<std::uint8_t> count;
  WireWriter(count).Put<std::uint32_t>(
      static_cast<std::uint32_t>(memory.size()));
  SendResult result;
  result.status = channel.Send(kBegin, count, {}, deadline, cancel);
  if (!result.status.ok()) return result;
  PartSender parts(channel, deadline, cancel);
  for (const Outgoing& one : memory) {
    result.status = parts.Add(one);
    if (!result.status.ok()) break;
  }
  if (result.status.ok()) result.status = parts.Flush();
  result.gave = parts.gave();
  result.in_step = !parts.is_stuck();
  return result;
}

// `in_step` is false when the word may still come, and would be taken for the
// answer to what is sent next.
absl::Status AwaitWord(platform::Channel& channel, std::size_t sent,
                       Deadline deadline, const platform::CancelEvent* cancel,
                       bool* in_step) {
  absl::StatusOr<platform::Message> word = channel.Receive(deadline, cancel);
  *in_step = word.ok();
  if (!word.ok()) return word.status();
  if (word->type == kRefused) {
    return DecodeError(word->payload, "the importer");
  }
  WireReader in(word->payload);
  const auto imported = in.Take<std::uint32_t>();
  if (word->type != kDone || in.overrun() || in.left() != 0 ||
      !word->handles.empty() || imported != sent) {
    *in_step = false;
    return absl::DataLossError(
        absl::StrCat("the importer answered with a message of type 0x",
                     absl::Hex(word->type), " where its word on ", sent,
                     " allocations was expected; the channel is closed"));
  }
  return absl::OkStatus();
}

// Of one that hung up while it was sent handles: whether it said before that
// it keeps none.
bool HasRefused(platform::Channel& channel) {
  if (!channel.is_open()) return false;
  const absl::StatusOr<platform::Message> word =
      channel.Receive(absl::InfinitePast());
  return word.ok() && word->type == kRefused;
}

}  // namespace

absl::StatusOr<Outgoing> MakeOutgoing(const Shareable& memory) {
  ASSIGN_OR_RETURN(const HandleKind kind, PreferredKind(memory));
  ASSIGN_OR_RETURN(Ticket ticket, MakeTicket(memory, kind));
  return Outgoing{std::move(ticket), [memory, kind](std::size_t chunk) {
                    return ExportChunk(memory, kind, chunk);
                  }};
}

SendResult TrySendAll(platform::Channel& channel,
                      absl::Span<const Outgoing> memory, Deadline deadline,
                      const platform::CancelEvent* cancel) {
  SendResult result = SendParts(channel, memory, deadline, cancel);
  if (!result.status.ok()) {
    if (result.gave && HasRefused(channel)) result.gave = false;
    // So that the importer does not wait for what will not come. If even that
    // cannot be sent, the peer is gone or the channel closed.
    if (channel.is_open() && result.in_step) {
      SendError(channel, kAbort, result.status, deadline).IgnoreError();
    }
    return result;
  }
  result.status =
      AwaitWord(channel, memory.size(), deadline, cancel, &result.in_step);
  // Who refuses in so many words keeps nothing, and goes on to be heard.
  if (!result.status.ok() && result.in_step) result.gave = false;
  return result;
}

absl::Status SendAll(platform::Channel& channel,
                     absl::Span<const Outgoing> memory, Deadline deadline,
                     const platform::CancelEvent* cancel, bool* gave) {
  SendResult result = TrySendAll(channel, memory, deadline, cancel);
  if (!result.in_step) channel.Close();
  if (gave != nullptr) *gave = result.gave;
  return std::move(result.status);
}

}  // namespace vmm::protocol
