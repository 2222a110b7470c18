#include "tests/fuzz/entries.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/frame.h"
#include "tests/fuzz/mutators.h"
#include "tests/support/must.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"
#include "vmm/pool/pool_ticket.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"
#include "vmm/share/transfer.h"

namespace vmm::fuzz {
namespace {

using platform::Check;

absl::string_view Text(Input bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void CheckPrintable(absl::string_view text) {
  Check(std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); }),
        "a message shows bytes of a peer as they are");
}

void CheckTicket(Input bytes) {
  const absl::StatusOr<Ticket> ticket = DecodeTicket(bytes);
  if (!ticket.ok()) {
    Check(absl::IsInvalidArgument(ticket.status()) ||
              absl::IsUnimplemented(ticket.status()),
          "another error than documented");
    CheckPrintable(ticket.status().message());
    return;
  }
  const Bytes again = EncodeTicket(*ticket);
  Check(Input(again) == bytes, "a ticket is read otherwise than it is written");
  const ChunkLayout& layout = ticket->layout;
  Check(layout.count() >= 1 && layout.count() <= kMaxChunks,
        "a ticket of no chunk, or of too many");
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < layout.count(); ++i) sum += layout.SizeOf(i);
  Check(sum == layout.size, "the chunks are not the whole");
  CheckPrintable(ticket->Describe());
}

// Plays a script to one end of a channel, never waiting.
class HostileSender {
 public:
  HostileSender(platform::Channel channel, Input script)
      : channel_(std::move(channel)), script_(script) {}

  void Play() {
    while (at_ + 2 <= script_.size() && open_) {
      const std::uint8_t what = script_[at_++];
      const std::uint8_t count = script_[at_++];
      switch (what % 8) {
        case 0:
          Send(protocol::kBegin, Number(count % 8));
          break;
        case 1:
        case 2:
          Part(1 + (what >> 3) % 4, 0, count % 17);
          break;
        case 3:
          Part((what >> 3) % 4, count % 17, count >> 5);
          break;
        case 4:
          Send(protocol::kAbort, Raw(count), count % 3);
          break;
        case 5:
          Send(protocol::kPart, Raw(count), count % 17);
          break;
        case 6:
          Send(protocol::kBegin, Raw(count % 8), count % 2);
          break;
        case 7:
          Send(static_cast<std::uint16_t>(0xf000 + what), Raw(count));
          break;
      }
    }
    channel_.Close();
  }

 private:
  static Bytes Number(std::uint32_t value) {
    Bytes bytes;
    WireWriter(bytes).Put<std::uint32_t>(value);
    return bytes;
  }
  Bytes Raw(std::size_t size) {
    size = std::min(size, script_.size() - at_);
    const Input bytes = script_.subspan(at_, size);
    at_ += size;
    return Bytes(bytes.begin(), bytes.end());
  }
  void Part(std::size_t tickets, std::size_t fabric, std::size_t handles) {
    Bytes payload;
    WireWriter out(payload);
    out.Put<std::uint16_t>(static_cast<std::uint16_t>(tickets));
    out.Put<std::uint16_t>(static_cast<std::uint16_t>(fabric));
    for (std::size_t i = 0; i < tickets; ++i) {
      const std::size_t chunks = 1 + (tickets * 7 + i * 5 + handles) % 9;
      out.PutBytes(EncodeTicket(testing::TicketOfChunks(
          chunks, fabric > 0 ? HandleKind::kFabric : HandleKind::kPosixFd)));
    }
    out.PutZeros(fabric * sizeof(fabric::Handle));
    Send(protocol::kPart, payload, handles);
  }
  void Send(std::uint16_t type, const Bytes& payload, std::size_t handles = 0) {
    // Not the channel itself: a socket in its own queue never hangs up.
    static const platform::CancelEvent event =
        testing::Must(platform::CancelEvent::Create());
    const std::vector<const platform::OsHandle*> same(
        std::min(handles, platform::kMaxHandles), &event.handle());
    open_ = channel_.Send(type, payload, same, absl::InfinitePast()).ok();
  }

