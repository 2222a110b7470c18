// What an OffsetHeap must do, said in the plainest way.
#ifndef VMMSHARE_TESTS_UNIT_OFFSET_HEAP_MODEL_H_
#define VMMSHARE_TESTS_UNIT_OFFSET_HEAP_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "vmm/pool/internal/offset_heap.h"

namespace vmm::testing {

// A heap and a map of its free ranges, which follows and judges each answer of
// the heap. Which of the ranges that fit the heap takes is its own choice.
class ModelledHeap {
 public:
  explicit ModelledHeap(std::uint64_t size);

  // Allocates. An error says what is wrong with the block: outside the heap,
  // not aligned, of another size, not within a free range (and so on another
  // block); or why a refusal was none of those that are allowed.
  absl::Status Allocate(std::uint64_t size, std::uint64_t alignment);
  // Frees the block at `index` of blocks(); the last takes its place.
  absl::Status Free(std::size_t index);
  // The heap's own check, every block, and all that both count.
  absl::Status CheckAll() const;

  const pool::OffsetHeap& heap() const { return heap_; }
  const std::vector<pool::OffsetHeap::Block>& blocks() const { return blocks_; }
  std::uint64_t refusals() const { return refusals_; }

 private:
  absl::Status JudgeBlock(const pool::OffsetHeap::Block& block,
                          std::uint64_t wanted, std::uint64_t alignment);
  absl::Status JudgeRefusal(std::uint64_t size, std::uint64_t alignment) const;
  absl::Status CheckSums() const;

  pool::OffsetHeap heap_;
  std::vector<pool::OffsetHeap::Block> blocks_;
  std::map<std::uint64_t, std::uint64_t> free_;  // Offset to end.
  std::uint64_t live_ = 0;
  std::uint64_t refusals_ = 0;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_OFFSET_HEAP_MODEL_H_
