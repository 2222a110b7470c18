// What a keeper writes down of kept memory, for itself after a restart;
// internal to vmm/. docs/wire_format.md has the byte table.
#ifndef VMMSHARE_VMM_KEEPER_INTERNAL_RECORD_H_
#define VMMSHARE_VMM_KEEPER_INTERNAL_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "platform/os/process.h"
#include "vmm/share/ticket.h"

namespace vmm::keeper {

inline constexpr std::size_t kRecordBytes = 568;

struct Record {
  std::uint64_t id = 0;  // Of the entry, above 0: its handles have it too.
  std::uint32_t revision = 0;  // The highest one counts.
  bool sealed = false;
  std::string name;
  platform::UserId user;
  std::int64_t pid = 0;
  absl::Time since = absl::UnixEpoch();  // Whole microseconds.
  Ticket ticket;
  // The id of the entry that had the name before and counts no more; 0: none.
  std::uint64_t replaces = 0;
  friend bool operator==(const Record&, const Record&) = default;
};

// REQUIRES: a name that CheckName() takes, and a user of at most kMaxUserText.
std::vector<std::uint8_t> EncodeRecord(const Record& record);

// Total. INVALID_ARGUMENT for what is none or is damaged; UNIMPLEMENTED for a
// newer version.
absl::StatusOr<Record> DecodeRecord(absl::Span<const std::uint8_t> bytes);

// The names under which the service manager holds an entry.
std::string NameOfRecord(std::uint64_t id, std::uint32_t revision);
std::string NameOfHandle(std::uint64_t id, std::size_t chunk);

// What such a name says. INVALID_ARGUMENT for any other text.
struct StoredName {
  std::uint64_t id = 0;
  bool is_record = false;
  std::uint32_t number = 0;  // The revision, or the chunk.
  friend bool operator==(const StoredName&, const StoredName&) = default;
};
absl::StatusOr<StoredName> ParseStoredName(absl::string_view name);

}  // namespace vmm::keeper

#endif  // VMMSHARE_VMM_KEEPER_INTERNAL_RECORD_H_
