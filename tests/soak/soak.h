// What the parts of the soak have agreed on.
#ifndef VMMSHARE_TESTS_SOAK_SOAK_H_
#define VMMSHARE_TESTS_SOAK_SOAK_H_

#include <cstdint>

namespace vmm::testing {

// Each owner's memory that sleeps and wakes, always with these contents.
inline constexpr std::uint64_t kSoakWeights = 192 << 10;
inline constexpr std::uint64_t kSoakWeightsSeed = 77;
// An allocation that is made for one visitor.
inline constexpr std::uint64_t kSoakPiece = 64 << 10;
// The set that a trainer replaces, and the bytes of each of its tensors.
inline constexpr char kSoakSet[] = "weights";
inline constexpr std::uint64_t kSoakTensor = 50'000;
// Of a ring.
inline constexpr std::uint32_t kSoakRingBuffers = 3;
inline constexpr std::uint64_t kSoakRingBytes = 64 << 10;
inline constexpr int kSoakRingItems = 12;

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SOAK_SOAK_H_
