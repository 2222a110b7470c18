// Copies of much within a device: see memory_copy.h.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/host_copy.h"
#include "vmm/weights/internal/copy_kernel.h"
#include "vmm/weights/internal/memory_copy.h"

namespace vmm::weights {
namespace {

// Says of memory whether it is a device's own, so that a kernel there may read it:
// what is not would end the context. Asks the driver once for a mapping.
class OwnMemory {
 public:
  OwnMemory(const platform::Driver& driver, const Device& device)
      : driver_(driver), ordinal_(device.ordinal()) {}

  // REQUIRES: the device's context is current.
  absl::StatusOr<bool> Has(CUdeviceptr from, std::uint64_t bytes) {
    // The chunks of one memory lie side by side.
    while (bytes > 0) {
      if (!Knows(from)) RETURN_IF_ERROR(Ask(from));
      if (!is_own_ || !Knows(from)) return false;
      const auto here = std::min<std::uint64_t>(bytes, size_ - (from - begin_));
      from += here;
      bytes -= here;
    }
    return true;
  }

 private:
  bool Knows(CUdeviceptr at) const {
    return at >= begin_ && at - begin_ < size_;
  }

  absl::Status Ask(CUdeviceptr at) {
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    int ordinal = -1;
    std::size_t size = 0;
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void* answers[] = {&type, &ordinal, &begin_, &size};
    if (CUresult r = driver_->cuPointerGetAttributes(4, which, answers, at);
        r != CUDA_SUCCESS) {
      return driver_.Error(
          r, absl::StrCat("cuPointerGetAttributes(0x", absl::Hex(at), ")"));
    }
    is_own_ = type == CU_MEMORYTYPE_DEVICE && ordinal == ordinal_;
    // That range is all that was reserved: memory of several devices may lie there.
    if (driver_->cuMemGetAddressRange(&begin_, &size, at) != CUDA_SUCCESS) {
      is_own_ = false;
      size = 0;
    }
    size_ = size;
    return absl::OkStatus();
  }

  const platform::Driver& driver_;
  const int ordinal_;
  CUdeviceptr begin_ = 0;
  std::uint64_t size_ = 0;
  bool is_own_ = false;
};

}  // namespace

absl::Status MemoryCopy::WriteAllFrom(absl::Span<const DevicePiece> copies,
                                      CUstream stream, bool are_own) const {
  if (primary_ != nullptr) {
    if (stream == nullptr) RETURN_IF_ERROR(ComeAfterCurrentContext());
    ASSIGN_OR_RETURN(const CurrentContext current, Enter());
    return CopyOnDevice(copies, stream, are_own);
  }
  if (stream != nullptr) {
    if (CUresult r = driver_->cuStreamSynchronize(stream); r != CUDA_SUCCESS) {
      return driver_.Error(r, "cuStreamSynchronize()");
    }
  }
  for (const DevicePiece& copy : copies) {
    RETURN_IF_ERROR(WriteFrom(copy.to - address_, copy.from, copy.bytes));
  }
  return absl::OkStatus();
}

absl::Status MemoryCopy::CopyOnDevice(absl::Span<const DevicePiece> copies,
                                      CUstream stream, bool are_own) const {
  const absl::StatusOr<PieceKernel> kernel = LoadCopyKernel(*device_);
  if (!kernel.ok() && !absl::IsUnimplemented(kernel.status())) {
    return kernel.status();
  }
  if (kernel.ok() && are_own) return kernel->Run(stream, copies);
  // The device copies some while the next are looked at.
  OwnMemory own(driver_, *device_);
  std::vector<DevicePiece> by_kernel;
  for (const DevicePiece& copy : copies) {
    bool is_own = false;
    if (kernel.ok()) {
      ASSIGN_OR_RETURN(is_own, own.Has(copy.from, copy.bytes));
    }
    if (is_own) {
      by_kernel.push_back(copy);
      if (by_kernel.size() < PieceKernel::kMost) continue;
      RETURN_IF_ERROR(kernel->Run(stream, by_kernel));
      by_kernel.clear();
    } else {
      RETURN_IF_ERROR(Copied(
          driver_,
          driver_->cuMemcpyDtoDAsync(copy.to, copy.from, copy.bytes, stream),
          "cuMemcpyDtoDAsync", copy.from, copy.bytes));
    }
  }
  if (!kernel.ok() || (by_kernel.empty() && !copies.empty())) {
    return absl::OkStatus();
  }
  return kernel->Run(stream, by_kernel);
}

}  // namespace vmm::weights
