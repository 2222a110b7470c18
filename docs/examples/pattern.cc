#include "docs/examples/pattern.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace examples {
namespace {

using vmm::platform::Driver;

// Memory is copied in pieces, so that the host needs little.
constexpr std::uint64_t kPieceSize = 8 << 20;

}  // namespace

std::uint64_t Pattern::Word(std::uint64_t index) const {
  // splitmix64: every bit of the input reaches every byte.
  std::uint64_t word = (index + 1) * 0x9e3779b97f4a7c15 + seed;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return (word ^ (word >> 31)) ^ flip;
}

void Pattern::Write(std::uint64_t offset,
                    absl::Span<std::uint8_t> bytes) const {
  // Pointers, for a build without optimization calls a function for each place
  // of a span.
  std::uint64_t index = offset / sizeof(index);
  std::uint8_t* at = bytes.data();
  std::uint8_t* const end = at + bytes.size();
  for (; static_cast<std::size_t>(end - at) >= sizeof(index);
       at += sizeof(index)) {
    const std::uint64_t word = Word(index++);
    std::memcpy(at, &word, sizeof(word));
  }
  const std::uint64_t last = Word(index);
  std::memcpy(at, &last, static_cast<std::size_t>(end - at));
}

absl::Status Pattern::Compare(std::uint64_t offset,
                              absl::Span<const std::uint8_t> bytes,
                              std::uint64_t whole) const {
  std::vector<std::uint8_t> expected(bytes.size());
  Write(offset, absl::MakeSpan(expected));
  // memcmp() is many times faster than a search for the first, which a
  // sanitizer's build makes slower still.
  if (std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) {
    return absl::OkStatus();
  }
  const auto wrong =
      std::mismatch(bytes.begin(), bytes.end(), expected.begin());
  return absl::DataLossError(absl::StrCat(
      "byte ", offset + (wrong.first - bytes.begin()), " of ", whole, " is ",
      int{*wrong.first}, "; expected ", int{*wrong.second}));
}

absl::Status Fill(const Driver& driver, CUdeviceptr address, std::uint64_t size,
                  const Pattern& pattern) {
  std::vector<std::uint8_t> piece;
  for (std::uint64_t at = 0; at < size; at += kPieceSize) {
    piece.resize(std::min(size - at, kPieceSize));
    pattern.Write(at, absl::MakeSpan(piece));
    if (CUresult r =
            driver->cuMemcpyHtoD(address + at, piece.data(), piece.size());
        r != CUDA_SUCCESS) {
      return driver.Error(r, absl::StrCat("cuMemcpyHtoD(offset=", at,
                                          ", size=", piece.size(), ")"));
    }
  }
  return driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()");
}

absl::Status Verify(const Driver& driver, CUdeviceptr address,
                    std::uint64_t size, const Pattern& pattern) {
  std::vector<std::uint8_t> piece;
  for (std::uint64_t at = 0; at < size; at += kPieceSize) {
    piece.resize(std::min(size - at, kPieceSize));
    if (CUresult r =
            driver->cuMemcpyDtoH(piece.data(), address + at, piece.size());
        r != CUDA_SUCCESS) {
      return driver.Error(r, absl::StrCat("cuMemcpyDtoH(offset=", at,
                                          ", size=", piece.size(), ")"));
    }
    absl::Status same = pattern.Compare(at, piece, size);
    if (!same.ok()) return same;
  }
  return absl::OkStatus();
}

}  // namespace examples
