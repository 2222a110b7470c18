#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "platform/base/crc32c.h"

namespace vmm::platform {
namespace {

// The instruction takes 3 cycles and one can begin in each: three lanes, side by
// side in the bytes, keep it busy.
constexpr int kLanePower = 12;
constexpr std::size_t kLane = std::size_t{1} << kLanePower;

std::uint64_t Load64(const std::uint8_t* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

__attribute__((target("sse4.2"))) std::uint32_t Extend(
    std::uint32_t state, const std::uint8_t* bytes, std::size_t count) {
  static constexpr Crc32cShift kOverLane = MakeCrc32cShift(kLanePower);
  for (; count >= 3 * kLane; count -= 3 * kLane, bytes += 3 * kLane) {
    std::uint64_t first = state;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      first = _mm_crc32_u64(first, Load64(bytes + i));
      second = _mm_crc32_u64(second, Load64(bytes + kLane + i));
      third = _mm_crc32_u64(third, Load64(bytes + 2 * kLane + i));
    }
    state = Apply(kOverLane, static_cast<std::uint32_t>(first)) ^
            static_cast<std::uint32_t>(second);
    state = Apply(kOverLane, state) ^ static_cast<std::uint32_t>(third);
  }
  std::uint64_t rest = state;
  for (; count >= 8; count -= 8, bytes += 8) {
    rest = _mm_crc32_u64(rest, Load64(bytes));
  }
  state = static_cast<std::uint32_t>(rest);
  for (; count > 0; --count, ++bytes) state = _mm_crc32_u8(state, *bytes);
  return state;
}

// x^n modulo the polynomial, its bits in the order of the register, and shifted
// by one: by what a carry-less product of two reversed numbers is off.
constexpr std::uint64_t Power(int n) {
  std::uint64_t power = 1;
  for (int i = 0; i < n; ++i) {
    power <<= 1;
    if ((power >> 32) != 0) power ^= 0x11edc6f41u;
  }
  std::uint64_t reversed = 0;
  for (int bit = 0; bit < 32; ++bit) {
    reversed |= (power >> bit & 1) << (31 - bit);
  }
  return reversed << 1;
}

constexpr std::size_t kWide = 256;  // Bytes in four registers of 512 bits.
constexpr int kWideBits = 8 * kWide;

// Moves 128 bits, of each quarter of the register, over kWide bytes, and adds those
// that are there: a remainder stays what it is when a part of the message is
// replaced by another with the same remainder ("Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Intel, 2009).
__attribute__((target("avx512f,vpclmulqdq"))) __m512i Fold(
    __m512i part, __m512i by, const std::uint8_t* next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(part, by, 0x00),
                                   _mm512_clmulepi64_epi128(part, by, 0x11),
                                   _mm512_loadu_si512(next), kXorOfThree);
}

// 1.7 to 2.5 times as fast as the instruction (measured on an EPYC, in its caches and
// from memory).
__attribute__((target("avx512f,vpclmulqdq"))) std::uint32_t ExtendWide(
    std::uint32_t state, const std::uint8_t* bytes, std::size_t count) {
  if (count < 4 * kWide) return Extend(state, bytes, count);
  const __m512i by = _mm512_set_epi64(
      Power(kWideBits - 32), Power(kWideBits + 32), Power(kWideBits - 32),
      Power(kWideBits + 32), Power(kWideBits - 32), Power(kWideBits + 32),
      Power(kWideBits - 32), Power(kWideBits + 32));
  // The register goes to the first bytes: as if it had been 0 and they others.
  __m512i parts[4] = {
      _mm512_xor_si512(
          _mm512_loadu_si512(bytes),
          _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)))),
      _mm512_loadu_si512(bytes + 64), _mm512_loadu_si512(bytes + 128),
      _mm512_loadu_si512(bytes + 192)};
  bytes += kWide;
  count -= kWide;
  for (; count >= kWide; count -= kWide, bytes += kWide) {
    for (int i = 0; i < 4; ++i) {
      parts[i] = Fold(parts[i], by, bytes + std::ptrdiff_t{64} * i);
    }
  }
  std::uint8_t rest[kWide];
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(rest + std::ptrdiff_t{64} * i, parts[i]);
  }
  return Extend(Extend(0, rest, kWide), bytes, count);
}

}  // namespace

ExtendCrc32cFunction FindCrc32cInstruction() {
  return __builtin_cpu_supports("sse4.2") ? &Extend : nullptr;
}

ExtendCrc32cFunction FindWideCrc32c() {
  return __builtin_cpu_supports("sse4.2") &&
                 __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("vpclmulqdq")
             ? &ExtendWide
             : nullptr;
}

}  // namespace vmm::platform
