// What the sweeps of vmm/ share.
#ifndef VMMSHARE_TESTS_SWEEP_VMM_SWEEP_H_
#define VMMSHARE_TESTS_SWEEP_VMM_SWEEP_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/driver_faults.h"
#include "tests/support/how_many.h"
#include "tests/support/kernel.h"
#include "tests/support/sweep.h"
#include "tests/support/test_driver.h"
#include "vmm/pool/internal/subscription.h"
#include "vmm/vmm.h"

namespace vmm::testing {

inline constexpr std::uint64_t kMiB = 1 << 20;

// What is waited for comes at once, unless a failure keeps it away.
inline constexpr absl::Duration kLongEnough = absl::Seconds(2);
inline absl::Time Soon() { return absl::Now() + kLongEnough; }

class VmmSweep : public ::testing::Test {
 protected:
  // What others left where it listens would make calls of an endpoint's more.
  VmmSweep() {
    UseAChannelDirectoryOfOwn();
    // Some descriptors are refused for ever.
    pool::SetTakeAgainFor(std::chrono::milliseconds(100));
  }

  // At night: pairs of every operation, and of each call more answers.
  static bool SweepsAll() { return HowMany("VMMSHARE_SWEEP_ALL", 0) != 0; }
  static void AddAnswers(SweepPlan& plan) {
    if (!SweepsAll()) return;
    plan.results.insert(plan.results.end(),
                        {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
                         CUDA_ERROR_NOT_INITIALIZED});
  }

  SweepPlan Plan(const std::string& name, std::function<absl::Status()> run) {
    SweepPlan plan;
    plan.name = name;
    plan.run = std::move(run);
    plan.faults = &faults_;
    plan.setup = [this] { Renew(); };
    // How the kernel says that a file has no seals, and so is no memfd.
    plan.told_in_words = {"fcntl:EINVAL"};
    // Where the host's node has no memory for a copy, other memory is pinned.
    plan.substitute = {
        .call = "cuMemHostAlloc",
        .instead_of = {"cuMemGetAllocationGranularity", "cuMemCreate",
                       "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}};
    // Under the thread sanitizer each takes long.
    plan.every = std::max<std::uint64_t>(1, HowMany("VMMSHARE_SWEEP_EVERY", 1));
    plan.pairs = SweepsAll() ? 1 : 0;
    AddAnswers(plan);
    return plan;
  }

  // Before Linux 6.5 who asks is looked at in /proc. An owner that has no room for
  // that says so, and is asked again; whom the system hides is served unwatched.
  static SweepPlan OnThisKernel(SweepPlan plan) {
    if (!KernelNamesSenders()) {
      plan.may_fail_silently.insert(plan.may_fail_silently.end(),
                                    {"syscall(pidfd_open)", "open", "read"});
    }
    return plan;
  }

  // The same with a second pass: each call fails together with the next one.
  static SweepPlan WithPairs(SweepPlan plan) {
    plan = OnThisKernel(std::move(plan));
    // All take a minute; a ring, with its two sides' waits, most of it.
    plan.pairs = HowMany("VMMSHARE_SWEEP_PAIRS", 3 * plan.every);
    return plan;
  }

  // A driver of which nothing is known yet: neither its devices nor what a
  // probe found. For each run.
  void Renew() { driver_ = FaultyDriver(TestDriver(), &faults_); }

  absl::StatusOr<Allocation> Allocate(AllocationOptions options) {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    return Allocation::Create(*device, options);
  }

  // Made once, with nothing failing.
  Allocation& Made(AllocationOptions options) {
    absl::StatusOr<Allocation> made = Allocate(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    made_ = std::make_unique<Allocation>(*std::move(made));
    return *made_;
  }

  int DeviceCount() {
    absl::StatusOr<std::vector<Device>> all = Device::All(driver_);
    EXPECT_TRUE(all.ok()) << all.status();
    return static_cast<int>(all->size());
  }

  DriverFaults faults_;
  platform::Driver driver_ = FaultyDriver(TestDriver(), &faults_);
  std::unique_ptr<Allocation> made_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SWEEP_VMM_SWEEP_H_
