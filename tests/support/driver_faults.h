// A driver that counts every call and can fail a chosen one.
//
//   DriverFaults faults;
//   platform::Driver driver = FaultyDriver(TestDriver(), &faults);
//   faults.Arm({.point = {.nth = 2}, .result = CUDA_ERROR_OUT_OF_MEMORY});
//   absl::Status status = Share(driver);          // its third call fails
//   DriverFaults::Outcome outcome = faults.Disarm();
//   ASSERT_EQ(outcome.fired, 1);                  // "cuMemMap" was reached
//
// It sits between vmmshare and any driver, the host-memory one or a real one.
// cuGetErrorName and cuGetErrorString pass through, uncounted: they are how an
// error is reported. A wait (cuStreamSynchronize and its kin) is always
// performed, whatever it is made to answer. All others are steps, at which steps.h can end the
// process.
#ifndef VMMSHARE_TESTS_SUPPORT_DRIVER_FAULTS_H_
#define VMMSHARE_TESTS_SUPPORT_DRIVER_FAULTS_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/cuda/driver.h"
#include "tests/support/fault_point.h"

namespace vmm::testing {

struct DriverFault {
  FaultPoint point = {};
  // The kind of call that is counted and may fail.
  CallKind calls = CallKind::kAcquire;
  // If not empty, count and fail only this entry point ("cuMemMap").
  std::string entry = {};
  // CUDA_SUCCESS, with `then`: nothing fails, and that comes before the call.
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  // With kAny: what a release returns.
  CUresult release_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  // With kAny of releases alone; what acquires is not performed.
  FaultEffect effect = FaultEffect::kNotPerformed;
  // Called once, by the first call that fails.
  std::function<void()> then = {};
};

// Thread-safe, but for its destruction: REQUIRES that no other thread is in a
// driver call then. A FaultyDriver whose DriverFaults is gone passes calls on.
class DriverFaults {
 public:
  struct Outcome {
    std::uint64_t counted = 0;        // Calls of the chosen kind since Arm.
    std::uint64_t fired = 0;          // Calls failed.
    std::vector<std::string> failed;  // Their names, in order.
  };

  DriverFaults() = default;
  DriverFaults(const DriverFaults&) = delete;
  DriverFaults& operator=(const DriverFaults&) = delete;
  ~DriverFaults();

  // Starts counting towards `fault`. Only calls of this process fail, not
  // those of a forked child.
  void Arm(const DriverFault& fault);
  // Stops failing calls. Nothing was counted where no fault was armed.
  Outcome Disarm();

  // Calls since construction or ResetCounts(), armed or not: in total, and by
  // entry point. A path makes no driver call when calls() stays the same.
  std::uint64_t calls() const;
  std::map<std::string, std::uint64_t> CallsByEntry() const;
  void ResetCounts();

  // The driver behind the faults. REQUIRES: FaultyDriver was called.
  const platform::Driver& real() const;

 private:
  friend class DriverRedirect;

  // What becomes of one call.
  struct Decision {
    bool perform = true;
    std::optional<CUresult> answer;  // Instead of the driver's own.
  };
  Decision Decide(const char* entry, CallKind kind);

  mutable std::mutex mutex_;
  DriverFault fault_;
  FaultTrigger trigger_;
  std::int64_t process_ = 0;
  std::vector<std::string> failed_;
  std::uint64_t calls_ = 0;
  std::map<std::string, std::uint64_t> calls_by_entry_;
  std::optional<platform::Driver> real_;
};

// `real` with its calls counted, and failed, by `faults`. Keeps
// is_host_memory(). Entry points that `real` lacks stay absent. One at a time:
// REQUIRES that no FaultyDriver of another real driver is alive; a second one
// of the same driver moves the counting to its `faults`.
platform::Driver FaultyDriver(const platform::Driver& real,
                              DriverFaults* faults);

// Whether a call of `entry` gives something back.
CallKind KindOfDriverCall(const std::string& entry);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_DRIVER_FAULTS_H_
