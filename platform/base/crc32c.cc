#include "platform/base/crc32c.h"

#include "platform/base/wire.h"

namespace vmm::platform {
namespace {

std::uint32_t Load32(const std::uint8_t* from) {
  return static_cast<std::uint32_t>(from[0]) |
         static_cast<std::uint32_t>(from[1]) << 8 |
         static_cast<std::uint32_t>(from[2]) << 16 |
         static_cast<std::uint32_t>(from[3]) << 24;
}

}  // namespace

std::uint32_t ExtendCrc32cByTables(std::uint32_t crc, const std::uint8_t* at,
                                   std::size_t left) {
  static constexpr Crc32cTables kTables = MakeCrc32cTables();
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint32_t low = crc ^ Load32(at);
    const std::uint32_t high = Load32(at + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^
          kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
          kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
          kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; left > 0; --left, ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  }
  return crc;
}

std::uint32_t ExtendCrc32c(std::uint32_t crc,
                           absl::Span<const std::uint8_t> bytes) {
  static const ExtendCrc32cFunction kExtend = [] {
    for (const ExtendCrc32cFunction found :
         {FindWideCrc32c(), FindCrc32cInstruction()}) {
      if (found != nullptr) return found;
    }
    return &ExtendCrc32cByTables;
  }();
  return ~kExtend(~crc, bytes.data(), bytes.size());
}

std::uint32_t Crc32c(absl::Span<const std::uint8_t> bytes) {
  return ExtendCrc32c(0, bytes);
}

}  // namespace vmm::platform
