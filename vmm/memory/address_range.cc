#include "absl/strings/str_cat.h"
#include "vmm/memory/mapping.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {

void ReservedRangeTraits::Close(const Value& value) {
  const platform::Driver& driver = *value.driver;
  const RelaxedCapture relaxed(driver);
  const CUresult result = driver->cuMemAddressFree(value.base, value.size);
  if (result == CUDA_SUCCESS) return;
  platform::ReportReleaseFailure(driver.Error(
      result, absl::StrCat("cuMemAddressFree(address=0x", absl::Hex(value.base),
                           ", size=", value.size, ")")));
}

absl::StatusOr<AddressRange> AddressRange::Reserve(
    const platform::Driver& driver, std::uint64_t size, std::uint64_t alignment,
    CUdeviceptr hint) {
  if ((alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "alignment=", alignment, "; expected 0 or a power of two"));
  }
  const RelaxedCapture relaxed(driver);
  CUdeviceptr base = 0;
  if (CUresult r = driver->cuMemAddressReserve(&base, size, alignment, hint, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r,
        absl::StrCat("cuMemAddressReserve(size=", size, ", alignment=",
                     alignment, ", hint=0x", absl::Hex(hint), ")"),
        r == CUDA_ERROR_INVALID_VALUE
            ? "size must be a multiple of the granularity (2 MiB on current "
              "devices), alignment 0 or a power of two."
            : "");
  }
  return AddressRange(ReservedRange{driver, base, size});
}

}  // namespace vmm
