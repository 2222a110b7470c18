// Raw messages of the exchange in vmm/share/internal/protocol.h, right ones and
// wrong ones.
#ifndef VMMSHARE_TESTS_UNIT_VMM_PROTOCOL_SAMPLES_H_
#define VMMSHARE_TESTS_UNIT_VMM_PROTOCOL_SAMPLES_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "tests/support/must.h"
#include "tests/support/open_handles.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {

// Every test leaves the descriptors as it found them.
class HandlesCheckedTest : public ::testing::Test {
 private:
  ExpectNoNewHandles no_new_handles_;
};

// Handles of no memory: an exchange only counts and carries them.
inline std::vector<platform::OsHandle> AnyHandles(std::size_t count) {
  std::vector<platform::OsHandle> handles;
  for (std::size_t i = 0; i < count; ++i) {
    const platform::CancelEvent event = Must(platform::CancelEvent::Create());
    handles.push_back(Must(platform::Duplicate(event.handle())));
  }
  return handles;
}

inline std::vector<std::uint8_t> CountPayload(std::uint32_t count) {
  std::vector<std::uint8_t> payload;
  WireWriter(payload).Put<std::uint32_t>(count);
  return payload;
}

// What a kPart message says, whether or not it is true.
struct PartText {
  std::vector<Ticket> tickets;
  std::size_t fabric_handles = 0;
  int stated_tickets = -1;         // -1: as many as there are.
  int stated_fabric_handles = -1;  // The same.
};

inline std::vector<std::uint8_t> PartPayload(const PartText& part) {
  std::vector<std::uint8_t> payload;
  WireWriter out(payload);
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(
      part.stated_tickets < 0 ? part.tickets.size() : part.stated_tickets));
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(
      part.stated_fabric_handles < 0 ? part.fabric_handles
                                     : part.stated_fabric_handles));
  for (const Ticket& ticket : part.tickets) {
    out.PutBytes(EncodeTicket(ticket));
  }
  for (std::size_t i = 0; i < part.fabric_handles; ++i) {
    fabric::Handle handle;
    handle.bytes.fill(static_cast<std::uint8_t>(i + 1));
    out.PutBytes(handle.bytes);
  }
  return payload;
}

inline std::vector<std::uint8_t> ErrorPayload(std::uint32_t code,
                                              absl::string_view text) {
  std::vector<std::uint8_t> payload = CountPayload(code);
  payload.insert(payload.end(), text.begin(), text.end());
  return payload;
}

// Sends anything over one end of a channel.
class RawPeer {
 public:
  explicit RawPeer(platform::Channel channel) : channel_(std::move(channel)) {}

  void Send(std::uint16_t type, const std::vector<std::uint8_t>& payload,
            std::size_t handle_count = 0) {
    const std::vector<platform::OsHandle> handles = AnyHandles(handle_count);
    std::vector<const platform::OsHandle*> pointers;
    for (const platform::OsHandle& handle : handles) {
      pointers.push_back(&handle);
    }
    const absl::Status sent = channel_.Send(type, payload, pointers, Late());
    platform::Check(sent.ok(), sent.ToString());
  }
  void Begin(std::uint32_t count) {
    Send(protocol::kBegin, CountPayload(count));
  }
  void Part(const PartText& part, std::size_t handles) {
    Send(protocol::kPart, PartPayload(part), handles);
  }

  absl::StatusOr<platform::Message> Receive(absl::Time deadline = Late()) {
    return channel_.Receive(deadline);
  }
  // Whether nothing has come.
  bool HearsNothing() {
    return absl::IsDeadlineExceeded(
        channel_.Receive(absl::InfinitePast()).status());
  }
  bool HearsHangUp() { return channel_.WaitForHangUp(Late()).ok(); }

  platform::Channel& channel() { return channel_; }

 private:
  platform::Channel channel_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_VMM_PROTOCOL_SAMPLES_H_
