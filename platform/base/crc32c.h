// CRC-32C by what the processor has for it, if anything, and put together from parts.
// wire.h has the functions that others use.
#ifndef VMMSHARE_PLATFORM_BASE_CRC32C_H_
#define VMMSHARE_PLATFORM_BASE_CRC32C_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace vmm::platform {

// `state` is the register, not yet inverted. Any number of bytes.
using ExtendCrc32cFunction = std::uint32_t (*)(std::uint32_t state,
                                               const std::uint8_t* bytes,
                                               std::size_t count);

// By the instruction for it; null when this processor has none.
ExtendCrc32cFunction FindCrc32cInstruction();
// By carry-less products of 512 bits, twice as fast; null the same.
ExtendCrc32cFunction FindWideCrc32c();
// For any processor.
std::uint32_t ExtendCrc32cByTables(std::uint32_t state,
                                   const std::uint8_t* bytes,
                                   std::size_t count);

// Table k advances a byte that is followed by k others, so that eight are looked
// up at once: five times as fast as one after the other.
using Crc32cTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Crc32cTables MakeCrc32cTables() {
  Crc32cTables tables{};
  for (std::uint32_t i = 0; i < tables[0].size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    }
    tables[0][i] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t i = 0; i < tables[k].size(); ++i) {
      const std::uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

// Moves a register over bytes that are 0, by looking up four numbers.
using Crc32cShift = std::array<std::array<std::uint32_t, 256>, 4>;

// Of 2^`power` bytes. The register is a linear function of what it was, so that
// of its 32 single bits is enough; and twice as far is the same function again.
constexpr Crc32cShift MakeCrc32cShift(int power) {
  std::array<std::uint32_t, 32>
      of_bit{};  // One zero bit further, to begin with.
  of_bit[0] = 0x82f63b78u;
  for (std::size_t bit = 1; bit < of_bit.size(); ++bit) {
    of_bit[bit] = std::uint32_t{1} << (bit - 1);
  }
  for (int i = 0; i < power + 3; ++i) {
    std::array<std::uint32_t, 32> twice{};
    for (std::size_t bit = 0; bit < of_bit.size(); ++bit) {
      for (std::size_t other = 0; other < of_bit.size(); ++other) {
        if ((of_bit[bit] >> other & 1) != 0) twice[bit] ^= of_bit[other];
      }
    }
    of_bit = twice;
  }
  Crc32cShift shift{};
  for (std::size_t byte = 0; byte < shift.size(); ++byte) {
    for (std::size_t value = 0; value < shift[byte].size(); ++value) {
      std::uint32_t sum = 0;
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((value >> bit & 1) != 0) sum ^= of_bit[8 * byte + bit];
      }
      shift[byte][value] = sum;
    }
  }
  return shift;
}

constexpr std::uint32_t Apply(const Crc32cShift& shift, std::uint32_t state) {
  return shift[0][state & 0xff] ^ shift[1][state >> 8 & 0xff] ^
         shift[2][state >> 16 & 0xff] ^ shift[3][state >> 24];
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_BASE_CRC32C_H_
