#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/dma_buf.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {

absl::StatusOr<std::uint64_t> DmaBufGranularity() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

absl::StatusOr<OsHandle> ExportDmaBuf(const Driver& driver, CUdeviceptr address,
                                      std::uint64_t size,
                                      unsigned long long flags) {
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuMemGetHandleForAddressRange>());
  int descriptor = -1;
  if (CUresult r = driver->cuMemGetHandleForAddressRange(
          &descriptor, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
          flags);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuMemGetHandleForAddressRange(0x", absl::Hex(address),
                        ", size=", size, ", dma-buf, flags=", flags, ")"));
  }
  OsHandle owned = AdoptDescriptor(descriptor);
  if (!owned.has_value()) {
    return LastError().Of("cuMemGetHandleForAddressRange() gave no descriptor");
  }
  // CUDA does not say whether it sets this.
  if (::fcntl(Fd(owned), F_SETFD, FD_CLOEXEC) != 0) {
    return LastError().Of("fcntl(dma-buf, F_SETFD, FD_CLOEXEC)");
  }
  return owned;
}

}  // namespace vmm::platform
