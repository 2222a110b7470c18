// A register of CRC-32C as a polynomial, and what bytes of 0 make of it; internal to
// vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_CRC32C_POLYNOMIAL_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_CRC32C_POLYNOMIAL_H_

#include <cstdint>

namespace vmm::weights {

// It is one over two elements, the register's highest bit the constant term. A byte
// of 0 makes it x^8 as large, modulo this.
inline constexpr std::uint32_t kModulus = 0x82f63b78u;
inline constexpr std::uint32_t kOne = 0x80000000u;

constexpr std::uint32_t TimesX(std::uint32_t value) {
  return value >> 1 ^ ((value & 1) != 0 ? kModulus : 0);
}
// 1 / x.
inline constexpr std::uint32_t kOneOverX = (kOne ^ kModulus) << 1 | 1;
static_assert(TimesX(kOneOverX) == kOne);
constexpr std::uint32_t Times(std::uint32_t left, std::uint32_t right) {
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    product ^= (right & kOne) != 0 ? left : 0;
    left = TimesX(left);
    right <<= 1;
  }
  return product;
}
constexpr std::uint32_t Power(std::uint32_t base, int exponent) {
  std::uint32_t power = kOne;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power = Times(power, base);
    base = Times(base, base);
  }
  return power;
}
// What `bytes` bytes of 0 make of a register, and what takes it back.
constexpr std::uint32_t Over(int bytes) {
  return Power(TimesX(kOne), 8 * bytes);
}
constexpr std::uint32_t Back(int bytes) { return Power(kOneOverX, 8 * bytes); }
static_assert(Times(Over(1234), Back(1234)) == kOne);

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_CRC32C_POLYNOMIAL_H_
