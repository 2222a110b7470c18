#include "fabric/job_record.h"

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"

namespace vmm::fabric {
namespace {

using platform::kCrcBytes;
using platform::WireReader;
using platform::WireWriter;

constexpr std::array<std::uint8_t, 4> kMagic = {'V', 'M', 'S', 'J'};
constexpr std::size_t kHeader = 12;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not a usable record of a rank: ", what,
      ". It was damaged, cut, or not made by vmmshare: does the exchange pass "
      "bytes on unchanged?"));
}

}  // namespace

Bytes SealRecord(RecordType type, absl::Span<const std::uint8_t> body) {
  Bytes bytes;
  bytes.reserve(kHeader + body.size() + kCrcBytes);
  WireWriter out(bytes);
  out.PutBytes(kMagic);
  out.Put<std::uint16_t>(kRecordVersion);
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(type));
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(body.size()));
  out.PutBytes(body);
  out.Put<std::uint32_t>(platform::Crc32c(bytes));
  return bytes;
}

absl::StatusOr<absl::Span<const std::uint8_t>> OpenRecord(
    RecordType type, absl::Span<const std::uint8_t> bytes) {
  if (bytes.size() < kHeader + kCrcBytes || bytes.size() > kMaxRecord) {
    return Malformed(absl::StrCat(bytes.size(), " bytes; expected ",
                                  kHeader + kCrcBytes, " to ", kMaxRecord));
  }
  WireReader reader(bytes);
  std::array<std::uint8_t, 4> magic{};
  reader.TakeBytes(absl::MakeSpan(magic));
  if (magic != kMagic) return Malformed("it does not begin with VMSJ");
  // Before the checksum: another version may have another.
  const auto version = reader.Take<std::uint16_t>();
  if (version != kRecordVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "it speaks version ", version, " of vmmshare's job records, this rank ",
        "version ", kRecordVersion,
        ". Install the same vmmshare on every node of the job."));
  }
  const auto found = reader.Take<std::uint16_t>();
  const auto body = reader.Take<std::uint32_t>();
  if (body != bytes.size() - kHeader - kCrcBytes) {
    return Malformed(
        absl::StrCat("a body of ", body, " bytes in ", bytes.size(), " bytes"));
  }
  if (!platform::TrailingCrc32c(bytes).is_right()) {
    return Malformed("the checksum is wrong");
  }
  if (found != static_cast<std::uint16_t>(type)) {
    return Malformed(absl::StrCat("a record of type ", found, "; expected ",
                                  static_cast<std::uint16_t>(type)));
  }
  return bytes.subspan(kHeader, body);
}

void PutText(WireWriter& out, absl::string_view text) {
  PutBlob(out, text.substr(0, kMaxText));
}

std::string TakeText(WireReader& reader) {
  std::string text = TakeBlob(reader, kMaxText);
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

void PutBlob(WireWriter& out, absl::string_view bytes) {
  platform::Check(bytes.size() <= 0xffff, "a blob has at most 65,535 bytes");
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(bytes.size()));
  out.PutText(bytes);
}

std::string TakeBlob(WireReader& reader, std::size_t limit) {
  const std::size_t size = reader.Take<std::uint16_t>();
  if (size > limit || size > reader.left()) {
    reader.TakeZeros(reader.left() + 1);  // Nothing after it makes sense.
    return "";
  }
  std::string bytes(size, '\0');
  reader.TakeBytes(absl::MakeSpan(reinterpret_cast<std::uint8_t*>(bytes.data()),
                                  bytes.size()));
  return bytes;
}

absl::Status Refusal::ToStatus(absl::string_view before) const {
  if (empty()) return absl::OkStatus();
  // A text that is made of several findings has their ids.
  std::string id = absl::StrCat(" [", finding.id, "]");
  if (absl::StrContains(finding.text, id)) id.clear();
  return absl::Status(
      code, absl::StrCat(before, before.empty() ? "" : ": ", finding.text, id,
                         ". ", finding.remedy));
}

void PutRefusal(WireWriter& out, const Refusal& refusal) {
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(refusal.code));
  if (refusal.empty()) return;
  PutText(out, refusal.finding.id);
  PutText(out, refusal.finding.text);
  PutText(out, refusal.finding.remedy);
}

Refusal TakeRefusal(WireReader& reader) {
  constexpr auto kLast = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const int code = reader.Take<std::uint8_t>();
  Refusal refusal;
  if (code == 0) return refusal;
  refusal.code = code <= kLast ? static_cast<absl::StatusCode>(code)
                               : absl::StatusCode::kUnknown;
  refusal.finding.id = TakeText(reader);
  refusal.finding.text = TakeText(reader);
  refusal.finding.remedy = TakeText(reader);
  return refusal;
}

Bytes EncodeVerdict(const Refusal& refusal) {
  Bytes body;
  WireWriter out(body);
  PutRefusal(out, refusal);
  return SealRecord(RecordType::kVerdict, body);
}

absl::StatusOr<Refusal> DecodeVerdict(absl::Span<const std::uint8_t> bytes) {
  ASSIGN_OR_RETURN(const absl::Span<const std::uint8_t> body,
                   OpenRecord(RecordType::kVerdict, bytes));
  WireReader reader(body);
  Refusal refusal = TakeRefusal(reader);
  if (reader.overrun() || reader.left() != 0) {
    return Malformed("a verdict of another length than its fields");
  }
  return refusal;
}

}  // namespace vmm::fabric
