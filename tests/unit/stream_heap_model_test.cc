// Heap against a model of streams (stream_heap_model.h), in random operations:
// VMMSHARE_MODEL_OPERATIONS of them, 1,000,000 unless set.
#include "tests/unit/stream_heap_model.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <random>

#include "tests/support/how_many.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kGranule = pool::OffsetHeap::kGranule;

// One heap and its streams. `too_early`: how many of 1,000 looks at the GPU
// tell the heap of work as done that is not.
class Life {
 public:
  Life(std::uint64_t seed, std::uint64_t operations, std::uint64_t too_early)
      : random_(seed),
        operations_(operations),
        too_early_(too_early),
        streams_(1 + Below(Below(3) == 0 ? 40 : 4)),
        most_blocks_(1 + Below(200)),
        most_granules_(1 + Below(Below(2) == 0 ? 40 : 3000)),
        has_ranges_(Below(2) == 0),
        model_(streams_) {
    for (std::uint64_t i = 1 + Below(3); i > 0; --i) {
      model_.Grow(kGranule * (1000 + Below(20000)));
    }
  }

  absl::Status Run() {
    std::uint64_t next_check = 1;
    for (std::uint64_t i = 0; i < operations_; ++i) {
      absl::Status status = Step();
      if (status.ok() && i >= next_check) {
        status = model_.CheckAll();
        next_check = i + 500;
      }
      if (!status.ok()) return status;
    }
    if (const std::uint64_t lost = model_.LostBytes(); lost != 0) {
      return absl::InternalError(absl::StrCat(lost, " bytes were lost"));
    }
    return model_.CheckAll();
  }
  std::uint64_t refusals() const { return refusals_; }

 private:
  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }
  absl::Status Step() {
    const std::size_t stream = Below(streams_);
    const std::uint64_t what = Below(100);
    if (what < 40 && model_.blocks() < most_blocks_) {
      const std::uint64_t size = kGranule * (1 + Below(most_granules_));
      const std::uint64_t alignment =
          Below(8) == 0 ? kGranule << Below(6) : kGranule;
      const absl::StatusOr<bool> taken =
          model_.Allocate(stream, size, alignment);
      if (!taken.ok()) return taken.status();
      if (!*taken) ++refusals_;
    } else if (what < 80 && model_.blocks() > 0) {
      model_.Free(Below(model_.blocks()), stream, /*held=*/Below(16) == 0);
    } else if (what < 90) {
      model_.Run(stream, 1 + Below(30));
    } else if (what < 98) {
      model_.Ask(stream, Below(1000) < too_early_);
      if (Below(2) == 0) model_.Forget(stream);
      if (Below(8) == 0) model_.GiveBack();
    } else if (what < 99 || !has_ranges_) {
      model_.Wait(stream, Below(streams_));
    } else if (Below(2) == 0) {
      constexpr std::uint64_t kUnit = pool::Range::kUnit;
      return model_.Extend(stream, kGranule * (1 + Below(most_granules_)),
                           kUnit * Below(4), /*fails=*/Below(4) == 0);
    } else {
      model_.Shrink();
    }
    return absl::OkStatus();
  }

  std::mt19937_64 random_;
  const std::uint64_t operations_;
  const std::uint64_t too_early_;
  const std::size_t streams_;
  const std::uint64_t most_blocks_;
  const std::uint64_t most_granules_;
  const bool has_ranges_;  // Segments come side by side, and go.
  ModelledStreams model_;
  std::uint64_t refusals_ = 0;
};

TEST(StreamHeapModel, MemoryReachesAStreamOnlyWhenWorkOnItIsDone) {
  constexpr std::uint64_t kEach = 10000;
  const std::uint64_t wanted = HowMany("VMMSHARE_MODEL_OPERATIONS", 1'000'000);
  std::uint64_t refusals = 0;
  std::uint64_t heaps = 0;
  for (std::uint64_t done = 0; done < wanted; done += kEach, ++heaps) {
    Life life(20261122 + heaps, kEach, 0);
    const absl::Status status = life.Run();
    ASSERT_TRUE(status.ok()) << "heap " << heaps << ": " << status;
    refusals += life.refusals();
  }
  std::printf("%llu operations on %llu heaps, %llu refusals\n",
              static_cast<unsigned long long>(heaps * kEach),
              static_cast<unsigned long long>(heaps),
              static_cast<unsigned long long>(refusals));
}

// The negative control: a heap that is told one piece of work too early hands
// memory to another stream, and the model finds it.
TEST(StreamHeapModel, FindsAHeapThatHandsMemoryOnTooEarly) {
  int found = 0;
  for (std::uint64_t heap = 0; heap < 20; ++heap) {
    if (!Life(heap, 20000, 500).Run().ok()) ++found;
  }
  EXPECT_GE(found, 10);
}

}  // namespace
}  // namespace vmm::testing
