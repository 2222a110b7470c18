#include "vmm/keeper/internal/record.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "platform/base/check.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/memory/internal/wire.h"

namespace vmm::keeper {
namespace {

constexpr std::array<std::uint8_t, 8> kMagic = {'V', 'M', 'M', 'S',
                                                'K', 'E', 'E', 'P'};
constexpr std::uint16_t kVersion = 1;
// A keeper that knows of no replacing must not have both.
constexpr std::uint16_t kReplacingVersion = 2;
constexpr char kPrefix[] = "vmk-";

// The first `size` of the next `room` bytes; false unless the rest is zero and
// the text prints.
bool TakeText(WireReader& in, std::size_t room, std::size_t size,
              std::string* text) {
  std::vector<std::uint8_t> bytes(room);
  in.TakeBytes(absl::MakeSpan(bytes));
  if (size > room) return false;
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(size);
  text->assign(bytes.begin(), end);
  return std::all_of(bytes.begin(), end,
                     [](std::uint8_t c) { return absl::ascii_isgraph(c); }) &&
         std::all_of(end, bytes.end(), [](std::uint8_t c) { return c == 0; });
}

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a record of kept memory: ", what));
}

std::string Prefix(std::uint64_t id) {
  return absl::StrCat(kPrefix, absl::Hex(id, absl::kZeroPad16), "-");
}

}  // namespace

std::vector<std::uint8_t> EncodeRecord(const Record& record) {
  platform::Check(record.name.size() <= kMaxName &&
                      record.user.text().size() <= kMaxUserText,
                  "a record's name and user must fit");
  std::vector<std::uint8_t> bytes;
  bytes.reserve(kRecordBytes);
  WireWriter out(bytes);
  out.PutBytes(kMagic);
  out.Put<std::uint16_t>(record.replaces == 0 ? kVersion : kReplacingVersion);
  out.Put<std::uint16_t>(kRecordBytes);
  out.Put<std::uint32_t>(record.revision);
  out.Put<std::uint64_t>(record.id);
  out.Put<std::uint64_t>(static_cast<std::uint64_t>(record.pid));
  out.Put<std::uint64_t>(
      static_cast<std::uint64_t>(absl::ToUnixMicros(record.since)));
  out.Put<std::uint8_t>(record.sealed ? 1 : 0);
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(record.name.size()));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(record.user.text().size()));
  out.Put<std::uint64_t>(record.replaces);
  out.PutZeros(9);
  out.PutText(record.name, kMaxName);
  out.PutText(record.user.text(), kMaxUserText);
  out.PutBytes(EncodeTicket(record.ticket));
  out.Put<std::uint32_t>(Crc32c(bytes));
  return bytes;
}

absl::StatusOr<Record> DecodeRecord(absl::Span<const std::uint8_t> bytes) {
  WireReader in(bytes);
  std::array<std::uint8_t, kMagic.size()> magic{};
  in.TakeBytes(absl::MakeSpan(magic));
  const auto version = in.Take<std::uint16_t>();
  const auto length = in.Take<std::uint16_t>();
  if (in.overrun() || magic != kMagic) {
    return Damaged("it does not begin with the mark of one");
  }
  if (version > kReplacingVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the record has format version ", version,
                     "; this keeper reads up to ", kReplacingVersion));
  }
  if (version < kVersion || length != kRecordBytes ||
      bytes.size() != kRecordBytes) {
    return Damaged(absl::StrCat("version ", version, " with ", bytes.size(),
                                " bytes; expected ", kVersion, " with ",
                                kRecordBytes));
  }
  if (!TrailingCrc32c(bytes).is_right()) {
    return Damaged("its checksum is another");
  }
  Record record;
  record.revision = in.Take<std::uint32_t>();
  record.id = in.Take<std::uint64_t>();
  record.pid = static_cast<std::int64_t>(in.Take<std::uint64_t>());
  record.since =
      absl::FromUnixMicros(static_cast<std::int64_t>(in.Take<std::uint64_t>()));
  const auto sealed = in.Take<std::uint8_t>();
  const auto name_size = in.Take<std::uint8_t>();
  const auto user_size = in.Take<std::uint8_t>();
  std::string user;
  record.replaces = in.Take<std::uint64_t>();
  if (sealed > 1 || (record.replaces != 0) != (version == kReplacingVersion) ||
      !in.TakeZeros(9) || !TakeText(in, kMaxName, name_size, &record.name) ||
      !TakeText(in, kMaxUserText, user_size, &user) ||
      !CheckName(record.name).ok()) {
    return Damaged("a field has a value that it cannot have");
  }
  record.sealed = sealed == 1;
  record.user = platform::UserId(std::move(user));
  std::vector<std::uint8_t> ticket(kTicketBytes);
  in.TakeBytes(absl::MakeSpan(ticket));
  absl::StatusOr<Ticket> decoded = DecodeTicket(ticket);
  if (!decoded.ok()) return Damaged(decoded.status().message());
  record.ticket = *std::move(decoded);
  return record;
}

std::string NameOfRecord(std::uint64_t id, std::uint32_t revision) {
  return absl::StrCat(Prefix(id), "r", revision);
}

std::string NameOfHandle(std::uint64_t id, std::size_t chunk) {
  return absl::StrCat(Prefix(id), "h", chunk);
}

absl::StatusOr<StoredName> ParseStoredName(absl::string_view name) {
  StoredName parsed;
  constexpr std::size_t kIdDigits = 16;
  absl::string_view left = name;
  std::uint64_t id = 0;
  if (absl::ConsumePrefix(&left, kPrefix) && left.size() > kIdDigits + 2 &&
      absl::SimpleHexAtoi(left.substr(0, kIdDigits), &id) && id != 0 &&
      left[kIdDigits] == '-' &&
      absl::SimpleAtoi(left.substr(kIdDigits + 2), &parsed.number)) {
    parsed.id = id;
    parsed.is_record = left[kIdDigits + 1] == 'r';
    // One way to write each only, or two names could mean the same.
    if (name == (parsed.is_record ? NameOfRecord(id, parsed.number)
                                  : NameOfHandle(id, parsed.number))) {
      return parsed;
    }
  }
  return absl::InvalidArgumentError("the name is none that this keeper gives");
}

}  // namespace vmm::keeper
