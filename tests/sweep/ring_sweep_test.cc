// The fail-Nth sweep over rings: every driver call and every system call of
// opening one, sending an item through it and closing it failed in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/ipc/ring_both_sides.h"
#include "tests/support/must.h"
#include "tests/support/syscall_faults.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);

class RingSweep : public VmmSweep {
 protected:
  RingSweep() {
    const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
    context_.emplace(Must(PrimaryContext::Retain(device)));
    current_.emplace(Must(context_->MakeCurrent()));
    EXPECT_EQ(TestDriver()->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
  }
  ~RingSweep() override {
    EXPECT_EQ(TestDriver()->cuStreamDestroy(stream_), CUDA_SUCCESS);
  }

  absl::StatusOr<RingSides> Open(absl::Duration patience = kPatience) {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    RingHomeOptions where;
    where.endpoint.request_timeout = patience;
    where.endpoint.transfer_timeout = patience;
    return OpenBothSides(
        *device, where,
        {.buffers = 2, .bytes = kMiB, .patience = absl::Milliseconds(50)},
        absl::Now() + patience);
  }

  // One item through the ring, and what was in it.
  absl::Status SendOne(RingSides& sides, absl::Duration patience = kPatience) {
    const absl::Time in_time = absl::Now() + patience;
    absl::StatusOr<RingBuffer> out = sides.writer->Acquire(stream_, in_time);
    if (!out.ok()) return out.status();
    out->tag = 42;
    absl::Status done = sides.writer->Publish(*out, stream_, in_time);
    if (!done.ok()) return done;
    absl::StatusOr<RingBuffer> in = sides.reader->Acquire(stream_, in_time);
    if (!in.ok()) return in.status();
    EXPECT_EQ(in->tag, 42u);
    done = sides.reader->Release(*in, stream_);
    if (done.ok()) done = sides.writer->Finish(in_time);
    return done.ok() ? sides.reader->Finish(in_time) : done;
  }

  std::optional<PrimaryContext> context_;
  std::optional<CurrentContext> current_;
  CUstream stream_ = nullptr;
};

TEST_F(RingSweep, OpenSendAndClose) {
  SweepPlan plan = Plan("a ring", [this]() -> absl::Status {
    absl::StatusOr<RingSides> sides = Open();
    if (!sides.ok()) return sides.status();
    const absl::Status sent = SendOne(*sides);
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return sent;
  });
  // As for pools: threads of both sides meet the failures.
  plan.status_names_call = false;
  plan.may_fail_silently = {
      "accept4", "sendmsg", "poll", "ppoll", "getsockopt", "setsockopt",
      "fstat", "recvmsg", "lstat", "shutdown", "recv", "syscall(pidfd_open)",
      "mkdir:EEXIST", "opendir", "readdir", "nanosleep",
      // Whom the owner had no room for tries again.
      "fcntl", "statx", "memfd_create", "ftruncate", "mmap", "eventfd",
      "std::thread",
      // Whom it wakes looks once more.
      "eventfd_read",
      // Of a lifeline: whoever looks for an end asks anew.
      "pread",
      // Recorded, or asked for, anew.
      "cuEventRecord", "cuEventQuery"};
  plan.results = {CUDA_ERROR_INVALID_VALUE};
  AddAnswers(plan);
  ExpectSwept(WithPairs(plan));
  // A pool tries once more to grow when memory was refused, and has it then.
  plan.name += ", out of memory";
  plan.results = {CUDA_ERROR_OUT_OF_MEMORY};
  plan.system_calls = false;
  plan.may_fail_silently.insert(
      plan.may_fail_silently.end(),
      {"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve",
       "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle",
       // Where it cannot say, it is looked for anew.
       "cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamGetCtx"});
  ExpectSwept(WithPairs(plan));
}

// Once a side waited 8 s for a peer that it could not hear any more.
TEST_F(RingSweep, NoSideWaitsForLongWhereTheKernelHasNoMemoryForAWait) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call can be failed";
  absl::Duration slowest;
  std::uint64_t calls = 0;
  for (bool fired = true; fired && !HasFailure(); ++calls) {
    SCOPED_TRACE(absl::StrCat("call ", calls));
    SyscallFault fault;
    fault.point.nth = calls;
    fault.only_error = ENOMEM;
    const absl::Time begun = absl::Now();
    ArmSyscallFault(fault);
    {
      absl::StatusOr<RingSides> sides = Open(absl::Seconds(20));
      if (sides.ok()) SendOne(*sides, absl::Seconds(20)).IgnoreError();
      EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
    }
    fired = DisarmSyscallFault().fired != 0;
    slowest = std::max(slowest, absl::Now() - begun);
    EXPECT_LT(slowest, absl::Seconds(5));
  }
  EXPECT_GT(calls, 50u);
  std::cout << calls << " calls, the slowest try took "
            << absl::FormatDuration(slowest) << "\n";
}

// What fails once at looking for word of the reader is not kept for ever.
TEST_F(RingSweep, APublishThatTheKernelHadNoMemoryForIsMadeAgain) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call can be failed";
  std::uint64_t refused = 0;
  std::uint64_t calls = 0;
  for (bool fired = true; fired && !HasFailure(); ++calls) {
    SCOPED_TRACE(absl::StrCat("call ", calls));
    RingSides sides = Must(Open(absl::Seconds(20)));
    const RingBuffer out =
        Must(sides.writer->Acquire(stream_, absl::Now() + absl::Seconds(20)));
    SyscallFault fault;
    // Another thread's call would be counted in place of the publish's.
    fault.point = {.nth = calls, .this_thread_only = true};
    fault.only_error = ENOMEM;
    ArmSyscallFault(fault);
    const absl::Status first =
        sides.writer->Publish(out, stream_, absl::Now() + absl::Seconds(20));
    fired = DisarmSyscallFault().fired != 0;
    if (absl::IsResourceExhausted(first)) {
      ++refused;
      const absl::Status again =
          sides.writer->Publish(out, stream_, absl::Now() + absl::Seconds(20));
      EXPECT_FALSE(absl::IsResourceExhausted(again)) << again;
    }
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace vmm::testing
