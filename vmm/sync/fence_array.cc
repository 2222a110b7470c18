#include "vmm/sync/fence_array.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/device.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/sync/internal/fence_device_memory.h"
#include "vmm/sync/internal/fence_kernels.h"
#include "vmm/sync/internal/fence_source.h"

namespace vmm {
namespace {

// For a GPU to run its first kernel.
constexpr absl::Duration kPatience = absl::Seconds(10);

absl::Status CheckWritable(const Device& device, CUdeviceptr at) {
  const CUmemLocation location = Location::On(device).ToCuda();
  unsigned long long flags = 0;
  const CUresult result =
      device.driver()->cuMemGetAccess(&flags, &location, at);
  // Where nothing is mapped, or no memory of cuMemCreate, the driver answers
  // one or the other (measured).
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) {
    return device.driver().Error(
        result, absl::StrCat("cuMemGetAccess(address=0x", absl::Hex(at), ")"));
  }
  if (result == CUDA_SUCCESS && flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(device.Describe(), " may not write at 0x", absl::Hex(at),
                   " by cuMemGetAccess(), where a fence is to be; expected "
                   "memory of cuMemCreate that is mapped for it with "
                   "Access::kReadWrite"));
}

}  // namespace

class FenceArray::Core : public fence::Source {
 public:
  Core(const platform::Driver& driver,
       std::unique_ptr<fence::DeviceMemory> memory, CUdeviceptr first,
       std::uint64_t count)
      : Source(driver, *memory, std::nullopt),
        first_(first),
        count_(count),
        device_memory_(std::move(memory)) {}

  const fence::FenceKernels* kernels() const override { return kernels_.get(); }
  // Before there is a fence.
  absl::Status UseKernels(const Device& device) {
    {
      // No document says that loading code leaves captures whole.
      const RelaxedCapture relaxed(device.driver());
      ASSIGN_OR_RETURN(kernels_, fence::FenceKernels::Load(device));
    }
    return device_memory_->Warm(*kernels_, Deadline::In(kPatience));
  }

  CUdeviceptr first() const { return first_; }
  std::uint64_t count() const { return count_; }
  fence::DeviceMemory& device_memory() { return *device_memory_; }

 private:
  // It is there as long as the memory.
  void GiveBack(fence::Leaving) override {}

  const CUdeviceptr first_;
  const std::uint64_t count_;
  const std::unique_ptr<fence::DeviceMemory> device_memory_;
  std::unique_ptr<fence::FenceKernels> kernels_;
};

absl::StatusOr<std::unique_ptr<FenceArray>> FenceArray::Over(
    const Device& device, CUdeviceptr memory, std::uint64_t bytes,
    FenceMechanism mechanism) {
  if (bytes == 0 || bytes % kFenceBytes != 0 || memory % kFenceBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fences were asked for in ", bytes, " bytes at 0x", absl::Hex(memory),
        "; expected multiples of ", kFenceBytes, ", and at least one"));
  }
  if (bytes - 1 > std::numeric_limits<CUdeviceptr>::max() - memory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fences were asked for in ", bytes, " bytes at 0x", absl::Hex(memory),
        ", which is more than there are addresses behind it"));
  }
  RETURN_IF_ERROR(fence::CheckStreamOperations(device));
  RETURN_IF_ERROR(CheckWritable(device, memory));
  RETURN_IF_ERROR(CheckWritable(device, memory + bytes - 1));
  const std::uint64_t count = bytes / kFenceBytes;
  ASSIGN_OR_RETURN(std::unique_ptr<fence::DeviceMemory> device_memory,
                   fence::DeviceMemory::Make(device, memory, count));
  auto core = std::make_shared<Core>(device.driver(), std::move(device_memory),
                                     memory, count);
  if (mechanism == FenceMechanism::kKernels) {
    RETURN_IF_ERROR(core->UseKernels(device));
  }
  return std::unique_ptr<FenceArray>(new FenceArray(std::move(core)));
}

FenceArray::FenceArray(std::shared_ptr<Core> core) : core_(std::move(core)) {}

FenceArray::~FenceArray() {
  if (core_->IsOfAnotherProcess()) platform::Abandon(std::move(core_));
}

std::uint64_t FenceArray::size() const { return core_->count(); }

absl::StatusOr<Fence> FenceArray::At(std::uint64_t index) {
  if (index >= core_->count()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fence ", index, " of ", core_->count(), " was asked for"));
  }
  core_->CountNew();
  return Fence(core_, core_->first() + index * kFenceBytes, 0, std::nullopt);
}

absl::Status FenceArray::Clear(Deadline deadline) {
  return core_->device_memory().Clear(deadline);
}

}  // namespace vmm
