// The owner's process of scenario reclaim, which can be killed.
#ifndef VMMSHARE_BENCH_COMPARE_OWNER_PROCESS_H_
#define VMMSHARE_BENCH_COMPARE_OWNER_PROCESS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "bench/compare/options.h"

namespace bench::compare {

// What the observer tells an owner, in a kGo message.
enum class OwnerOrder : std::uint32_t {
  // Accept the importer and share a block with it. Answered.
  kShare,
  // Have the importer close it, free it, give the memory back.
  kFree,
  // The same once the importer has hung up.
  kFreeAfterHangUp,
  // Leave. Answered.
  kEnd,
};

// Connects to the observer at options.connect, tells it where the importer is
// to connect (a kGo message with that address), and obeys.
absl::Status RunOwner(const Options& options);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_OWNER_PROCESS_H_
