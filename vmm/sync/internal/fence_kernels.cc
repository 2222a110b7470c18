#include "vmm/sync/internal/fence_kernels.h"

#include <algorithm>
#include <utility>

#include "platform/base/status_macros.h"

namespace vmm::fence {
namespace {

// Values are compared as cuStreamWaitValue64 does with GEQ, which is cyclic. A
// release of system scope makes visible what came before on the stream: its
// kernels happen before this one. What is behind it on the stream does not begin
// before this one has ended.
constexpr char kText[] = R"(
.version 6.3
.target sm_70
.address_size 64

.visible .entry vmmshare_fence_meet(
    .param .u64 signal_at, .param .u64 signal_value,
    .param .u64 wait_at, .param .u64 wait_value)
{
  .reg .b64 %to, %raised, %at, %least, %now;
  .reg .pred %none, %less;
  ld.param.u64 %to, [signal_at];
  ld.param.u64 %raised, [signal_value];
  ld.param.u64 %at, [wait_at];
  ld.param.u64 %least, [wait_value];
  setp.eq.u64 %none, %to, 0;
  @%none bra signalled;
  st.release.sys.global.u64 [%to], %raised;
signalled:
  setp.eq.u64 %none, %at, 0;
  @%none bra done;
again:
  ld.acquire.sys.global.u64 %now, [%at];
  sub.s64 %now, %now, %least;
  setp.lt.s64 %less, %now, 0;
  @%less bra again;
done:
  ret;
}

.visible .entry vmmshare_fence_add(.param .u64 at, .param .u64 value)
{
  .reg .b64 %at, %value;
  .reg .pred %none;
  ld.param.u64 %at, [at];
  ld.param.u64 %value, [value];
  setp.eq.u64 %none, %at, 0;
  @%none bra done;
  red.release.sys.global.add.u64 [%at], %value;
done:
  ret;
}

// A thread a step; all of a block signal before one of them waits.
.visible .entry vmmshare_fences_meet(
    .param .align 8 .b8 steps[4064], .param .u32 count)
{
  .reg .b32 %thread, %count;
  .reg .b64 %step, %index, %to, %raised, %at, %least, %now;
  .reg .pred %beyond, %none, %less;
  mov.u32 %thread, %tid.x;
  ld.param.u32 %count, [count];
  setp.ge.u32 %beyond, %thread, %count;
  mov.b64 %step, steps;
  cvt.u64.u32 %index, %thread;
  shl.b64 %index, %index, 5;
  add.u64 %step, %step, %index;
  @%beyond bra signalled;
  ld.param.u64 %to, [%step];
  ld.param.u64 %raised, [%step+8];
  setp.eq.u64 %none, %to, 0;
  @%none bra signalled;
  st.release.sys.global.u64 [%to], %raised;
signalled:
  bar.sync 0;
  @%beyond bra done;
  ld.param.u64 %at, [%step+16];
  ld.param.u64 %least, [%step+24];
  setp.eq.u64 %none, %at, 0;
  @%none bra done;
again:
  ld.acquire.sys.global.u64 %now, [%at];
  sub.s64 %now, %now, %least;
  setp.lt.s64 %less, %now, 0;
  @%less bra again;
done:
  ret;
}
)";

struct Steps {
  Step steps[kMostSteps];
};
static_assert(sizeof(Steps) == 4064);

}  // namespace

absl::StatusOr<std::unique_ptr<FenceKernels>> FenceKernels::Load(
    const Device& device) {
  ASSIGN_OR_RETURN(KernelLibrary library, KernelLibrary::Of(device, kText));
  ASSIGN_OR_RETURN(const CUfunction one, library.Find("vmmshare_fence_meet"));
  ASSIGN_OR_RETURN(const CUfunction many, library.Find("vmmshare_fences_meet"));
  ASSIGN_OR_RETURN(const CUfunction add, library.Find("vmmshare_fence_add"));
  return std::unique_ptr<FenceKernels>(
      new FenceKernels(std::move(library), one, many, add));
}

absl::Status FenceKernels::Run(CUstream stream,
                               absl::Span<const Step> steps) const {
  if (steps.size() != 1) return RunMany(stream, steps);
  Step step = steps.front();
  void* arguments[] = {&step.signal_at, &step.signal_value, &step.wait_at,
                       &step.wait_value};
  return library_.Launch(one_, 1, 1, stream, arguments);
}

absl::Status FenceKernels::RunMany(CUstream stream,
                                   absl::Span<const Step> steps) const {
  Steps all;
  std::copy(steps.begin(), steps.end(), all.steps);
  auto count = static_cast<std::uint32_t>(steps.size());
  void* arguments[] = {&all, &count};
  return library_.Launch(many_, 1, kMostSteps + 1, stream, arguments);
}

absl::Status FenceKernels::Add(CUstream stream, CUdeviceptr at,
                               std::uint64_t value) const {
  void* arguments[] = {&at, &value};
  return library_.Launch(add_, 1, 1, stream, arguments);
}

absl::Status FenceKernels::Warm(CUstream stream) const {
  RETURN_IF_ERROR(Run(stream, {Step{}}));
  RETURN_IF_ERROR(RunMany(stream, {}));
  return Add(stream, 0, 0);
}

}  // namespace vmm::fence
