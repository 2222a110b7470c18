// Which ranges of a segment are taken; internal to vmm/.
//
// Arithmetic only: it knows no pointer and no driver. A two-level segregated
// fit (Masmano, Ripoll, Crespo, Real: "TLSF", 2004) whose metadata lies outside
// the memory, for the CPU cannot touch that. Free ranges hang in lists by size
// class: one class a granule below 32 granules, then 32 classes a power of two.
#ifndef VMMSHARE_VMM_POOL_INTERNAL_OFFSET_HEAP_H_
#define VMMSHARE_VMM_POOL_INTERNAL_OFFSET_HEAP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "platform/os/large_pages.h"

namespace vmm::pool {

// Hands out ranges of [0, size()) that do not overlap. Offsets and sizes are
// bytes. A block costs 20 bytes here, a free range between blocks 24.
//
// Only the constructor throws. Where there is no memory for what is kept of a
// range, a block is not to be had; and giving one back never takes any.
//
// Not thread-safe. One moved from may only be destroyed or assigned to.
class OffsetHeap {
 public:
  // Offsets and sizes are multiples of it.
  static constexpr std::uint64_t kGranule = 256;
  static constexpr std::uint64_t kMaxSize =
      kGranule * std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint64_t kAnySize =
      std::numeric_limits<std::uint64_t>::max();
  // So many free ranges does Allocate() look at before it gives up.
  static constexpr int kMaxExamined = 64;

  struct Block {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::uint32_t node = 0;  // Names the block until it is freed.
  };

  // Ranges, free ones included, are fewer than so many.
  static constexpr std::uint32_t kMaxNodes = std::uint32_t{1} << 31;

  // Tests make do with fewer nodes: the most take 40 GiB.
  // REQUIRES: `size` a multiple of kGranule, from kGranule to kMaxSize;
  // `max_nodes` a power of two from 64 to kMaxNodes.
  explicit OffsetHeap(std::uint64_t size, std::uint32_t max_nodes = kMaxNodes);
  OffsetHeap(OffsetHeap&&) = default;
  OffsetHeap& operator=(OffsetHeap&&) = default;

  // A block of `size` bytes, rounded up to a granule, at a multiple of
  // `alignment`. O(1): one of the smallest classes all of whose ranges fit.
  //
  // nullopt when that is not to be had, that is:
  // - no free range is as large as size + alignment - kGranule, rounded up to
  //   the next class (by less than 1/32); and
  // - of the smaller ones, from the class of `size` up, none of the first
  //   kMaxExamined fits; with no more than so many, none at all fits.
  // Also when blocks and free ranges together are max_nodes - 2 or more, when
  // there is no memory for one more, and when the range is not below `below`
  // bytes.
  //
  // REQUIRES: `size` not 0; `alignment` a power of two, at least kGranule.
  std::optional<Block> Allocate(std::uint64_t size, std::uint64_t alignment,
                                std::uint64_t below = kAnySize);

  // Gives a block back; it becomes one range with its free neighbours. O(1).
  // REQUIRES: is_live(node). A node's number is used again, so that only some
  // of the blocks freed twice are found here.
  void Free(std::uint32_t node);

  // The block that begins where this one ends, or ends where this one begins;
  // kNoNode where a free range or nothing does. REQUIRES: is_live(node).
  static constexpr std::uint32_t kNoNode = 0;
  std::uint32_t Above(std::uint32_t node) const {
    return LiveOrNone(nodes_[node].next);
  }
  std::uint32_t Below(std::uint32_t node) const {
    return LiveOrNone(nodes_[node].prev());
  }
  // Makes one block of two, under the lower one's node. O(1).
  // REQUIRES: Above(lower) == upper.
  void Join(std::uint32_t lower, std::uint32_t upper);
  // Leaves the block its first `size` bytes, and makes another one of the rest,
  // whose node it returns; kNoNode where Allocate() has no nodes either. O(1).
  // REQUIRES: is_live(node); a multiple of kGranule between 0 and its size.
  std::uint32_t Split(std::uint32_t node, std::uint64_t size);
  // Makes the free ranges beside a block part of it. O(1).
  // REQUIRES: is_live(node).
  Block Absorb(std::uint32_t node);

  // Takes exactly these bytes, all of which are free. nullopt where Allocate() has
  // no nodes. O(free ranges of that size).
  // REQUIRES: multiples of kGranule, and free.
  std::optional<std::uint32_t> Take(std::uint64_t offset, std::uint64_t size);
  // Calls `call(range)` for each free range of `at_least` bytes, and some that are
  // smaller by less than 1/32. REQUIRES: it changes nothing here.
  template <typename Call>
  void ForEachFree(std::uint64_t at_least, const Call& call) const {
    if (unlisted_count_ != 0) [[unlikely]] {
      for (std::uint32_t node = 1; node < nodes_.size(); ++node) {
        if (FreeIn(node) >= at_least) call(RangeAt(node));
      }
      return;
    }
    for (std::uint32_t at = NextClass(ClassOf(at_least / kGranule));
         at < kClasses; at = NextClass(at + 1)) {
      for (const std::uint32_t node : classes_[at]) call(RangeAt(node));
    }
  }
  // Bytes of the free range that ends where this block begins, or begins where it
  // ends; 0 without. REQUIRES: is_live(node).
  std::uint64_t FreeBelow(std::uint32_t node) const {
    return FreeIn(nodes_[node].prev());
  }
  std::uint64_t FreeAbove(std::uint32_t node) const {
    return FreeIn(nodes_[node].next);
  }
  // The next block below or above this one, over what is free; kNoNode without.
  // REQUIRES: is_live(node).
  std::uint32_t NextBelow(std::uint32_t node) const {
    const std::uint32_t below = nodes_[node].prev();
    return nodes_[below].is_free() ? nodes_[below].prev() : below;
  }
  std::uint32_t NextAbove(std::uint32_t node) const {
    const std::uint32_t above = nodes_[node].next;
    return nodes_[above].is_free() ? nodes_[above].next : above;
  }

