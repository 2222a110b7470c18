// Bytes that are easy to make and to check, and differ at every place: what
// the examples fill device memory with.
#ifndef VMMSHARE_DOCS_EXAMPLES_PATTERN_H_
#define VMMSHARE_DOCS_EXAMPLES_PATTERN_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"

namespace examples {

// A value. Different seeds give different bytes.
struct Pattern {
  std::uint64_t seed = 0;
  std::uint64_t flip = 0;  // Bits that are turned over in every 8 bytes.

  Pattern Inverted() const { return {seed, ~flip}; }
  // The 8 bytes at offset 8 * index.
  std::uint64_t Word(std::uint64_t index) const;
  // Sets `bytes` to those at `offset`, a multiple of 8.
  void Write(std::uint64_t offset, absl::Span<std::uint8_t> bytes) const;
  // Compares every one of `bytes` with those at `offset`, a multiple of 8:
  // DATA_LOSS names the first that differs, and the size of the `whole`.
  absl::Status Compare(std::uint64_t offset,
                       absl::Span<const std::uint8_t> bytes,
                       std::uint64_t whole) const;
};

// Writes `size` bytes at `address`, and returns once the device has them.
// REQUIRES: a context is current.
absl::Status Fill(const vmm::platform::Driver& driver, CUdeviceptr address,
                  std::uint64_t size, const Pattern& pattern);

// Reads `size` bytes at `address` and compares every one: DATA_LOSS names the
// first that differs. REQUIRES: a context is current.
absl::Status Verify(const vmm::platform::Driver& driver, CUdeviceptr address,
                    std::uint64_t size, const Pattern& pattern);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_PATTERN_H_
