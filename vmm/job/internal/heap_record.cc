#include "vmm/job/internal/heap_record.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fabric/job_record.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"

namespace vmm::job {

fabric::Bytes EncodeHeapRecord(const HeapRecord& record) {
  std::vector<std::uint8_t> body;
  WireWriter out(body);
  out.Put<std::uint64_t>(record.calls);
  out.Put<std::uint32_t>(record.checksum);
  out.Put<std::uint64_t>(record.free_bytes);
  return fabric::SealRecord(fabric::RecordType::kHeap, body);
}

absl::StatusOr<HeapRecord> DecodeHeapRecord(
    absl::Span<const std::uint8_t> bytes) {
  ASSIGN_OR_RETURN(const absl::Span<const std::uint8_t> body,
                   fabric::OpenRecord(fabric::RecordType::kHeap, bytes));
  WireReader in(body);
  HeapRecord record;
  record.calls = in.Take<std::uint64_t>();
  record.checksum = in.Take<std::uint32_t>();
  record.free_bytes = in.Take<std::uint64_t>();
  if (in.overrun() || in.left() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no record of a heap: ", body.size(), " bytes"));
  }
  return record;
}

}  // namespace vmm::job
