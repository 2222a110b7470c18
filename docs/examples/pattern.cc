#include "docs/examples/pattern.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace examples {
namespace {

using vmm::platform::Driver;

// Memory is copied in pieces, so that the host needs little.
constexpr std::uint64_t kPieceWords = 1 << 20;

std::vector<std::uint64_t> Piece(const Pattern& pattern, std::uint64_t offset,
                                 std::uint64_t size) {
  std::vector<std::uint64_t> words((size + 7) / 8);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = pattern.Word(offset / 8 + i);
  }
  return words;
}

std::uint64_t PieceSize(std::uint64_t offset, std::uint64_t size) {
  return std::min(size - offset, 8 * kPieceWords);
}

}  // namespace

std::uint64_t Pattern::Word(std::uint64_t index) const {
  // splitmix64: every bit of the input reaches every byte.
  std::uint64_t word = (index + 1) * 0x9e3779b97f4a7c15 + seed;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return (word ^ (word >> 31)) ^ flip;
}

absl::Status Fill(const Driver& driver, CUdeviceptr address, std::uint64_t size,
                  const Pattern& pattern) {
  for (std::uint64_t at = 0; at < size; at += 8 * kPieceWords) {
    const std::uint64_t count = PieceSize(at, size);
    const std::vector<std::uint64_t> piece = Piece(pattern, at, count);
    if (CUresult r = driver->cuMemcpyHtoD(address + at, piece.data(), count);
        r != CUDA_SUCCESS) {
      return driver.Error(
          r, absl::StrCat("cuMemcpyHtoD(offset=", at, ", size=", count, ")"));
    }
  }
  return driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()");
}

absl::Status Verify(const Driver& driver, CUdeviceptr address,
                    std::uint64_t size, const Pattern& pattern) {
  for (std::uint64_t at = 0; at < size; at += 8 * kPieceWords) {
    const std::uint64_t count = PieceSize(at, size);
    const std::vector<std::uint64_t> expected = Piece(pattern, at, count);
    std::vector<std::uint64_t> found(expected.size());
    if (CUresult r = driver->cuMemcpyDtoH(found.data(), address + at, count);
        r != CUDA_SUCCESS) {
      return driver.Error(
          r, absl::StrCat("cuMemcpyDtoH(offset=", at, ", size=", count, ")"));
    }
    const auto* found_bytes = reinterpret_cast<const std::uint8_t*>(&found[0]);
    const auto* expected_bytes =
        reinterpret_cast<const std::uint8_t*>(&expected[0]);
    if (std::memcmp(found_bytes, expected_bytes, count) == 0) continue;
    const std::size_t wrong =
        std::mismatch(found_bytes, found_bytes + count, expected_bytes).first -
        found_bytes;
    return absl::DataLossError(absl::StrCat(
        "byte ", at + wrong, " of ", size, " is ", int{found_bytes[wrong]},
        "; expected ", int{expected_bytes[wrong]}));
  }
  return absl::OkStatus();
}

}  // namespace examples