  platform::Channel channel_;
  Input script_;
  std::size_t at_ = 0;
  bool open_ = true;
};

std::vector<Bytes> OffsetHeapSeeds() {
  // 64 granules: four aligned ones, two of them freed, and what is left.
  Bytes small = {64, 0};
  for (std::uint8_t i = 0; i < 4; ++i) {
    small.insert(small.end(), {5, 3, 8, static_cast<std::uint8_t>(i * 2)});
  }
  small.insert(small.end(), {0, 1, 0, 0, 0, 2, 0, 0, 3, 128, 0, 0});
  // The largest: many of many sizes, then every other one freed.
  Bytes large = {255, 32};
  for (std::uint8_t i = 0; i < 60; ++i) {
    const auto power = static_cast<std::uint8_t>(i % 37);
    large.insert(large.end(), {static_cast<std::uint8_t>(4 + i % 4),
                               static_cast<std::uint8_t>(1 + i * 3), power, i});
  }
  for (std::uint8_t i = 0; i < 30; ++i) {
    large.insert(large.end(), {0, static_cast<std::uint8_t>(i), 0, 0});
    large.insert(large.end(), {3, static_cast<std::uint8_t>(i * 8), 0, i});
  }
  return {small, large};
}

std::vector<Bytes> MessageSeeds() {
  Bytes returned;
  WireWriter out(returned);
  out.Put<std::uint16_t>(protocol::kReturn);
  out.PutZeros(28 * 3);
  Bytes open;
  WireWriter opening(open);
  opening.Put<std::uint16_t>(protocol::kOpen);
  opening.Put(protocol::kOpenVersion);
  opening.Put<std::uint16_t>(0);
  for (std::uint8_t i = 0; i < 24 * 3; ++i) opening.Put(i);
  Bytes refusal;
  WireWriter refused(refusal);
  refused.Put<std::uint16_t>(protocol::kRefused);
  refused.Put<std::uint32_t>(5);
  refusal.insert(refusal.end(), {'w', 'h', 'y'});
  Bytes frame = {0, 0};
  const auto header = platform::EncodeFrameHeader({7, 4, 0});
  frame.insert(frame.end(), header.begin(), header.end());
  frame.insert(frame.end(), {1, 2, 3, 4});
  Bytes recall = returned;
  recall[0] = static_cast<std::uint8_t>(protocol::kRecall & 0xff);
  recall.insert(recall.end(), 8, 0);
  return {open, refusal, frame, returned, recall};
}

// A share table with one block in it, and a peer's view of it.
struct PoolWorld {
  pool::ShareTable table = testing::Must(pool::ShareTable::Create(DomainId{}));
  pool::PeerId peer = testing::Must(table.AddPeer());
  std::unique_ptr<pool::SharedTableView> view =
      testing::Must(pool::SharedTableView::Open(
          table.table_handle(), table.holds_handle(peer), table.domain()));
  PoolTicket good = [this] {
    const pool::SlotRef ref = testing::Must(table.Publish(3, 65536, 4096));
    return PoolTicket{table.domain(), 3, ref.slot, ref.generation, 65536, 4096};
  }();

  static PoolWorld& Get() {
    static PoolWorld& world = *new PoolWorld;
    return world;
  }
};

}  // namespace

void FuzzPoolImport(Input input) {
  const absl::StatusOr<PoolTicket> ticket = DecodePoolTicket(input);
  if (!ticket.ok()) {
    Check(absl::IsInvalidArgument(ticket.status()) ||
              absl::IsUnimplemented(ticket.status()),
          "another error than documented");
    CheckPrintable(ticket.status().message());
    return;
  }
  const PoolTicketBytes again = EncodePoolTicket(*ticket);
  Check(Input(again) == input, "a ticket is read otherwise than it is written");
  Check(ticket->slot < kPoolSlots && ticket->size > 0 &&
            ticket->offset + ticket->size > ticket->offset,
        "a ticket that names no bytes");
  CheckPrintable(ticket->Describe());
  PoolWorld& world = PoolWorld::Get();
  const absl::Status held = world.view->Acquire(*ticket);
  Check(held.ok() == (*ticket == world.good),
        "another ticket than the block's is accepted");
  CheckPrintable(held.message());
  if (held.ok()) world.view->Release(ticket->slot);
  Check(world.table.HoldsOf(world.peer) == 0, "a hold is left behind");
}

