// The pages of a keeper's list: see protocol.h.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/memory/internal/wire.h"

namespace vmm::keeper {
namespace {

constexpr std::uint8_t kOnHostFlag = 1;
constexpr std::uint8_t kSurvivesFlag = 2;

void PutText(WireWriter& out, absl::string_view text, std::size_t limit) {
  text = text.substr(0, limit);
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(text.size()));
  out.PutText(text);
}

// False for text that is too long, is not there or does not print.
bool TakeText(WireReader& in, std::size_t limit, std::string* text) {
  const auto size = in.Take<std::uint16_t>();
  if (size > limit || size > in.left()) return false;
  std::vector<std::uint8_t> bytes(size);
  in.TakeBytes(absl::MakeSpan(bytes));
  text->assign(bytes.begin(), bytes.end());
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::uint8_t c) { return absl::ascii_isprint(c); });
}

void PutEntry(WireWriter& out, const KeptMemory& memory) {
  PutText(out, memory.name, kMaxName);
  PutText(out, memory.user.text(), kMaxUserText);
  PutText(out, memory.holder.text(), kMaxUserText);
  out.Put<std::uint64_t>(static_cast<std::uint64_t>(memory.pid));
  out.Put<std::uint64_t>(static_cast<std::uint64_t>(memory.holder_pid));
  out.Put<std::uint64_t>(
      static_cast<std::uint64_t>(absl::ToUnixMicros(memory.since)));
  out.Put<std::uint64_t>(memory.size);
  out.Put<std::uint64_t>(memory.allocated_size);
  out.Put<std::uint64_t>(memory.attached);
  out.Put<std::uint32_t>(memory.chunks);
  out.Put<std::uint32_t>(memory.host_numa_node.value_or(0));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(memory.state));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(memory.kind));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(
      (memory.host_numa_node.has_value() ? kOnHostFlag : 0) |
      (memory.survives_restart ? kSurvivesFlag : 0)));
  out.PutBytes(memory.device.bytes);
}

bool TakeEntry(WireReader& in, KeptMemory* memory) {
  std::string user;
  std::string holder;
  if (!TakeText(in, kMaxName, &memory->name) || !CheckName(memory->name).ok() ||
      !TakeText(in, kMaxUserText, &user) ||
      !TakeText(in, kMaxUserText, &holder)) {
    return false;
  }
  memory->user = platform::UserId(std::move(user));
  memory->holder = platform::UserId(std::move(holder));
  memory->pid = static_cast<std::int64_t>(in.Take<std::uint64_t>());
  memory->holder_pid = static_cast<std::int64_t>(in.Take<std::uint64_t>());
  const auto since = in.Take<std::uint64_t>();
  memory->since = absl::FromUnixMicros(static_cast<std::int64_t>(since));
  memory->size = in.Take<std::uint64_t>();
  memory->allocated_size = in.Take<std::uint64_t>();
  memory->attached = in.Take<std::uint64_t>();
  memory->chunks = in.Take<std::uint32_t>();
  const auto node = in.Take<std::uint32_t>();
  const auto state = in.Take<std::uint8_t>();
  const auto kind = in.Take<std::uint8_t>();
  const auto flags = in.Take<std::uint8_t>();
  in.TakeBytes(absl::MakeSpan(memory->device.bytes));
  const bool kind_is_known =
      kind == static_cast<std::uint8_t>(HandleKind::kPosixFd) ||
      kind == static_cast<std::uint8_t>(HandleKind::kWin32) ||
      kind == static_cast<std::uint8_t>(HandleKind::kFabric);
  if (in.overrun() || !kind_is_known ||
      state < static_cast<std::uint8_t>(KeptState::kReserved) ||
      state > static_cast<std::uint8_t>(KeptState::kSealed) ||
      (flags & ~(kOnHostFlag | kSurvivesFlag)) != 0 ||
      (node != 0 && (flags & kOnHostFlag) == 0)) {
    return false;
  }
  memory->state = static_cast<KeptState>(state);
  memory->kind = static_cast<HandleKind>(kind);
  if ((flags & kOnHostFlag) != 0) memory->host_numa_node = node;
  memory->survives_restart = (flags & kSurvivesFlag) != 0;
  return true;
}

}  // namespace

std::vector<std::uint8_t> EncodePage(const Page& page) {
  std::vector<std::uint8_t> entries;
  std::uint16_t count = 0;
  constexpr std::size_t kRoom = platform::kMaxPayload - 8 - kMaxNote;
  for (const KeptMemory& memory : page.memory) {
    std::vector<std::uint8_t> entry;
    WireWriter out(entry);
    PutEntry(out, memory);
    if (entries.size() + entry.size() > kRoom) break;
    entries.insert(entries.end(), entry.begin(), entry.end());
    ++count;
  }
  std::vector<std::uint8_t> payload;
  WireWriter out(payload);
  out.Put<std::uint16_t>(count);
  out.Put<std::uint8_t>(page.more || count < page.memory.size() ? 1 : 0);
  // The error in it may be anything, and a client refuses what does not print.
  std::string note = page.restart_note;
  for (char& c : note) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  PutText(out, note, kMaxNote);
  out.PutBytes(entries);
  return payload;
}

absl::StatusOr<Page> DecodePage(absl::Span<const std::uint8_t> payload) {
  absl::Status broken = absl::DataLossError(
      absl::StrCat("the keeper sent a list that cannot be read, ",
                   payload.size(), " bytes; the connection is closed"));
  WireReader in(payload);
  const auto count = in.Take<std::uint16_t>();
  const auto more = in.Take<std::uint8_t>();
  Page page;
  if (more > 1 || !TakeText(in, kMaxNote, &page.restart_note)) return broken;
  page.more = more == 1;
  for (std::uint16_t i = 0; i < count; ++i) {
    KeptMemory memory;
    if (!TakeEntry(in, &memory)) return broken;
    page.memory.push_back(std::move(memory));
  }
  // A page that promises more and has nothing would be asked for for ever.
  if (in.overrun() || in.left() != 0 || (page.more && page.memory.empty())) {
    return broken;
  }
  return page;
}

}  // namespace vmm::keeper
