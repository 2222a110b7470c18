// Threads that allocate and free, by several allocators in turn.
#ifndef VMMSHARE_BENCH_COMPARE_ALLOC_TURN_H_
#define VMMSHARE_BENCH_COMPARE_ALLOC_TURN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/compare/gpu.h"
#include "bench/compare/route.h"

namespace bench::compare {

struct Allocator {
  std::string name;
  std::string label;
  std::unique_ptr<Owner> owner;  // Only its Create(), Free() and Trim().
};

// One size, by every allocator.
struct AllocJob {
  const std::vector<Allocator>& allocators;
  std::uint64_t size = 0;
  std::uint64_t live = 0;
  int slices = 0;  // Of each allocator; they take turns.
  std::int64_t slice_ns = 0;
};

struct AllocSamples {
  std::uint64_t live = 0;          // Pairs of a batch.
  std::vector<double> pair_ns;     // Of each batch.
  std::vector<double> per_second;  // Pairs of all threads, of each slice.
  std::vector<double> slice_p50;   // Of a pair, of each slice.
};

// All slices of all allocators, by the same threads: on a machine whose cores
// are at times half as fast, both sides of a ratio then are.
// `samples`: of each allocator.
absl::Status TakeTurn(const Gpu& gpu, const AllocJob& job, int threads,
                      const std::vector<AllocSamples*>& samples);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_ALLOC_TURN_H_
