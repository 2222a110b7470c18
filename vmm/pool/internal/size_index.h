// SizeIndex: freed ranges by their size; internal to vmm/.
//
// Lists by size class, eight classes a power of two, linked through the blocks:
// adding, removing and finding take constant time, and no memory.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_SIZE_INDEX_H_
#define VMMSHARE_VMM_POOL_INTERNAL_SIZE_INDEX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "vmm/pool/internal/block.h"

namespace vmm::pool {

// Thread-compatible. Uses next and prev of the blocks that it has.
class SizeIndex {
 public:
  void Insert(Block* block);
  // REQUIRES: it is here, with the size that it came with.
  void Remove(Block* block);

  // One in which `size` bytes have room at a multiple of `alignment`; null when
  // there is none among the first few of each class that are looked at. Where
  // the alignment is a granule, one in a class above that of `size` is always
  // found. REQUIRES: multiples of a granule.
  Block* Find(std::uint64_t size, std::uint64_t alignment) const;

  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr int kSubBits = 3;
  // Of 2^32 granules at most.
  static constexpr std::size_t kClasses = (32 - kSubBits + 1) << kSubBits;
  static constexpr std::size_t kWords = (kClasses + 63) / 64;

  static std::size_t ClassOf(std::uint64_t size);
  // The first class from `from` on that has a block; kClasses without one.
  std::size_t NextClass(std::size_t from) const;

  std::uint64_t bytes_ = 0;
  std::array<std::uint64_t, kWords> words_{};  // Which classes have a block.
  std::array<Block*, kClasses> heads_{};
};

// How far into a block the lowest multiple of `alignment` is at which `size` bytes
// have room; nothing when they have none. The lowest: so that what is free ends
// where memory can be added.
inline std::optional<std::uint64_t> LowestFit(CUdeviceptr address,
                                              std::uint64_t block_size,
                                              std::uint64_t size,
                                              std::uint64_t alignment) {
  // The wrap of -address is that of an addition: what is left of the multiple.
  const std::uint64_t head =
      (0 - std::uint64_t{address}) & (std::uint64_t{alignment} - 1);
  if (head > block_size || size > block_size - head) return std::nullopt;
  return head;
}

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_SIZE_INDEX_H_
