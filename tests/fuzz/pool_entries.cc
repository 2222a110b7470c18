// The entries for what a pool's owner and its subscribers send each other.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/shared_memory.h"
#include "tests/fuzz/entries.h"
#include "tests/support/must.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/internal/share_layout.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/shared_table_view.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::fuzz {
namespace {

using platform::Check;

void CheckRefusal(const absl::Status& status) {
  Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status),
        "another error than documented");
  Check(std::all_of(status.message().begin(), status.message().end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); }),
        "a message shows bytes of a peer as they are");
}

// Any handle at all.
const platform::OsHandle& SomeHandle() {
  static const platform::CancelEvent event =
      testing::Must(platform::CancelEvent::Create());
  return event.handle();
}

platform::Message MessageOf(std::uint16_t type, Input payload,
                            std::size_t handles) {
  platform::Message message;
  message.type = type;
  message.payload.assign(payload.begin(), payload.end());
  for (std::size_t i = 0; i < handles; ++i) {
    message.handles.push_back(testing::Must(platform::Duplicate(SomeHandle())));
  }
  return message;
}

void CheckTicket(Input bytes) {
  const absl::StatusOr<PoolTicket> ticket = DecodePoolTicket(bytes);
  if (!ticket.ok()) return CheckRefusal(ticket.status());
  const PoolTicketBytes again = EncodePoolTicket(*ticket);
  Check(bytes.size() == again.size() &&
            std::equal(again.begin(), again.end(), bytes.begin()),
        "a pool ticket is read otherwise than it is written");
  Check(ticket->slot < kPoolSlots && ticket->generation != 0 &&
            ticket->segment != 0 && ticket->size != 0 &&
            ticket->offset + ticket->size > ticket->offset,
        "a pool ticket of no block");
}

void CheckString(absl::string_view text) {
  const absl::StatusOr<AddressedPool> pool = ParsePoolString(text);
  if (!pool.ok()) return CheckRefusal(pool.status());
  Check(FormatPoolString(*pool) == absl::StripAsciiWhitespace(text),
        "a pool's string is read otherwise than it is written");
}

// A table that its owner changes as it likes, and the view of it that a peer
// has opened. Made once: it is large.
struct HostileTable {
  HostileTable() {
    const pool::ShareHeader header = {pool::kShareMagic, pool::kShareVersion,
                                      kPoolSlots, domain.bytes};
    std::memcpy(table.writable_bytes().data(), &header, sizeof header);
    view = testing::Must(
        pool::SharedTableView::Open(table.handle(), holds.handle(), domain));
  }
  std::uint8_t* record(std::uint32_t slot) const {
    return table.writable_bytes().data() + pool::kShareHeaderBytes +
           slot * sizeof(pool::ShareRecord);
  }

  DomainId domain = {{1, 2, 3}};
  platform::SharedMemory table = testing::Must(platform::SharedMemory::Create(
      pool::kShareTableBytes, platform::PeerAccess::kRead));
  platform::SharedMemory holds = testing::Must(platform::SharedMemory::Create(
      pool::kHoldTableBytes, platform::PeerAccess::kReadWrite));
  std::unique_ptr<pool::SharedTableView> view;
};

constexpr std::uint32_t kSlots = 4;
constexpr std::size_t kRecordBytes = sizeof(pool::ShareRecord);

PoolTicket TicketFor(const HostileTable& table, std::uint32_t slot) {
  PoolTicket ticket;
  ticket.domain = table.domain;
  ticket.slot = slot;
  const std::uint8_t* const at = table.record(slot);
  std::memcpy(&ticket.generation, at, 8);
  std::memcpy(&ticket.offset, at + 8, 8);
  std::memcpy(&ticket.size, at + 16, 8);
  std::memcpy(&ticket.segment, at + 24, 4);
  return ticket;
}

}  // namespace

