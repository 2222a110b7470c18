// The frame around every record that ranks exchange, and texts within it.
//
//   offset  size  field
//   0       4     magic: the bytes 56 4D 53 4A ("VMSJ")
//   4       2     version of the records: 2
//   6       2     what it is: 1 a card, 2 a row, 3 a verdict,
//                 4 a heap of symmetric memory
//   8       4     bytes of the body
//   12      ...   body
//   ...     4     CRC-32C of all before
//
// Numbers are little-endian. A text is its length in 2 bytes and its bytes.
#ifndef VMMSHARE_FABRIC_JOB_RECORD_H_
#define VMMSHARE_FABRIC_JOB_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fabric/diagnosis.h"
#include "fabric/exchange.h"
#include "platform/base/wire.h"

namespace vmm::fabric {

inline constexpr std::uint16_t kRecordVersion = 2;
inline constexpr std::size_t kMaxRecord = 64 << 20;
// Ranks of one job: bounds what a row may hold.
inline constexpr std::uint32_t kMaxRanks = 65536;

enum class RecordType : std::uint16_t {
  kCard = 1,
  kRow = 2,
  kVerdict = 3,
  kHeap = 4
};

Bytes SealRecord(RecordType type, absl::Span<const std::uint8_t> body);

// The body of a record of `type`, a view into `bytes`. Total.
// INVALID_ARGUMENT for what is none or is damaged; UNIMPLEMENTED for another
// version of vmmshare's.
absl::StatusOr<absl::Span<const std::uint8_t>> OpenRecord(
    RecordType type, absl::Span<const std::uint8_t> bytes);

// Texts are cut to 1,000 bytes when written. When read, bytes that are not
// printable ASCII become '?': they are shown to people.
inline constexpr std::size_t kMaxText = 1000;
void PutText(platform::WireWriter& out, absl::string_view text);
std::string TakeText(platform::WireReader& reader);

// Bytes with a length of 2 bytes in front; nothing when there are more than
// `limit` or than are left, and then the reader has overrun.
void PutBlob(platform::WireWriter& out, absl::string_view bytes);
std::string TakeBlob(platform::WireReader& reader, std::size_t limit);

// Why something cannot be had from or at some rank, as it travels. A value; the
// code kOk says that nothing is wrong.
struct Refusal {
  absl::StatusCode code = absl::StatusCode::kOk;
  Finding finding;
  bool empty() const { return code == absl::StatusCode::kOk; }
  // With `before` in front, and what to do behind.
  absl::Status ToStatus(absl::string_view before) const;
  friend bool operator==(const Refusal& a, const Refusal& b) {
    return a.code == b.code && a.finding.id == b.finding.id &&
           a.finding.text == b.finding.text &&
           a.finding.remedy == b.finding.remedy;
  }
};
void PutRefusal(platform::WireWriter& out, const Refusal& refusal);
Refusal TakeRefusal(platform::WireReader& reader);

// How a rank's part of a collective call ended: an empty refusal is success.
Bytes EncodeVerdict(const Refusal& refusal);
// Total: takes any bytes. Errors as OpenRecord().
absl::StatusOr<Refusal> DecodeVerdict(absl::Span<const std::uint8_t> bytes);

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_JOB_RECORD_H_
