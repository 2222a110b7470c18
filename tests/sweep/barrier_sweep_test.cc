// The fail-Nth sweep over barriers: every driver call and every system call of
// hosting one, joining it, meeting and leaving failed in turn.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/job/barrier.h"
#include "vmm/job/internal/barrier_state.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
absl::Time InTime() { return absl::Now() + kPatience; }

class BarrierSweep : public VmmSweep {
 protected:
  BarrierSweep() {
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    context_.emplace(Must(PrimaryContext::Retain(device)));
    current_.emplace(Must(context_->MakeCurrent()));
    for (CUstream& stream : streams_) {
      EXPECT_EQ(TestDriver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
    }
  }
  ~BarrierSweep() override {
    for (CUstream stream : streams_) {
      EXPECT_EQ(TestDriver()->cuStreamDestroy(stream), CUDA_SUCCESS);
    }
  }

  // Streams of two ranks in one process meet, and then their hosts.
  absl::Status Meet(Barrier& host, Barrier& other) {
    absl::Status met = host.Meet(streams_[0]);
    if (met.ok()) met = other.Meet(streams_[1]);
    for (CUstream stream : streams_) {
      if (!met.ok()) break;
      EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    if (met.ok()) met = host.ArriveOnHost();
    if (met.ok()) met = other.MeetOnHost(InTime());
    if (met.ok()) met = host.WaitOnHost(InTime());
    // One that failed leaves the other's stream waiting.
    if (!met.ok()) host.LetGo();
    for (CUstream stream : streams_) {
      EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
    return met;
  }

  absl::Status HostJoinAndMeet() {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    absl::StatusOr<std::unique_ptr<FencePool>> fences =
        FencePool::Create(*device);
    if (!fences.ok()) return fences.status();
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Start(
        {.request_timeout = kPatience, .transfer_timeout = kPatience});
    if (!endpoint.ok()) return endpoint.status();
    absl::StatusOr<Share> served = (*endpoint)->Serve((*fences)->pool());
    if (!served.ok()) return served.status();
    absl::StatusOr<std::pair<platform::Channel, platform::Channel>> ends =
        platform::Channel::Pair();
    if (!ends.ok()) return ends.status();
    absl::StatusOr<std::unique_ptr<Barrier>> other =
        absl::UnknownError("not joined");
    std::thread joining;
    try {
      joining = std::thread([&, channel = std::move(ends->second)]() mutable {
        other = Barrier::Join(*device, std::move(channel), InTime());
      });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(error.what());
    }
    std::vector<platform::Channel> members;
    members.push_back(std::move(ends->first));
    absl::StatusOr<std::unique_ptr<Barrier>> host =
        Barrier::Host(**fences, served->ticket(), std::move(members), InTime());
    joining.join();
    absl::Status met = host.ok() ? other.status() : host.status();
    if (met.ok()) met = Meet(**host, **other);
    // Rank 0 leaves first, and what it goes on with is not to come to the next
    // failure.
    host = absl::UnknownError("left");
    other = absl::UnknownError("left");
    const Deadline deadline = Deadline::In(10 * kPatience);
    while (barrier::LeftAndWatched() != 0 && !deadline.Passed()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(barrier::LeftAndWatched(), 0u);
    return met;
  }

  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
  CUstream streams_[2] = {};
};

TEST_F(BarrierSweep, HostJoinMeetAndLeave) {
  SweepPlan plan = Plan("a barrier", [this] { return HostJoinAndMeet(); });
  // As for pools: threads of both sides meet the failures.
  plan.status_names_call = false;
  plan.may_fail_silently = {
      "accept4", "sendmsg", "poll", "ppoll", "getsockopt", "setsockopt",
      "fstat", "recvmsg", "lstat", "shutdown", "recv", "syscall(pidfd_open)",
      "mkdir:EEXIST", "opendir", "readdir", "nanosleep",
      // Whom the owner had no room for tries again.
      "fcntl", "memfd_create", "ftruncate", "mmap", "eventfd", "std::thread",
      // Whom it wakes looks once more.
      "eventfd_read",
      // Of a lifeline: whoever looks for an end asks anew.
      "pread",
      // The node next to a device is done without.
      "cuDeviceGetAttribute"};
  for (CUresult result : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY}) {
    plan.results = {result};
    if (result == CUDA_ERROR_INVALID_VALUE) AddAnswers(plan);
    ExpectSwept(OnThisKernel(plan));
    plan.name += ", out of memory";
    plan.system_calls = false;
  }
}

}  // namespace
}  // namespace vmm::testing
