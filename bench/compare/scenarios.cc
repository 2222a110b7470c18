#include "bench/compare/scenarios.h"

#include <array>

namespace bench::compare {

absl::Span<const Scenario> Scenarios() {
  static const std::array<Scenario, 8> kAll = {
      scenarios::kAlloc,     scenarios::kFirst,    scenarios::kKth,
      scenarios::kTensors,   scenarios::kSegments, scenarios::kCopy,
      scenarios::kFootprint, scenarios::kReclaim};
  return kAll;
}

const Scenario* FindScenario(const std::string& name) {
  for (const Scenario& scenario : Scenarios()) {
    if (name == scenario.name) return &scenario;
  }
  return nullptr;
}

}  // namespace bench::compare
