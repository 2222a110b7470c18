// The scenarios of vmmshare-bench, one file each.
#ifndef VMMSHARE_BENCH_COMPARE_SCENARIOS_H_
#define VMMSHARE_BENCH_COMPARE_SCENARIOS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace bench::compare {

struct Bench;

struct Scenario {
  const char* name;
  const char* title;
  // What is and what is not timed.
  const char* timed;
  absl::Status (*run)(Bench& bench);
};

absl::Span<const Scenario> Scenarios();
// nullptr when there is none.
const Scenario* FindScenario(const std::string& name);

namespace scenarios {
extern const Scenario kAlloc;
extern const Scenario kFirst;
extern const Scenario kKth;
extern const Scenario kTensors;
extern const Scenario kSegments;
extern const Scenario kCopy;
extern const Scenario kFootprint;
extern const Scenario kReclaim;
}  // namespace scenarios

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_SCENARIOS_H_
