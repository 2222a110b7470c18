#include <nmmintrin.h>

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

}  // namespace

ExtendCrc32cFunction FindCrc32cInstruction() {
  return __builtin_cpu_supports("sse4.2") ? &Extend : nullptr;
}

}  // namespace vmm::platform
