#include "platform/hostdriver/crc32c.h"

#include <array>

namespace vmm::hostdriver {
namespace {

// Byte k of 8 is followed by 7 - k others.
constexpr std::size_t kAtOnce = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kAtOnce>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) {
      state = state >> 1 ^ ((state & 1) != 0 ? 0x82f63b78u : 0);
    }
    tables[kAtOnce - 1][byte] = state;
  }
  for (std::size_t k = kAtOnce - 1; k > 0; --k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t state = tables[k][byte];
      tables[k - 1][byte] = state >> 8 ^ tables[kAtOnce - 1][state & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

std::uint32_t ExtendCrc32c(std::uint32_t state, const std::byte* bytes,
                           std::size_t count) {
  const auto byte = [&](std::size_t i) {
    return std::to_integer<std::uint32_t>(bytes[i]);
  };
  for (; count >= kAtOnce; bytes += kAtOnce, count -= kAtOnce) {
    std::uint32_t sum = 0;
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t of_state = k < 4 ? state >> (8 * k) : 0;
      sum ^= kTables[k][(byte(k) ^ of_state) & 0xff];
    }
    state = sum;
  }
  for (std::size_t i = 0; i < count; ++i) {
    state = state >> 8 ^ kTables[kAtOnce - 1][(state ^ byte(i)) & 0xff];
  }
  return state;
}

}  // namespace vmm::hostdriver
