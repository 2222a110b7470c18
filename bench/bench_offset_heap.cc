// What the pool's arithmetic costs by itself: no driver, no GPU.
//
//   bench_offset_heap [--benchmark_* ...]   --driver=... is taken and ignored
//
// pair/N: N random blocks are live; free a random one of them and allocate
// another, which is a pair. Sizes are drawn by kMix, evenly over the logarithm
// within a part; the heap is a quarter larger than N blocks of the mean size.
// Before the clock starts, every block is replaced 4 times, so that free ranges
// are as scattered as they become.
//
// p50_ns and p99_ns are not those of single pairs: each sample is the mean over
// a batch of kBatch, for a clock read costs as much as a pair. Which blocks a
// batch replaces is drawn before the clock starts, as a caller holds the name
// of the block it frees; so the pairs of a batch overlap where the processor
// can do that, and the choice, a cache miss of the caller's own, is not timed.
//
// fill/N: N blocks into an empty heap, and all out in random order: a pair.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "bench/report.h"
#include "vmm/pool/internal/offset_heap.h"

namespace {

using vmm::pool::OffsetHeap;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBatch = 16;

struct Part {
  double share;
  double from;
  double to;  // Bytes.
};
constexpr std::array<Part, 4> kMix = {{{0.50, 256, 4 << 10},
                                       {0.30, 4 << 10, 64 << 10},
                                       {0.15, 64 << 10, 1 << 20},
                                       {0.05, 1 << 20, 4 << 20}}};

using Random = std::mt19937_64;

// Random sizes, one after another without end.
class Sizes {
 public:
  explicit Sizes(Random& random) : sizes_(std::size_t{1} << 13) {
    std::uniform_real_distribution<double> even(0, 1);
    for (std::uint32_t& size : sizes_) {
      double at = even(random);
      const Part* part = kMix.data();
      while (at >= part->share && part != &kMix.back()) at -= part++->share;
      size = static_cast<std::uint32_t>(
          part->from * std::pow(part->to / part->from, even(random)));
      sum_ += (size + OffsetHeap::kGranule - 1) / OffsetHeap::kGranule;
    }
  }
  std::uint64_t Next() { return sizes_[at_++ % sizes_.size()]; }
  double mean() const {
    return static_cast<double>(sum_ * OffsetHeap::kGranule) /
           static_cast<double>(sizes_.size());
  }

 private:
  std::vector<std::uint32_t> sizes_;  // Few: they share the cache.
  std::uint64_t sum_ = 0;             // Granules.
  std::size_t at_ = 0;
};

OffsetHeap HeapFor(std::uint64_t blocks, double mean_size) {
  const auto granules = static_cast<std::uint64_t>(
      1.25 * static_cast<double>(blocks) * mean_size / OffsetHeap::kGranule);
  return OffsetHeap(
      std::min(OffsetHeap::kMaxSize, granules * OffsetHeap::kGranule));
}

// A heap with live blocks, and which they are.
class Workload {
 public:
  explicit Workload(std::uint64_t blocks)
      : random_(20261121),
        sizes_(random_),
        heap_(HeapFor(blocks, sizes_.mean())) {
    nodes_.reserve(blocks);
    for (std::uint64_t i = 0; i < blocks; ++i) nodes_.push_back(Allocate());
    for (std::uint64_t i = 0; i < 4 * blocks; i += kBatch) {
      ChooseBatch();
      ReplaceBatch();
    }
  }

  // Makes random blocks, each another, the first of nodes_.
  void ChooseBatch() {
    for (std::size_t i = 0; i < kBatch; ++i) {
      std::swap(nodes_[i], nodes_[i + Below(nodes_.size() - i)]);
    }
  }
  // One pair for each of them.
  void ReplaceBatch() {
    for (std::size_t i = 0; i < kBatch; ++i) {
      heap_.Free(nodes_[i]);
      nodes_[i] = Allocate();
    }
  }

  std::uint64_t refused() const { return refused_; }
  const OffsetHeap& heap() const { return heap_; }

 private:
  std::uint32_t Allocate() {
    for (;;) {
      const auto block = heap_.Allocate(sizes_.Next(), OffsetHeap::kGranule);
      if (block.has_value()) return block->node;
      ++refused_;
    }
  }
  // xorshift64*: cheaper than what is measured.
  std::size_t Below(std::size_t limit) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<std::size_t>(
        ((state_ * 0x2545f4914f6cdd1d >> 32) * limit) >> 32);
  }

  Random random_;
  Sizes sizes_;
  OffsetHeap heap_;
  std::vector<std::uint32_t> nodes_;
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
  std::uint64_t refused_ = 0;
};

double NanosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void Pairs(benchmark::State& state) {
  Workload work(static_cast<std::uint64_t>(state.range(0)));
  const std::uint64_t refused = work.refused();
  std::vector<double> times;
  times.reserve(std::size_t{1} << 20);
  for (auto _ : state) {
    work.ChooseBatch();
    const Clock::time_point start = Clock::now();
    work.ReplaceBatch();
    times.push_back(NanosecondsSince(start) / kBatch);
  }
  state.SetItemsProcessed(state.iterations() * std::int64_t{kBatch});
  state.counters["p50_ns"] = bench::Percentile(times, 50);
  state.counters["p99_ns"] = bench::Percentile(times, 99);
  state.counters["refused"] = static_cast<double>(work.refused() - refused);
  if (!work.heap().CheckInvariants().ok()) {
    state.SkipWithError("the heap is broken");
  }
}

void Fill(benchmark::State& state) {
  const auto blocks = static_cast<std::size_t>(state.range(0));
  Random random(20261121);
  Sizes sizes(random);
  std::vector<std::uint32_t> order(blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    order[i] = static_cast<std::uint32_t>(i);
  }
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::uint32_t> nodes(blocks);
  // Twice the room: the sizes drawn vary around the mean.
  OffsetHeap heap = HeapFor(2 * blocks, sizes.mean());
  for (auto _ : state) {
    for (std::uint32_t& node : nodes) {
      const auto block = heap.Allocate(sizes.Next(), OffsetHeap::kGranule);
      if (!block.has_value()) {
        state.SkipWithError("a heap of 2.5 times the blocks is too small");
        return;
      }
      node = block->node;
    }
    for (std::uint32_t i : order) heap.Free(nodes[i]);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  if (!heap.empty() || heap.largest_free() != heap.size()) {
    state.SkipWithError("the empty heap is not one range");
  }
}

BENCHMARK(Pairs)->Name("pair")->RangeMultiplier(10)->Range(1000, 1000000);
BENCHMARK(Fill)->Name("fill")->RangeMultiplier(10)->Range(1000, 1000000);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    // ./dev bench gives every program the same arguments.
    if (!absl::StartsWith(argv[i], "--driver=")) {
      std::fprintf(stderr, "bench_offset_heap: error: unknown option %s\n",
                   argv[i]);
      return EXIT_FAILURE;
    }
  }
  std::printf("offset heap: arithmetic alone, not a GPU figure\nbuild: %s\n",
              VMMSHARE_BUILD_TYPE);
  std::fflush(stdout);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return EXIT_SUCCESS;
}
