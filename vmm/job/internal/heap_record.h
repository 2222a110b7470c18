// HeapRecord: what a rank has done with its SymmetricHeap, as it travels;
// internal to vmm/.
//
//   offset  size  field of the body of a record (fabric/job_record.h)
//   0       8     calls of Allocate() and Free() so far
//   8       4     CRC-32C of them all
//   12      8     bytes that are free
#ifndef VMMSHARE_VMM_JOB_INTERNAL_HEAP_RECORD_H_
#define VMMSHARE_VMM_JOB_INTERNAL_HEAP_RECORD_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fabric/exchange.h"

namespace vmm::job {

struct HeapRecord {
  std::uint64_t calls = 0;
  std::uint32_t checksum = 0;
  std::uint64_t free_bytes = 0;
  friend bool operator==(const HeapRecord&, const HeapRecord&) = default;
};

fabric::Bytes EncodeHeapRecord(const HeapRecord& record);
// Total: takes any bytes. Errors as fabric::OpenRecord().
absl::StatusOr<HeapRecord> DecodeHeapRecord(
    absl::Span<const std::uint8_t> bytes);

}  // namespace vmm::job

#endif  // VMMSHARE_VMM_JOB_INTERNAL_HEAP_RECORD_H_