void FuzzPoolTicket(Input input) {
  CheckTicket(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(kPoolTicketBytes);
  PoolTicket sample;
  sample.segment = sample.generation = sample.size = 1;
  const PoolTicketBytes head = EncodePoolTicket(sample);
  std::copy(head.begin(), head.begin() + 4, whole.begin());
  std::fill(whole.begin() + 27, whole.begin() + 32, std::uint8_t{0});
  CheckTicket(whole);
}

void FuzzPoolString(Input input) {
  CheckString({reinterpret_cast<const char*>(input.data()), input.size()});
  Bytes whole(input.begin(), input.end());
  WireWriter(whole).Put<std::uint32_t>(Crc32c(input));
  CheckString(absl::StrCat(
      "vmmshare-pool:2:",
      absl::WebSafeBase64Escape(absl::string_view(
          reinterpret_cast<const char*>(whole.data()), whole.size()))));
}

void FuzzPoolMessage(Input input) {
  if (input.size() < 3) return;
  const auto type = static_cast<std::uint16_t>(input[0] | input[1] << 8);
  const std::size_t handles = input[2] % 4;
  const Input payload = input.subspan(3);
  const platform::Message message = MessageOf(type, payload, handles);

  Check(pool::IsBye(message) ==
            (handles == 0 && (type == protocol::kRefused ||
                              (type == pool::kBye && payload.empty()))),
        "something else than a goodbye is taken for one");

  absl::StatusOr<pool::Notice> notice =
      pool::DecodeNotice(MessageOf(type, payload, handles));
  if (!notice.ok()) {
    Check(absl::IsDataLoss(notice.status()) ||
              absl::IsUnimplemented(notice.status()),
          "another error than documented");
    return;
  }
  // Written again it is the same. The channel is this run's own: it holds on to
  // who spoke last.
  auto ends = testing::Must(platform::Channel::Pair());
  testing::Must(
      pool::SendNotice(ends.first, *notice, absl::Now() + absl::Seconds(5)));
  const platform::Message again =
      testing::Must(ends.second.Receive(absl::Now() + absl::Seconds(5)));
  // An owner of an older version does not say where a segment lies.
  std::vector<std::uint8_t> said(payload.begin(), payload.end());
  const auto* segment =
      std::get_if<std::shared_ptr<const pool::SharedSegment>>(&*notice);
  if (segment != nullptr && (*segment)->place.range == 0 &&
      said.size() + pool::kSegmentPlaceBytes == again.payload.size()) {
    said.resize(again.payload.size());
  }
  Check(again.type == type && again.payload == said &&
            again.handles.size() == handles,
        "a notice is read otherwise than it is written");
}

void FuzzPoolOwner(Input input) {
  auto pair = testing::Must(platform::Channel::Pair());
  // Each two bytes are a message: its type and how much goes with it.
  for (std::size_t at = 0; at + 2 <= input.size();) {
    const std::uint8_t what = input[at++];
    const std::uint8_t count = input[at++];
    Bytes payload;
    if (what % 4 == 0) {  // A segment, as it should be but for its number.
      WireWriter out(payload);
      out.Put<std::uint32_t>(count);
      out.PutBytes(EncodeTicket(testing::TicketOfChunks(1)));
    } else {
      const std::size_t size =
          std::min<std::size_t>(count % 8, input.size() - at);
      const Input bytes = input.subspan(at, size);
      payload.assign(bytes.begin(), bytes.end());
      at += size;
    }
    const auto type = static_cast<std::uint16_t>(
        what % 4 == 0 ? pool::kSegment : pool::kWelcome - 1 + (what >> 2) % 8);
    const std::vector<const platform::OsHandle*> handles(
        what % 4 == 0 ? 1 : count >> 6, &SomeHandle());
    if (!pair.first.Send(type, payload, handles, absl::InfinitePast()).ok()) {
      break;
    }
  }
  pair.first.Close();
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  if (input.size() % 2 == 0) {
    pool::ReceiveWelcome(pair.second, deadline).status().IgnoreError();
  }
  bool open = true;
  while (open) {
    const absl::StatusOr<pool::Notice> notice =
        pool::ReceiveNotice(pair.second, deadline, nullptr);
    open = notice.ok();
    if (open) continue;
    Check(absl::IsDataLoss(notice.status()) ||
              absl::IsUnimplemented(notice.status()) ||
              absl::IsUnavailable(notice.status()),
          "another error than documented");
    Check(!pair.second.is_open(), "an owner that lies is listened to");
  }
  Check(absl::Now() < deadline, "waited for a peer that has hung up");
}

void FuzzPoolTable(Input input) {
  static const auto* const table = new HostileTable;
  pool::SharedTableView& view = *table->view;
  std::array<std::uint32_t, kSlots> held{};
  // Each 34 bytes: a slot, what to do, and the owner's record of it.
  constexpr std::size_t kStep = 2 + kRecordBytes;
  for (std::size_t at = 0; at + kStep <= input.size(); at += kStep) {
    const std::uint32_t slot = input[at] % kSlots;
    const std::uint8_t what = input[at + 1];
    if (what % 4 != 0) {
      std::memcpy(table->record(slot), input.data() + at + 2, kRecordBytes);
    }
    PoolTicket ticket = TicketFor(*table, slot);
    const PoolTicket true_ticket = ticket;
    if (what % 8 == 1) ticket.generation ^= what;
    if (what % 8 == 2) ticket.size ^= std::uint64_t{1} << (what >> 2);
    if (what % 8 == 3) ticket.slot = what * 0x01010101u;
    if (what % 8 == 5) ticket.domain.bytes[what >> 4] ^= what;
    const absl::Status acquired = view.Acquire(ticket);
    if (acquired.ok()) {
      Check(ticket.domain == table->domain && ticket.generation != 0,
            "a ticket that names no block is taken");
      Check(ticket.slot != slot || ticket == true_ticket,
            "a ticket is taken that the owner's record contradicts");
      ++held[ticket.slot % kSlots];
    } else {
      Check(absl::IsInvalidArgument(acquired) ||
                absl::IsFailedPrecondition(acquired),
            "another error than documented");
    }
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      Check(view.References(i) == held[i], "a refusal holds a block");
      std::uint32_t word = 0;
      std::memcpy(&word, table->holds.bytes().data() + i * sizeof word,
                  sizeof word);
      Check((word != 0) == (held[i] != 0),
            "the owner is told of another hold than there is");
    }
    if ((what & 0x40) != 0 && held[slot] > 0) {
      --held[slot];
      view.Release(slot);
    }
  }
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    for (; held[i] > 0; --held[i]) view.Release(i);
  }
}

