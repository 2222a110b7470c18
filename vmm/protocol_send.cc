// The sending half of the exchange that protocol.h describes.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "vmm/protocol.h"
#include "vmm/wire.h"

namespace vmm::protocol {
namespace {

// Collects tickets and handles, and sends them whenever a message is full.
class PartSender {
 public:
  PartSender(platform::Channel& channel, absl::Time deadline,
             const platform::CancelEvent* cancel)
      : channel_(channel), deadline_(deadline), cancel_(cancel) {}

  absl::Status Add(const Outgoing& memory) {
    WireWriter(tickets_).PutBytes(EncodeTicket(memory.ticket));
    ++ticket_count_;
    for (std::size_t i = 0; i < memory.ticket.layout.count(); ++i) {
      absl::StatusOr<ExportedHandle> handle = memory.handle(i);
      if (!handle.ok()) return handle.status();
      handles_.push_back(*std::move(handle));
      if (handles_.size() == platform::kMaxHandles) {
        absl::Status sent = Flush();
        if (!sent.ok()) return sent;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (handles_.empty()) return absl::OkStatus();
    std::vector<const platform::OsHandle*> os_handles;
    std::vector<std::uint8_t> fabric_handles;
    for (const ExportedHandle& handle : handles_) {
      if (const auto* os = std::get_if<platform::OsHandle>(&handle)) {
        os_handles.push_back(os);
      } else {
        WireWriter(fabric_handles)
            .PutBytes(std::get<fabric::Handle>(handle).bytes);
      }
    }
    std::vector<std::uint8_t> payload;
    WireWriter out(payload);
    out.Put<std::uint16_t>(ticket_count_);
    out.Put<std::uint16_t>(
        static_cast<std::uint16_t>(handles_.size() - os_handles.size()));
    out.PutBytes(tickets_);
    out.PutBytes(fabric_handles);
    absl::Status sent =
        channel_.Send(kPart, payload, os_handles, deadline_, cancel_);
    tickets_.clear();
    ticket_count_ = 0;
    handles_.clear();
    return sent;
  }

 private:
  platform::Channel& channel_;
  absl::Time deadline_;
  const platform::CancelEvent* cancel_;
  std::vector<std::uint8_t> tickets_;
  std::uint16_t ticket_count_ = 0;
  std::vector<ExportedHandle> handles_;
};

absl::Status SendParts(platform::Channel& channel,
                       absl::Span<const Outgoing> memory, absl::Time deadline,
                       const platform::CancelEvent* cancel) {
  std::vector<std::uint8_t> count;
  WireWriter(count).Put<std::uint32_t>(
      static_cast<std::uint32_t>(memory.size()));
  absl::Status begun = channel.Send(kBegin, count, {}, deadline, cancel);
  if (!begun.ok()) return begun;
  PartSender parts(channel, deadline, cancel);
  for (const Outgoing& one : memory) {
    absl::Status added = parts.Add(one);
    if (!added.ok()) return added;
  }
  return parts.Flush();
}

absl::Status AwaitWord(platform::Channel& channel, std::size_t sent,
                       absl::Time deadline,
                       const platform::CancelEvent* cancel) {
  absl::StatusOr<platform::Message> word = channel.Receive(deadline, cancel);
  if (!word.ok()) {
    // The word may still come, and would be taken for the answer to what is
    // sent next.
    channel.Close();
    return word.status();
  }
  if (word->type == kRefused) {
    return DecodeError(word->payload, "the importer");
  }
  WireReader in(word->payload);
  const auto imported = in.Take<std::uint32_t>();
  if (word->type != kDone || in.overrun() || in.left() != 0 ||
      !word->handles.empty() || imported != sent) {
    channel.Close();
    return absl::DataLossError(
        absl::StrCat("the importer answered with a message of type 0x",
                     absl::Hex(word->type), " where its word on ", sent,
                     " allocations was expected; the channel is closed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SendAll(platform::Channel& channel,
                     absl::Span<const Outgoing> memory, absl::Time deadline,
                     const platform::CancelEvent* cancel) {
  absl::Status sent = SendParts(channel, memory, deadline, cancel);
  if (!sent.ok()) {
    // So that the importer does not wait for what will not come. If even that
    // cannot be sent, the peer is gone or the channel closed.
    if (channel.is_open()) {
      SendError(channel, kAbort, sent, deadline).IgnoreError();
    }
    return sent;
  }
  return AwaitWord(channel, memory.size(), deadline, cancel);
}

}  // namespace vmm::protocol
