// Time and steps of the comparison: what is measured, in nanoseconds.
#ifndef VMMSHARE_BENCH_COMPARE_CLOCK_H_
#define VMMSHARE_BENCH_COMPARE_CLOCK_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "bench/compare/os.h"

namespace bench::compare {

// Of std::chrono::steady_clock, which counts from the same moment in every
// process of a machine: times of two processes can be subtracted.
inline std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What happens to a block that is shared, in order. Of these, kSetup (once a
// connection), kCreate, kExport and kFree are the owner's.
enum class Step {
  kSetup,
  kCreate,
  kExport,
  kTransport,
  kImport,
  kMap,
  kAccess,
  kTouch,
  kClose,
  kFree,
};
inline constexpr const char* kStepNames[] = {
    "setup", "create", "export", "transport", "import",
    "map",   "access", "touch",  "close",     "free"};
inline constexpr std::size_t kSteps = std::size(kStepNames);

// Nanoseconds of each step; negative: the route has no such step.
class Steps {
 public:
  Steps() { ns_.fill(-1); }
  double& operator[](Step step) { return ns_[static_cast<std::size_t>(step)]; }
  double operator[](Step step) const {
    return ns_[static_cast<std::size_t>(step)];
  }
  void Add(Step step, double ns) {
    double& at = (*this)[step];
    at = at < 0 ? ns : at + ns;
  }
  // Of all steps that there are, but transport.
  double Sum() const {
    double sum = 0;
    for (std::size_t i = 0; i < kSteps; ++i) {
      if (static_cast<Step>(i) != Step::kTransport && ns_[i] > 0) sum += ns_[i];
    }
    return sum;
  }

 private:
  std::array<double, kSteps> ns_;
};

// Answers what `call` does, and adds its time to `step` unless `steps` is null.
template <typename Call>
auto Timed(Steps* steps, Step step, Call call) {
  if (steps == nullptr) return call();
  const std::int64_t start = NowNs();
  auto result = call();
  steps->Add(step, static_cast<double>(NowNs() - start));
  return result;
}

// Wall time and CPU time, added up over laps.
class Meter {
 public:
  void Start() {
    process_start_ = ProcessCpuNs();
    thread_start_ = ThreadCpuNs();
    wall_start_ = NowNs();
  }
  void Stop() {
    wall_ns += static_cast<double>(NowNs() - wall_start_);
    thread_ns += static_cast<double>(ThreadCpuNs() - thread_start_);
    process_ns += static_cast<double>(ProcessCpuNs() - process_start_);
  }
  double wall_ns = 0;
  double thread_ns = 0;   // CPU time of this thread.
  double process_ns = 0;  // CPU time of all threads of the process.

 private:
  std::int64_t wall_start_ = 0;
  std::int64_t thread_start_ = 0;
  std::int64_t process_start_ = 0;
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_CLOCK_H_
