// The entry for what a peer sends to name a fence.
#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/sync/fence_pool.h"
#include "vmm/sync/ipc_event.h"

namespace vmm::fuzz {
namespace {

using platform::Check;

void CheckTicket(Input bytes) {
  const absl::StatusOr<FenceTicket> ticket = DecodeFenceTicket(bytes);
  if (!ticket.ok()) {
    Check(absl::IsInvalidArgument(ticket.status()) ||
              absl::IsUnimplemented(ticket.status()),
          "another error than documented");
    Check(std::all_of(ticket.status().message().begin(),
                      ticket.status().message().end(),
                      [](unsigned char c) { return absl::ascii_isprint(c); }),
          "a message shows bytes of a peer as they are");
    return;
  }
  const FenceTicketBytes again = EncodeFenceTicket(*ticket);
  Check(Input(again) == bytes, "a fence ticket is read otherwise than written");
  Check(ticket->slot < kPoolSlots && ticket->generation != 0 &&
            ticket->segment != 0 && ticket->offset % kFenceBytes == 0 &&
            ticket->offset + kFenceBytes > ticket->offset,
        "a fence ticket of no fence");
  const PoolTicket block = BlockOf(*ticket);
  Check(DecodePoolTicket(EncodePoolTicket(block)).ok() &&
            FenceOf(block) == *ticket,
        "a fence that is no block");
}

FenceTicket Sample() {
  FenceTicket ticket;
  ticket.domain.bytes.fill(9);
  ticket.segment = 2;
  ticket.slot = 77;
  ticket.generation = 3;
  ticket.offset = 4096;
  return ticket;
}

}  // namespace

void FuzzFenceTicket(Input input) {
  CheckTicket(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(kFenceTicketBytes);
  const FenceTicketBytes head = EncodeFenceTicket(Sample());
  std::copy(head.begin(), head.begin() + 4, whole.begin());
  std::fill(whole.begin() + 27, whole.begin() + 32, std::uint8_t{0});
  CheckTicket(whole);
}

void FuzzIpcEvent(Input input) {
  const auto check = [](Input bytes) {
    const absl::StatusOr<IpcEventTicket> ticket = DecodeIpcEventTicket(bytes);
    if (ticket.ok()) {
      const IpcEventTicketBytes again = EncodeIpcEventTicket(*ticket);
      Check(Input(again) == bytes, "a ticket is read otherwise than written");
      return;
    }
    Check(absl::IsInvalidArgument(ticket.status()) ||
              absl::IsUnimplemented(ticket.status()),
          "another error than documented");
  };
  check(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(kIpcEventTicketBytes - 4);
  WireWriter(whole).Put<std::uint32_t>(Crc32c(whole));
  check(whole);
}

std::vector<Entry> FenceEntries() {
  const FenceTicketBytes bytes = EncodeFenceTicket(Sample());
  const IpcEventTicketBytes event = EncodeIpcEventTicket({});
  return {
      {"fence_ticket", &FuzzFenceTicket, {Bytes(bytes.begin(), bytes.end())}},
      {"ipc_event", &FuzzIpcEvent, {Bytes(event.begin(), event.end())}}};
}

}  // namespace vmm::fuzz
