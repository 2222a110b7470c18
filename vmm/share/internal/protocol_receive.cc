// The receiving half of the exchange that protocol.h describes. Everything
// that comes is hostile until checked.
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::protocol {
namespace {

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the peer broke the protocol: ", what,
                                          "; the channel is closed"));
}

// Puts tickets and handles together again.
class Assembler {
 public:
  Assembler(std::size_t expected,
            const std::function<absl::Status(Incoming)>& import,
            const std::function<absl::Status(const Ticket&)>& expects)
      : left_(expected), import_(import), expects_(expects) {}

  bool complete() const { return left_ == 0; }
  const absl::Status& first_error() const { return first_error_; }

  // DATA_LOSS when the part breaks the protocol.
  absl::Status Add(platform::Message part) {
    WireReader in(part.payload);
    const auto tickets = in.Take<std::uint16_t>();
    const auto handles_of_bytes = in.Take<std::uint16_t>();
    const std::size_t stated =
        std::size_t{tickets} * kTicketBytes +
        std::size_t{handles_of_bytes} * sizeof(HandleBytes);
    if (in.overrun() || stated != in.left()) {
      return Broken(absl::StrCat(tickets, " tickets and ", handles_of_bytes,
                                 " handles of bytes stated in ",
                                 part.payload.size(), " bytes"));
    }
    if (handles_of_bytes + part.handles.size() == 0) {
      return Broken("a part without a handle");
    }
    for (std::uint16_t i = 0; i < tickets; ++i) {
      std::vector<std::uint8_t> bytes(kTicketBytes);
      in.TakeBytes(absl::MakeSpan(bytes));
      absl::StatusOr<Ticket> ticket = DecodeTicket(bytes);
      // A newer owner breaks nothing: it is said which version is newer.
      if (absl::IsUnimplemented(ticket.status())) return ticket.status();
      if (!ticket.ok()) return Broken(ticket.status().message());
      if (waiting_.size() == left_) return Broken("more tickets than stated");
      if (expects_ != nullptr) RETURN_IF_ERROR(expects_(*ticket));
      waiting_.push_back({*std::move(ticket), {}});
    }
    for (platform::OsHandle& handle : part.handles) {
      RETURN_IF_ERROR(TakeOsHandle(std::move(handle)));
    }
    for (std::uint16_t i = 0; i < handles_of_bytes; ++i) {
      HandleBytes bytes{};
      in.TakeBytes(absl::MakeSpan(bytes));
      RETURN_IF_ERROR(TakeBytes(bytes));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status TakeOsHandle(platform::OsHandle handle) {
    if (waiting_.empty()) return Broken("more handles than stated");
    const HandleKind kind = waiting_.front().ticket.kind;
    if (!HasOsHandle(kind) || without_bytes_.has_value()) {
      return Broken("a handle of another kind than its ticket says");
    }
    if (!HasBytes(kind)) return Take(HandleOf(kind, std::move(handle), {}));
    without_bytes_ = std::move(handle);
    return absl::OkStatus();
  }

  absl::Status TakeBytes(const HandleBytes& bytes) {
    if (waiting_.empty()) return Broken("more handles than stated");
    const HandleKind kind = waiting_.front().ticket.kind;
    if (!HasBytes(kind) || HasOsHandle(kind) != without_bytes_.has_value()) {
      return Broken("a handle of another kind than its ticket says");
    }
    return Take(HandleOf(kind, std::move(without_bytes_), bytes));
  }

  absl::Status Take(ExportedHandle handle) {
    Incoming& front = waiting_.front();
    // Once something was refused the rest is only read: holding it could run
    // this process out of descriptors.
    if (first_error_.ok()) front.handles.push_back(std::move(handle));
    if (++taken_of_front_ < front.ticket.layout.count()) {
      return absl::OkStatus();
    }
    if (first_error_.ok()) first_error_ = import_(std::move(front));
    waiting_.pop_front();
    taken_of_front_ = 0;
    --left_;
    return absl::OkStatus();
  }

  std::size_t left_;
  const std::function<absl::Status(Incoming)>& import_;
  const std::function<absl::Status(const Ticket&)>& expects_;
  std::deque<Incoming> waiting_;
  platform::OsHandle without_bytes_;  // Whose other part is yet to come.
  std::size_t taken_of_front_ = 0;
  absl::Status first_error_;
};

}  // namespace

void GiveUp(platform::Channel& channel, const absl::Status& why) {
  if (platform::kHangingUpMayLoseHandles || !channel.is_open()) return;
  SendError(channel, kRefused, why, absl::InfinitePast()).IgnoreError();
}

absl::StatusOr<std::size_t> TryReceiveAll(
    platform::Channel& channel,
    const std::function<absl::Status(Incoming)>& import, Deadline deadline,
    bool* in_step, const platform::CancelEvent* cancel, std::size_t most,
    const std::function<absl::Status(const Ticket&)>& expects) {
  // Both ends agree on what the next message is before the exchange, after its
  // last message, and after the sender has given up. Elsewhere the channel is of
  // no use any more.
  *in_step = true;
  const auto receive =
      [&](MessageType expected) -> absl::StatusOr<platform::Message> {
    ASSIGN_OR_RETURN(platform::Message message,
                     channel.Receive(deadline, cancel));
    *in_step = message.type == kAbort;
    if (*in_step) return DecodeError(message.payload, "the owner");
    if (message.type != expected) {
      return Broken(absl::StrCat("a message of type 0x",
                                 absl::Hex(message.type), " where 0x",
                                 absl::Hex(expected), " was expected"));
    }
    return message;
  };
  ASSIGN_OR_RETURN(const platform::Message begin, receive(kBegin));
  WireReader in(begin.payload);
  const auto count = in.Take<std::uint32_t>();
  if (in.overrun() || in.left() != 0 || !begin.handles.empty() || count == 0 ||
      count > most) {
    return Broken(absl::StrCat("it began with ", count,
                               " allocations; expected 1 to ", most));
  }
  Assembler assembler(count, import, expects);
  while (!assembler.complete()) {
    ASSIGN_OR_RETURN(platform::Message part, receive(kPart));
    RETURN_IF_ERROR(assembler.Add(std::move(part)));
  }
  *in_step = true;
  if (!assembler.first_error().ok()) {
    SendError(channel, kRefused, assembler.first_error(), deadline, cancel)
        .IgnoreError();  // The error below is the one that matters.
    return assembler.first_error();
  }
  std::vector<std::uint8_t> payload;
  WireWriter(payload).Put<std::uint32_t>(count);
  // The memory is here even if the owner has died meanwhile.
  channel.Send(kDone, payload, {}, deadline, cancel).IgnoreError();
  return count;
}

absl::StatusOr<std::size_t> ReceiveAll(
    platform::Channel& channel,
    const std::function<absl::Status(Incoming)>& import, Deadline deadline) {
  bool in_step = true;
  absl::StatusOr<std::size_t> received =
      TryReceiveAll(channel, import, deadline, &in_step);
  if (!in_step) channel.Close();
  return received;
}

}  // namespace vmm::protocol
