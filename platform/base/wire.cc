#include "platform/base/wire.h"

#include <array>

namespace vmm::platform {
namespace {

constexpr std::array<std::uint32_t, 256> MakeTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    }
    table[i] = value;
  }
  return table;
}

}  // namespace

std::uint32_t Crc32c(absl::Span<const std::uint8_t> bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = MakeTable();
  std::uint32_t crc = ~0u;
  for (std::uint8_t byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ byte) & 0xff];
  }
  return ~crc;
}

}  // namespace vmm::platform
