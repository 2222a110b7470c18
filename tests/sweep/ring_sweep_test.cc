// The fail-Nth sweep over rings: every driver call and every system call of
// opening one, sending an item through it and closing it failed in turn.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "tests/ipc/ring_both_sides.h"
#include "tests/support/must.h"
#include "tests/sweep/vmm_sweep.h"
#include "vmm/ring.h"

namespace vmm::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
absl::Time InTime() { return absl::Now() + kPatience; }

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

  absl::StatusOr<RingSides> Open() {
    absl::StatusOr<Device> device = Device::ByOrdinal(driver_, 0);
    if (!device.ok()) return device.status();
    RingHomeOptions where;
    where.endpoint.request_timeout = kPatience;
    where.endpoint.transfer_timeout = kPatience;
    return OpenBothSides(
        *device, where,
        {.buffers = 2, .bytes = kMiB, .patience = absl::Milliseconds(50)},
        InTime());
  }

  // One item through the ring, and what was in it.
  absl::Status SendOne(RingSides& sides) {
    absl::StatusOr<RingBuffer> out = sides.writer->Acquire(stream_, InTime());
    if (!out.ok()) return out.status();
    out->tag = 42;
    absl::Status done = sides.writer->Publish(*out, stream_, InTime());
    if (!done.ok()) return done;
    absl::StatusOr<RingBuffer> in = sides.reader->Acquire(stream_, InTime());
    if (!in.ok()) return in.status();
    EXPECT_EQ(in->tag, 42u);
    done = sides.reader->Release(*in, stream_);
    if (done.ok()) done = sides.writer->Finish(InTime());
    return done.ok() ? sides.reader->Finish(InTime()) : done;
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
      "accept4",      "sendmsg",  "poll",     "ppoll", "getsockopt",
      "recvmsg",      "lstat",    "shutdown", "recv",  "syscall(pidfd_open)",
      "mkdir:EEXIST", "nanosleep"};
  plan.results = {CUDA_ERROR_INVALID_VALUE};
  // The node next to a device is done without.
  plan.may_fail_silently.emplace_back("cuDeviceGetAttribute");
  ExpectSwept(plan);
  // A pool tries once more to grow when memory was refused, and has it then.
  plan.name += ", out of memory";
  plan.results = {CUDA_ERROR_OUT_OF_MEMORY};
  plan.system_calls = false;
  plan.may_fail_silently.insert(
      plan.may_fail_silently.end(),
      {"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve",
       "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"});
  ExpectSwept(plan);
}

}  // namespace
}  // namespace vmm::testing
