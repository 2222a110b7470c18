// Trailer: the last bytes of a tensor set's memory, which say where its manifest
// is. Written last: memory without one is no set, or half of one. Internal to
// vmm/; docs/wire_format.md has the byte table.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_TRAILER_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_TRAILER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/weights/manifest.h"

namespace vmm::weights {

inline constexpr std::size_t kTrailerBytes = 40;

struct Trailer {
  std::uint64_t manifest_offset = 0;  // From the beginning of the set.
  std::uint64_t manifest_bytes = 0;
  friend bool operator==(const Trailer&, const Trailer&) = default;
};

// Always kTrailerBytes bytes.
std::vector<std::uint8_t> EncodeTrailer(const Trailer& trailer);

// The trailer of a set in `size` bytes of memory. Total. FAILED_PRECONDITION when
// all bytes are zero or no mark is there, as where a set was never sealed;
// INVALID_ARGUMENT for one that is damaged or leads outside of the memory;
// UNIMPLEMENTED for a newer version.
absl::StatusOr<Trailer> DecodeTrailer(absl::Span<const std::uint8_t> bytes,
                                      std::uint64_t size);

// REQUIRES: at most 2^63.
constexpr std::uint64_t AlignUp(std::uint64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_TRAILER_H_