  // REQUIRES: is_live(node).
  Block block(std::uint32_t node) const;
  bool is_live(std::uint32_t node) const {
    return node < nodes_.size() && nodes_[node].size != 0 &&
           !nodes_[node].is_free();
  }

  std::uint64_t size() const { return kGranule * granules_; }
  std::uint64_t live_bytes() const { return kGranule * live_granules_; }
  std::uint64_t free_bytes() const { return size() - live_bytes(); }
  std::uint64_t live_blocks() const { return live_blocks_; }
  bool empty() const { return live_blocks_ == 0; }

  // The size of a range of the largest class that has one: the largest, or
  // less than 1/32 smaller. 0 when all is taken.
  std::uint64_t largest_free() const;

  // Walks everything, for tests. INTERNAL names the first thing that is wrong:
  // a gap, an overlap, free neighbours, a list or a bitmap that disagrees with
  // the ranges, a sum.
  absl::Status CheckInvariants() const;

 private:
  friend class OffsetHeapParts;  // Of the tests of CheckInvariants().
  // A range: a block, or free. Nodes that are neither have size 0. Offsets and
  // sizes are granules here.
  struct Node {
    static constexpr std::uint32_t kFree = std::uint32_t{1} << 31;

    bool is_free() const { return (prev_and_state & kFree) != 0; }
    std::uint32_t prev() const { return prev_and_state & ~kFree; }

    std::uint32_t offset = 0;
    std::uint32_t size = 0;
    std::uint32_t prev_and_state = kBorder;  // The range below, and kFree.
    std::uint32_t next = kBorder;  // The range above; or the next unused node.
  };
  // The node below the first range and above the last: never free, of size 0.
  static constexpr std::uint32_t kBorder = 0;
  static_assert(kMaxNodes <= Node::kFree);  // A node's number fits beside it.
  static constexpr int kSubBits = 5;
  static constexpr std::uint32_t kClasses = (32 - kSubBits + 1) << kSubBits;
  static constexpr std::size_t kWords = kClasses / 64 + 1;

  // The class of `granules`, and the first class with nothing smaller.
  static std::uint32_t ClassOf(std::uint64_t granules);
  static std::uint32_t ClassFrom(std::uint64_t granules);

  // The first class from `from` on that has a range; kClasses without one.
  std::uint32_t NextClass(std::uint32_t from) const;
  // A free range in which `granules` fit at a multiple of `alignment`
  // granules; kBorder without one.
  std::uint32_t Find(std::uint64_t granules, std::uint64_t alignment) const;
  std::uint32_t Examine(std::uint64_t granules, std::uint64_t alignment,
                        std::uint32_t end) const;
  bool Fits(std::uint32_t node, std::uint64_t granules,
            std::uint64_t alignment) const;

  // Makes a block of a free range, `head` granules from its beginning.
  void Cut(std::uint32_t node, std::uint32_t head, std::uint32_t granules);
  Block RangeAt(std::uint32_t node) const {
    return {kGranule * nodes_[node].offset, kGranule * nodes_[node].size, node};
  }
  std::uint64_t FreeIn(std::uint32_t node) const {
    return nodes_[node].is_free() ? kGranule * nodes_[node].size : 0;
  }

  // One for which a list has no memory stays out of it until ListAll(), or until
  // a neighbour is freed.
  static constexpr std::uint32_t kUnlisted = ~std::uint32_t{0};
  void ListAll();
  void List(std::uint32_t node, std::uint32_t granules);
  void Unlist(std::uint32_t node, std::uint32_t granules);

  std::uint32_t LiveOrNone(std::uint32_t node) const {
    return node != kBorder && !nodes_[node].is_free() ? node : kNoNode;
  }
  // Says in `node` what is below it; its state stays.
  void SetPrev(std::uint32_t node, std::uint32_t prev) {
    std::uint32_t& word = nodes_[node].prev_and_state;
    word = (word & Node::kFree) | prev;
  }

  // Makes room for two more nodes; false at max_nodes_, or without memory.
  bool Grow();
  std::uint32_t TakeUnused();
  void PutUnused(std::uint32_t node);

  absl::Status CheckRanges(std::uint64_t& free_ranges) const;
  absl::Status CheckClasses(std::uint64_t free_ranges) const;
  absl::Status CheckUnused(std::uint64_t used) const;

  std::uint32_t granules_;
  std::uint32_t max_nodes_;
  std::uint32_t unused_ = kBorder;  // The first of the nodes given back.
  std::uint32_t unused_count_ = 0;
  std::uint32_t unlisted_count_ = 0;  // Free ranges.
  std::uint64_t live_granules_ = 0;
  std::uint64_t live_blocks_ = 0;
  std::uint64_t summary_ = 0;                  // Which words are not 0.
  std::array<std::uint64_t, kWords> words_{};  // Which classes have a range.
  std::vector<Node, platform::LargePageAllocator<Node>> nodes_;
  // Of a free range: where in its class's list it is. Apart from the nodes: who
  // frees looks at three of those, and at less than one of these as a rule.
  std::vector<std::uint32_t, platform::LargePageAllocator<std::uint32_t>>
      places_;
  // The free ranges of each class. Lists in arrays, not links: to take one out
  // of a list then touches no far node of another range.
  std::vector<std::vector<std::uint32_t>> classes_;
};

}  // namespace vmm::pool

#endif  // VMMSHARE_VMM_POOL_INTERNAL_OFFSET_HEAP_H_
