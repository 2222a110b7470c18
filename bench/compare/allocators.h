// What the scenario alloc compares.
#ifndef VMMSHARE_BENCH_COMPARE_ALLOCATORS_H_
#define VMMSHARE_BENCH_COMPARE_ALLOCATORS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/compare/bench.h"
#include "bench/compare/route.h"

namespace bench::compare {

struct Allocator {
  std::string name;
  std::string label;
  std::unique_ptr<Owner> owner;  // Only its Create(), Free() and Trim().
};

// The name of cuMemAllocAsync, which has no route: its pool is not shared.
inline constexpr char kAsyncAllocator[] = "async";

// cuMemAlloc, cuMemAllocAsync and vmmshare's pool, those that there are.
absl::StatusOr<std::vector<Allocator>> MakeAllocators(Bench& bench);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_ALLOCATORS_H_
