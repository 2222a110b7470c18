// Reading and writing fixed-size little-endian fields. Total: reading past the
// end yields zeros and is remembered, it never touches memory outside.
#ifndef VMMSHARE_PLATFORM_BASE_WIRE_H_
#define VMMSHARE_PLATFORM_BASE_WIRE_H_

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace vmm::platform {

// Appends to a byte vector. A view of it: keep the vector alive.
class WireWriter {
 public:
  explicit WireWriter(std::vector<std::uint8_t>& out) : out_(out) {}

  template <std::unsigned_integral T>
  void Put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
    }
  }
  void PutBytes(absl::Span<const std::uint8_t> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void PutZeros(std::size_t count) { out_.insert(out_.end(), count, 0); }
  // Its bytes alone, without a length.
  void PutText(absl::string_view text) {
    out_.insert(out_.end(), text.begin(), text.end());
  }
  // And zeros up to `room` bytes; it may not be longer.
  void PutText(absl::string_view text, std::size_t room) {
    PutText(text);
    PutZeros(room - text.size());
  }

 private:
  std::vector<std::uint8_t>& out_;
};

class WireReader {
 public:
  explicit WireReader(absl::Span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <std::unsigned_integral T>
  T Take() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(static_cast<T>(Next()) << (8 * i));
    }
    return value;
  }
  void TakeBytes(absl::Span<std::uint8_t> out) {
    const std::size_t count = std::min(left(), out.size());
    std::copy_n(bytes_.begin() + at_, count, out.begin());
    std::fill(out.begin() + count, out.end(), std::uint8_t{0});
    at_ += count;
    overrun_ |= count < out.size();
  }
  // Whether the next `count` bytes are all zero.
  bool TakeZeros(std::size_t count) {
    bool all_zero = true;
    for (std::size_t i = 0; i < count; ++i) all_zero &= Next() == 0;
    return all_zero;
  }
  std::size_t left() const { return bytes_.size() - at_; }
  // Whether something was read that was not there.
  bool overrun() const { return overrun_; }

 private:
  std::uint8_t Next() {
    if (at_ == bytes_.size()) {
      overrun_ = true;
      return 0;
    }
    return bytes_[at_++];
  }

  absl::Span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  bool overrun_ = false;
};

// CRC-32C (Castagnoli). Finds every single flipped bit; no defence against
// somebody who wants to deceive.
std::uint32_t Crc32c(absl::Span<const std::uint8_t> bytes);
// Of what `crc` is of, with `bytes` behind it; 0 is the one of no bytes.
std::uint32_t ExtendCrc32c(std::uint32_t crc,
                           absl::Span<const std::uint8_t> bytes);

// Many formats end in the checksum of all that is before it.
inline constexpr std::size_t kCrcBytes = 4;
struct TrailingCrc32c {
  // `bytes` have kCrcBytes at least.
  explicit TrailingCrc32c(absl::Span<const std::uint8_t> bytes)
      : stated(WireReader(bytes.last(kCrcBytes)).Take<std::uint32_t>()),
        actual(Crc32c(bytes.first(bytes.size() - kCrcBytes))) {}
  bool is_right() const { return stated == actual; }

  std::uint32_t stated;
  std::uint32_t actual;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_WIRE_H_
