// What the two control memories of a sharing domain look like; internal.
//
// The share table is written by the owner and read by peers: a header page,
// then kPoolSlots records. A hold table is written by one peer and read by the
// owner: kPoolSlots words, each 0 or since when. Both are mostly holes: pages
// come into being as slots are used, the lowest first, and some ahead.
//
// Both sides run on one machine, so numbers are in its byte order.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SHARE_LAYOUT_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SHARE_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "vmm/pool/pool_ticket.h"

namespace vmm::pool {

// Written once, before any peer can see it.
struct ShareHeader {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t slots = 0;
  std::array<std::uint8_t, 16> domain{};
};
static_assert(sizeof(ShareHeader) == 32);
static_assert(std::is_trivially_copyable_v<ShareHeader>);

inline constexpr std::array<char, 8> kShareMagic = {'V', 'M', 'S', 'H',
                                                    'P', 'O', 'O', 'L'};
// A peer that knows version 2 alone maps no segments side by side, and finds no
// block that has parts of several: it must not be given any.
inline constexpr std::uint32_t kShareVersion = 3;
inline constexpr std::uint32_t kOldestShareVersion = 2;

// One shared block. The other fields count while the generation is not 0.
struct ShareRecord {
  std::atomic<std::uint64_t> generation;  // 0: not shared.
  std::atomic<std::uint64_t> offset;
  std::atomic<std::uint64_t> size;
  std::atomic<std::uint32_t> segment;
  std::atomic<std::uint32_t> zero;
};
static_assert(sizeof(ShareRecord) == 32);

// 0: the peer does not use the slot's block. Otherwise HoldWord().
using Hold = std::atomic<std::uint32_t>;
static_assert(sizeof(Hold) == 4);

// A hold with the time that it began at: the top bit, and platform::CoarseNow()
// in steps of 16 ms, which come round after a year.
inline constexpr std::uint32_t kHeldBit = std::uint32_t{1} << 31;
inline constexpr std::uint64_t kHoldStepMs = 16;
constexpr std::uint32_t HoldWord(std::uint64_t coarse_now) {
  return kHeldBit | static_cast<std::uint32_t>(coarse_now / kHoldStepMs);
}
// Milliseconds since then, at `coarse_now`. Any word gives some answer.
constexpr std::uint64_t HeldForMs(std::uint32_t word,
                                  std::uint64_t coarse_now) {
  const auto now = static_cast<std::uint32_t>(coarse_now / kHoldStepMs);
  return ((now - word) & (kHeldBit - 1)) * kHoldStepMs;
}

// Between processes an atomic must not be a lock of one of them.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(Hold::is_always_lock_free);

// Blocks that either side looks up together: the processor waits for one
// record, instead of for each in turn.
inline constexpr std::size_t kBlocksAtOnce = 16;

// The first write to a page waits 1 to 2 us for the kernel (measured): that is
// done ahead, by another thread, for these slots once there is a subscriber. It
// costs the owner 768 KiB and each peer 320 KiB.
inline constexpr std::uint32_t kSlotsAhead = 16384;

inline constexpr std::size_t kShareHeaderBytes = 4096;
inline constexpr std::size_t kShareTableBytes =
    kShareHeaderBytes + kPoolSlots * sizeof(ShareRecord);
inline constexpr std::size_t kHoldTableBytes = kPoolSlots * sizeof(Hold);

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SHARE_LAYOUT_H_
