#include "bench/compare/clock.h"

namespace bench::compare {

absl::string_view NameOf(Step step) {
  switch (step) {
    case Step::kSetup:
      return "setup";
    case Step::kCreate:
      return "create";
    case Step::kExport:
      return "export";
    case Step::kTransport:
      return "transport";
    case Step::kImport:
      return "import";
    case Step::kMap:
      return "map";
    case Step::kAccess:
      return "access";
    case Step::kTouch:
      return "touch";
    case Step::kClose:
      return "close";
    case Step::kFree:
      return "free";
  }
  return "?";
}

double Steps::Sum() const {
  double sum = 0;
  for (std::size_t i = 0; i < kSteps; ++i) {
    if (static_cast<Step>(i) != Step::kTransport && ns_[i] > 0) sum += ns_[i];
  }
  return sum;
}

}  // namespace bench::compare
