// OffsetHeap against a model (offset_heap_model.h), in random operations:
// VMMSHARE_MODEL_OPERATIONS of them, 1,000,000 unless set.
#include "tests/unit/offset_heap_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>

#include "tests/support/how_many.h"

namespace vmm::testing {
namespace {

using pool::OffsetHeap;
constexpr std::uint64_t kGranule = OffsetHeap::kGranule;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t Below(std::uint64_t limit) { return engine_() % limit; }
  // 1 to `limit`, each power of two as likely as another.
  std::uint64_t Scaled(std::uint64_t limit) {
    int bits = 1;
    while (bits < 63 && limit >> bits != 0) ++bits;
    const std::uint64_t most = std::uint64_t{1} << (1 + Below(bits));
    return 1 + Below(std::min(limit, most));
  }

 private:
  std::mt19937_64 engine_;
};

std::uint64_t Operations() {
  return testing::HowMany("VMMSHARE_MODEL_OPERATIONS", 1'000'000);
}

// One heap: of a size, sizes and alignments that are drawn first, filled and
// emptied in turns.
class Life {
 public:
  Life(Random& random, std::uint64_t operations)
      : random_(random),
        operations_(operations),
        heap_(kGranule * Granules(random)),
        most_(random.Scaled(heap_.heap().size())),
        uniform_(random.Below(3) == 0),
        alignments_(random.Below(4)),
        most_blocks_(random.Scaled(2000)) {}

  absl::Status Run() {
    std::uint64_t next_check = 1;
    bool filling = true;
    for (std::uint64_t i = 0; i < operations_; ++i) {
      const std::size_t blocks = heap_.blocks().size();
      if (blocks == 0 || random_.Below(200) == 0) filling = true;
      if (blocks >= most_blocks_ || random_.Below(300) == 0) filling = false;
      const bool allocate =
          blocks == 0 || random_.Below(8) < (filling ? 6u : 2u);
      absl::Status status = allocate ? heap_.Allocate(Size(), Alignment())
                                     : heap_.Free(random_.Below(blocks));
      if (status.ok() && i >= next_check) {
        status = heap_.CheckAll();
        // A walk costs as many steps as there are ranges.
        next_check = i + 30 + 2 * blocks;
      }
      if (!status.ok()) return status;
    }
    while (!heap_.blocks().empty()) {
      absl::Status status = heap_.Free(random_.Below(heap_.blocks().size()));
      if (!status.ok()) return status;
    }
    if (heap_.heap().largest_free() != heap_.heap().size()) {
      return absl::InternalError("the empty heap is not one range");
    }
    return heap_.CheckAll();
  }

  std::uint64_t refusals() const { return heap_.refusals(); }

 private:
  static std::uint64_t Granules(Random& random) {
    constexpr std::uint64_t kMost = OffsetHeap::kMaxSize / kGranule;
    switch (random.Below(4)) {
      case 0:
        return 1 + random.Below(100);
      case 1:
        return kMost - random.Below(100);
      default:
        return random.Scaled(kMost);
    }
  }
  std::uint64_t Size() {
    if (random_.Below(1000) == 0) return random_.Scaled(~std::uint64_t{0} >> 1);
    // Some that just fit, and some that just do not.
    const std::uint64_t largest = heap_.heap().largest_free();
    if (random_.Below(50) == 0 && largest != 0) {
      return largest - kGranule + 1 + random_.Below(2 * kGranule);
    }
    return uniform_ ? 1 + random_.Below(most_) : random_.Scaled(most_);
  }
  std::uint64_t Alignment() {
    if (random_.Below(4) >= alignments_) return kGranule;
    if (random_.Below(500) == 0) return std::uint64_t{1} << 63;
    return kGranule << random_.Below(random_.Below(4) == 0 ? 34 : 14);
  }

  Random& random_;
  const std::uint64_t operations_;
  ModelledHeap heap_;
  const std::uint64_t most_;  // Bytes.
  const bool uniform_;
  const std::uint64_t alignments_;  // So many of 4 ask for one.
  const std::uint64_t most_blocks_;
};

TEST(OffsetHeapModel, RandomOperationsAgreeWithTheModel) {
  constexpr std::uint64_t kEach = 20000;
  const std::uint64_t wanted = Operations();
  Random random(20261121);
  std::uint64_t done = 0;
  std::uint64_t refusals = 0;
  std::uint64_t heaps = 0;
  while (done < wanted) {
    const std::uint64_t count = std::min(kEach, wanted - done);
    Life life(random, count);
    const absl::Status status = life.Run();
    ASSERT_TRUE(status.ok()) << "heap " << heaps << ": " << status;
    done += count;
    refusals += life.refusals();
    ++heaps;
  }
  std::printf("%llu operations on %llu heaps, %llu refusals judged\n",
              static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(heaps),
              static_cast<unsigned long long>(refusals));
  // Enough of both ways to end.
  EXPECT_GT(refusals, done / 100);
  EXPECT_LT(refusals, done / 2);
}

}  // namespace
}  // namespace vmm::testing