void FuzzTicket(Input input) {
  CheckTicket(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(kTicketBytes);
  const Bytes sample = EncodeTicket(testing::SampleTicket());
  std::copy(sample.begin(), sample.begin() + 12, whole.begin());
  testing::RepairChecksum(whole);
  CheckTicket(whole);
}

void FuzzTicketString(Input input) {
  const auto check = [](absl::string_view text) {
    const absl::StatusOr<AddressedTicket> parsed = ParseTicketString(text);
    if (!parsed.ok()) {
      Check(absl::IsInvalidArgument(parsed.status()) ||
                absl::IsUnimplemented(parsed.status()),
            "another error than documented");
      CheckPrintable(parsed.status().message());
      return;
    }
    Check(FormatTicketString(*parsed) == absl::StripAsciiWhitespace(text),
          "a ticket string is read otherwise than it is written");
  };
  check(Text(input));
  Bytes whole(input.begin(), input.end());
  const std::uint32_t crc = Crc32c(whole);
  WireWriter(whole).Put<std::uint32_t>(crc);
  check(absl::StrCat("vmmshare:2:", absl::WebSafeBase64Escape(Text(whole))));
}

void FuzzFabricTicket(Input input) {
  const auto check = [](Input bytes) {
    const absl::StatusOr<FabricTicket> decoded = DecodeFabricTicket(bytes);
    if (!decoded.ok()) {
      Check(absl::IsInvalidArgument(decoded.status()) ||
                absl::IsUnimplemented(decoded.status()),
            "another error than documented");
      CheckPrintable(decoded.status().message());
      return;
    }
    Check(decoded->handles.size() == decoded->ticket.layout.count(),
          "a chunk without a handle, or the other way round");
    Check(Input(EncodeFabricTicket(*decoded)) == bytes,
          "a fabric ticket is read otherwise than it is written");
  };
  check(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(std::max<std::size_t>(whole.size(), kTicketBytes));
  Bytes ticket(whole.begin(), whole.begin() + kTicketBytes);
  ticket[12] = static_cast<std::uint8_t>(HandleKind::kFabric);
  testing::RepairChecksum(ticket);
  std::copy(ticket.begin(), ticket.end(), whole.begin());
  WireWriter(whole).PutZeros(4);
  testing::RepairChecksum(whole);
  check(whole);
}

void FuzzMessage(Input input) {
  if (input.size() < 2) return;
  platform::Message message;
  message.type = static_cast<std::uint16_t>(input[0] | input[1] << 8);
  const Input payload = input.subspan(2);
  message.payload.assign(payload.begin(), payload.end());
  const auto keys = protocol::DecodeOpen(message);
  if (keys.ok()) {
    Check(!keys->empty() && keys->size() * 24 + 4 == payload.size(),
          "a request of another number of keys than it holds");
  } else {
    Check(absl::IsInvalidArgument(keys.status()) ||
              absl::IsUnimplemented(keys.status()),
          "another error than documented");
  }
  const auto returned = protocol::DecodeReturn(message);
  Check(returned.ok() ? returned->size() * 28 == payload.size()
                      : absl::IsInvalidArgument(returned.status()),
        "a return of another number of ids than it holds");
  const auto recall = protocol::DecodeRecall(message);
  Check(recall.ok() ? recall->ids.size() * 28 + 8 == payload.size()
                    : absl::IsDataLoss(recall.status()),
        "a recall of another number of ids than it holds");
  const absl::Status error = protocol::DecodeError(payload, "it");
  Check(!error.ok(), "a refusal is no success");
  Check(error.message().size() <= 1024 + 16, "a peer's text is not cut");
  CheckPrintable(error.message());

  const std::size_t handles = input[0] % 20;
  const auto header = platform::DecodeFrame(payload, handles);
  if (header.ok()) {
    const auto again = platform::EncodeFrameHeader(*header);
    Check(std::equal(again.begin(), again.end(), payload.begin()) &&
              header->handle_count == handles &&
              header->payload_size + again.size() == payload.size(),
          "a frame is read otherwise than it is written");
  } else {
    Check(absl::IsDataLoss(header.status()), "another error than documented");
  }
}

void FuzzReceive(Input input) {
  auto pair = platform::Channel::Pair();
  Check(pair.ok(), "no pair of channels can be had");
  HostileSender(std::move(pair->first), input).Play();
  platform::Channel receiver = std::move(pair->second);
  std::size_t imported = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  const auto received = protocol::ReceiveAll(
      receiver,
      [&](protocol::Incoming incoming) -> absl::Status {
        Check(incoming.handles.size() == incoming.ticket.layout.count(),
              "another number of handles than chunks");
        for (const ExportedHandle& handle : incoming.handles) {
          Check(std::holds_alternative<fabric::Handle>(handle) ==
                    (incoming.ticket.kind == HandleKind::kFabric),
                "a handle of another kind than its ticket says");
        }
        // Some are refused, for the way through the rest.
        if (input.size() % 5 == 0 && imported == 1) {
          return absl::ResourceExhaustedError("enough");
        }
        ++imported;
        return absl::OkStatus();
      },
      deadline);
  Check(!received.ok() || *received == imported,
        "another number than was imported");
  // Not by the status: the peer may have sent that very code.
  Check(absl::Now() < deadline, "waited for a peer that has hung up");
}

const std::vector<Entry>& Entries() {
  static const auto* const entries = [] {
    const Bytes ticket = EncodeTicket(testing::SampleTicket());
    const std::string text = FormatTicketString(
        {testing::SampleTicket(), {.address = "/run/vmmshare/abc"}});
    const PoolTicketBytes encoded = EncodePoolTicket(PoolWorld::Get().good);
    const Bytes pool_ticket(encoded.begin(), encoded.end());
    Bytes body = ticket;  // The bytes within a string, less the checksum.
    body.insert(body.end(), 24, 7);
    body.push_back(1);
    WireWriter(body).Put<std::uint16_t>(2);
    body.insert(body.end(), {'/', 'x'});
    auto* const all = new std::vector<Entry>{
        {"ticket", &FuzzTicket, {ticket}},
        {"ticket_string",
         &FuzzTicketString,
         {Bytes(text.begin(), text.end()), body}},
        {"fabric_ticket",
         &FuzzFabricTicket,
         {EncodeFabricTicket(testing::SampleFabricTicket(1)),
          EncodeFabricTicket(testing::SampleFabricTicket(3))}},
        {"pool_import", &FuzzPoolImport, {pool_ticket}},
        {"message", &FuzzMessage, MessageSeeds()},
        {"receive",
         &FuzzReceive,
         // A begin of one and its part; of three in parts; one that aborts.
         {{0, 1, 1, 8}, {0, 3, 1, 3, 9, 8, 1, 8}, {0, 2, 4, 5, 1, 0, 0, 0}}},
        {"offset_heap", &FuzzOffsetHeap, OffsetHeapSeeds(), &MutateOperations},
    };
    for (Entry& entry : PoolEntries()) all->push_back(std::move(entry));
    for (Entry& entry : FenceEntries()) all->push_back(std::move(entry));
    for (Entry& entry : RingEntries()) all->push_back(std::move(entry));
    for (Entry& entry : JobEntries()) all->push_back(std::move(entry));
    for (Entry& entry : KeeperEntries()) all->push_back(std::move(entry));
    for (Entry& entry : WeightsEntries()) all->push_back(std::move(entry));
    return all;
  }();
  return *entries;
}

}  // namespace vmm::fuzz
