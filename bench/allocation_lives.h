// The life of one piece of memory that is shared as NativeKind(), by vmmshare
// and by bare driver calls, with the time of each step.
#ifndef VMMSHARE_BENCH_ALLOCATION_LIVES_H_
#define VMMSHARE_BENCH_ALLOCATION_LIVES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "vmm/memory/device.h"

namespace bench {

enum class Step : std::size_t {
  kCreate,         // Memory, addresses, mapping, access.
  kExport,         // A descriptor of it.
  kImport,         // Memory from the descriptor, mapped read-only.
  kReleaseImport,  // All of the import.
  kRelease,        // All of the rest.
};
inline constexpr std::size_t kSteps = 5;
absl::string_view NameOf(Step step);

// Microseconds, by Step.
using StepTimes = std::array<double, kSteps>;

// `size` bytes, a multiple of the granularity. On an error nothing is kept.
absl::StatusOr<StepTimes> LifeByVmmshare(const vmm::Device& device,
                                         std::uint64_t size);
// The driver calls alone, with no check that the library makes. On an error
// what was made is lost: the benchmark ends.
absl::StatusOr<StepTimes> LifeByBareCalls(const vmm::Device& device,
                                          std::uint64_t size);

}  // namespace bench

#endif  // VMMSHARE_BENCH_ALLOCATION_LIVES_H_
