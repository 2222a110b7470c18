// ReadPlan: which bytes of files are read at once, and by whom first; internal to
// vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_READ_PLAN_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/weights/tensor_set.h"

namespace vmm::weights {

// A part of each row.
struct ReadPart {
  std::uint64_t offset = 0;  // Of the first row's, in the file.
  std::uint64_t bytes = 0;   // Above 0.
};

// What one thread reads from one file, to bytes side by side in the set's memory.
struct ReadJob {
  std::size_t file = 0;
  std::uint64_t to = 0;     // In the set's memory.
  std::uint64_t bytes = 0;  // In all, above 0.
  // Those whose bytes these are, one after the other; of several there is one row.
  std::vector<std::size_t> tensors;
  // Rows of these, `pitch` from the beginning of one to that of the next in the
  // file. They come there in this order, and none lies in another one or in the
  // next row. Nothing of it adds up to more than 64 bits.
  std::vector<ReadPart> parts;
  std::uint64_t row_bytes = 0;  // Of all parts.
  std::uint64_t pitch = 0;

  std::uint64_t rows() const { return bytes / row_bytes; }
};

// The jobs, the largest first, so that no thread has one left when the others are
// done. Tensors that lie side by side in a file and in memory are one, of at most
// kPiece: so many small ones cost one read and one copy. Those without bytes have
// no job. INVALID_ARGUMENT as of TensorSetWriter::ReadFiles().
// REQUIRES: the manifest has the tensors, and none is an alias.
absl::StatusOr<std::vector<ReadJob>> PlanReads(
    const TensorManifest& manifest,
    absl::Span<const TensorSetWriter::FileRead> reads);

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_READ_PLAN_H_