std::vector<Entry> PoolEntries() {
  PoolTicket ticket;
  ticket.domain.bytes.fill(9);
  ticket.segment = 2;
  ticket.slot = 77;
  ticket.generation = 3;
  ticket.offset = 4096;
  ticket.size = 65536;
  const PoolTicketBytes bytes = EncodePoolTicket(ticket);
  const std::string text =
      FormatPoolString({ticket.domain, {.address = "/run/vmmshare/abc"}});
  Bytes body(16 + 24, 9);  // The bytes within a string, less the checksum.
  body.push_back(3);
  WireWriter(body).Put<std::uint16_t>(2);
  body.insert(body.end(), {'/', 'x'});

  const auto message = [](std::uint16_t type, std::uint8_t handles) {
    Bytes start;
    WireWriter(start).Put<std::uint16_t>(type);
    start.push_back(handles);
    return start;
  };
  Bytes segment = message(pool::kSegment, 1);
  WireWriter(segment).Put<std::uint32_t>(5);
  WireWriter(segment).PutBytes(EncodeTicket(testing::TicketOfChunks(1)));
  Bytes placed = segment;  // In a range, at 8 MiB of 64.
  WireWriter(placed).Put<std::uint32_t>(1);
  WireWriter(placed).PutZeros(4);
  WireWriter(placed).Put<std::uint64_t>(std::uint64_t{8} << 20);
  WireWriter(placed).Put<std::uint64_t>(std::uint64_t{64} << 20);
  Bytes fabric = message(pool::kSegment, 0);
  WireWriter(fabric).Put<std::uint32_t>(6);
  WireWriter(fabric).PutBytes(
      EncodeTicket(testing::TicketOfChunks(1, HandleKind::kFabric)));
  WireWriter(fabric).PutZeros(sizeof(fabric::Handle));
  Bytes forget = message(pool::kForget, 0);
  WireWriter(forget).Put<std::uint32_t>(5);

  Bytes recall = message(pool::kRecall, 0);
  WireWriter(recall).Put<std::uint64_t>(1500);
  for (const std::uint32_t slot : {0u, 77u}) {
    WireWriter out(recall);
    out.Put<std::uint32_t>(2);
    out.Put(slot);
    for (const std::uint64_t field : {3, 4096, 512}) out.Put(field);
  }

  // Records of 3 slots, acquired with and without change, and again.
  Bytes table;
  for (std::uint8_t slot : {0, 1, 2, 0, 1, 2}) {
    table.insert(table.end(),
                 {slot, static_cast<std::uint8_t>(table.size() < 90 ? 4 : 0)});
    for (std::uint8_t field : {3, 0, 64}) {
      table.push_back(static_cast<std::uint8_t>(field + slot));
      table.insert(table.end(), 7, 0);
    }
    table.insert(table.end(), {1, 0, 0, 0, 0, 0, 0, 0});
    table[table.size() - 33] = 6;  // Written, and asked for as it is.
  }
  return {
      {"pool_ticket", &FuzzPoolTicket, {Bytes(bytes.begin(), bytes.end())}},
      {"pool_string", &FuzzPoolString, {Bytes(text.begin(), text.end()), body}},
      {"pool_message",
       &FuzzPoolMessage,
       {segment, placed, fabric, forget, recall, message(pool::kClosed, 0),
        message(pool::kBye, 0), message(pool::kWelcome, 2)}},
      {"pool_owner",
       &FuzzPoolOwner,
       // Segments; one forgotten; the end; a welcome first.
       {{0, 1, 0, 2, 13, 4, 1, 0, 0, 0, 17, 0},
        {5, 0x80, 0, 1, 17, 0},
        {0, 0}}},
      {"pool_table", &FuzzPoolTable, {table}},
  };
}

}  // namespace vmm::fuzz
