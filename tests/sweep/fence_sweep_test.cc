// The fail-Nth sweep over fences: every driver call and every system call of
// making, sharing, signalling and waiting failed in turn.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/must.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/fence_pool.h"
#include "vmm/sync/ipc_event.h"

namespace vmm::testing {
namespace {

// Longer than kLongEnough: that is too short where many tests run at once.
constexpr absl::Duration kPatience = absl::Seconds(2);
absl::Time InTime() { return absl::Now() + kPatience; }

class FenceSweep : public VmmSweep {
 protected:
  FenceSweep() {
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    context_.emplace(Must(PrimaryContext::Retain(device)));
    current_.emplace(Must(context_->MakeCurrent()));
    EXPECT_EQ(TestDriver()->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
  }
  ~FenceSweep() override {
    EXPECT_EQ(TestDriver()->cuStreamDestroy(stream_), CUDA_SUCCESS);
  }

  absl::StatusOr<std::unique_ptr<FencePool>> MakePool() {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    return FencePool::Create(*device);
  }

  // A fence that a stream signals and waits for, and a host too.
  absl::Status Use(Fence& fence, std::uint64_t first) {
    absl::Status done = fence.Signal(stream_, first);
    if (done.ok()) done = fence.Wait(stream_, first);
    if (done.ok()) done = fence.WaitOnHost(first, InTime());
    if (done.ok()) done = fence.SignalFromHost(first + 1);
    if (!done.ok()) return done;
    return fence.Query().status();
  }

  // Of a full machine and of a driver that refuses.
  static void ExpectFencesSwept(SweepPlan plan) {
    plan.results = {CUDA_ERROR_OUT_OF_MEMORY};
    ExpectSwept(OnThisKernel(plan));
    plan.results = {CUDA_ERROR_INVALID_VALUE};
    AddAnswers(plan);
    plan.name += ", refused";
    plan.system_calls = false;
    ExpectSwept(OnThisKernel(plan));
  }

  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
  CUstream stream_ = nullptr;
};

TEST_F(FenceSweep, MakeAndUse) {
  SweepPlan plan = Plan("make and use a fence", [this]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<FencePool>> pool = MakePool();
    if (!pool.ok()) return pool.status();
    absl::StatusOr<Fence> fence = (*pool)->New();
    if (!fence.ok()) return fence.status();
    const absl::Status used = Use(*fence, 1);
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return used;
  });
  // Polled, with a pause that a signal may cut short.
  plan.may_fail_silently.emplace_back("nanosleep");
  ExpectFencesSwept(WithPairs(plan));
}

TEST_F(FenceSweep, UseOneInDeviceMemory) {
  const Allocation memory = Must(Allocation::Create(
      Must(Device::ByOrdinal(TestDriver(), 0)), {.size = kFenceBytes}));
  SweepPlan plan = Plan("a fence of an array", [&]() -> absl::Status {
    // Where every call is refused from some point on, the array goes without
    // knowing that its work is done: that would meet the next one's.
    EXPECT_EQ(TestDriver()->cuCtxSynchronize(), CUDA_SUCCESS);
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    absl::StatusOr<std::unique_ptr<FenceArray>> array =
        FenceArray::Over(*device, memory.address(), memory.size());
    if (!array.ok()) return array.status();
    absl::Status done = (*array)->Clear(InTime());
    if (!done.ok()) return done;
    absl::StatusOr<Fence> fence = (*array)->At(0);
    if (!fence.ok()) return fence.status();
    done = Use(*fence, 1);
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    if (done.ok()) done = fence->Abandon();
    return done;
  });
  plan.may_fail_silently.emplace_back("nanosleep");
  ExpectFencesSwept(plan);
}

TEST_F(FenceSweep, ExportImportAndUse) {
  SweepPlan plan = Plan("share a fence", [this]() -> absl::Status {
    absl::StatusOr<std::unique_ptr<FencePool>> pool = MakePool();
    if (!pool.ok()) return pool.status();
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Start(
        {.request_timeout = kPatience, .transfer_timeout = kPatience});
    if (!endpoint.ok()) return endpoint.status();
    absl::StatusOr<Share> publication = (*endpoint)->Serve((*pool)->pool());
    if (!publication.ok()) return publication.status();
    absl::StatusOr<std::unique_ptr<ImportedFencePool>> imported =
        ImportedFencePool::Subscribe(driver_, publication->ticket(), {},
                                     InTime());
    if (!imported.ok()) return imported.status();
    absl::StatusOr<Fence> ours = (*pool)->New();
    if (!ours.ok()) return ours.status();
    absl::StatusOr<FenceTicket> ticket = (*pool)->Export(*ours);
    if (!ticket.ok()) return ticket.status();
    absl::StatusOr<Fence> theirs = (*imported)->Import(*ticket, InTime());
    if (!theirs.ok()) return theirs.status();
    absl::Status used = Use(*ours, 1);
    if (used.ok()) used = Use(*theirs, 3);
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return used;
  });
  // As for pools: threads of both sides meet the failures.
  plan.status_names_call = false;
  plan.may_fail_silently = {"accept4", "sendmsg", "poll", "ppoll", "getsockopt",
                            "setsockopt", "fcntl", "statx", "std::thread",
                            "memfd_create", "ftruncate", "mmap", "fstat",
                            "recvmsg", "lstat", "shutdown", "recv",
                            "syscall(pidfd_open)", "mkdir:EEXIST", "opendir",
                            "readdir", "nanosleep", "eventfd", "eventfd_read",
                            // Of a lifeline: whoever looks for an end asks
                            // anew.
                            "pread"};
  ExpectFencesSwept(WithPairs(plan));
}

TEST_F(FenceSweep, MakeExportAndUseAnEvent) {
  // Drawn once: this process's id and the machine's.
  Must(NewMemoryId());
  SweepPlan plan = Plan("an interprocess event", [this]() -> absl::Status {
    absl::StatusOr<IpcEvent> event = IpcEvent::Create(driver_);
    if (!event.ok()) return event.status();
    absl::StatusOr<IpcEventTicket> ticket = event->Export();
    if (!ticket.ok()) return ticket.status();
    absl::Status done = event->Record(stream_);
    if (done.ok()) done = event->Wait(stream_);
    if (done.ok()) done = event->WaitOnHost(InTime());
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return done;
  });
  // Polled, with a pause that a signal may cut short.
  plan.may_fail_silently.emplace_back("nanosleep");
  ExpectSwept(plan);
}

// Warm, there is nothing that could fail, but what is put on streams.
TEST_F(FenceSweep, TheNextOneHasNothingThatCouldFail) {
  Renew();
  const std::unique_ptr<FencePool> pool = Must(MakePool());
  Must(pool->New());
  SweepPlan plan = Plan("make the next fence", [&]() -> absl::Status {
    absl::StatusOr<Fence> fence = pool->New();
    if (!fence.ok()) return fence.status();
    absl::StatusOr<FenceTicket> ticket = pool->Export(*fence);
    if (!ticket.ok()) return ticket.status();
    absl::Status done = fence->SignalFromHost(1);
    if (done.ok()) done = fence->WaitOnHost(1, InTime());
    return done.ok() ? fence->Abandon() : done;
  });
  plan.setup = nullptr;
  const SweepResult result = Sweep(plan);
  for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
  EXPECT_EQ(result.driver_points, 0u);
  EXPECT_EQ(result.system_points, 0u);
}

}  // namespace
}  // namespace vmm::testing
