#include "platform/cuda/dma_buf.h"

namespace vmm::platform {
namespace {

absl::Status NoDmaBuf() {
  return absl::UnimplementedError(
      "Windows has no dma-buf, which is how Linux drivers share buffers. "
      "Export the memory as an NT handle instead");
}

}  // namespace

absl::StatusOr<std::uint64_t> DmaBufGranularity() { return NoDmaBuf(); }

absl::StatusOr<OsHandle> ExportDmaBuf(const Driver&, CUdeviceptr, std::uint64_t,
                                      unsigned long long) {
  return NoDmaBuf();
}

}  // namespace vmm::platform
