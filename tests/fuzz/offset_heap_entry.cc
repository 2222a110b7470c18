// FuzzOffsetHeap().
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "tests/unit/offset_heap_model.h"
#include "vmm/pool/internal/offset_heap.h"

namespace vmm::fuzz {
namespace {

using pool::OffsetHeap;

void Must(const absl::Status& status) {
  platform::Check(status.ok(), status.ToString());
}

// `low` and a little, times a power of two: 0 to 2^48.
std::uint64_t Scaled(std::uint8_t low, std::uint8_t power) {
  return (std::uint64_t{low} << power % 41) + (power >> 6);
}

}  // namespace

void FuzzOffsetHeap(Input input) {
  if (input.size() < 2) return;
  const std::uint64_t granules =
      std::clamp<std::uint64_t>(Scaled(input[0], input[1]), 1,
                                OffsetHeap::kMaxSize / OffsetHeap::kGranule);
  testing::ModelledHeap heap(granules * OffsetHeap::kGranule);
  std::size_t operations = 0;
  for (std::size_t at = 2; at + 4 <= input.size(); at += 4) {
    const std::uint8_t what = input[at];
    const std::uint8_t a = input[at + 1];
    const std::uint8_t b = input[at + 2];
    const std::uint8_t c = input[at + 3];
    if (what % 8 < 3) {
      if (heap.blocks().empty()) continue;
      Must(heap.Free((a | b << 8) % heap.blocks().size()));
    } else if (what % 8 == 3) {
      // About as much as is free in one piece.
      const std::uint64_t most = heap.heap().largest_free();
      Must(heap.Allocate(std::max<std::uint64_t>(1, most - 128 + a),
                         OffsetHeap::kGranule << c % 56));
    } else {
      const std::uint64_t alignment =
          what % 2 == 0 ? OffsetHeap::kGranule : OffsetHeap::kGranule << c % 56;
      Must(heap.Allocate(std::max<std::uint64_t>(1, Scaled(a, b)), alignment));
    }
    if (++operations % 4 == 0) Must(heap.CheckAll());
  }
  while (!heap.blocks().empty()) Must(heap.Free(heap.blocks().size() / 2));
  Must(heap.CheckAll());
  platform::Check(heap.heap().largest_free() == heap.heap().size(),
                  "the empty heap is not one range");
}

}  // namespace vmm::fuzz
