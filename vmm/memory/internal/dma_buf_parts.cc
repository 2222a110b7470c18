#include "vmm/memory/internal/dma_buf_parts.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace vmm {

absl::Status CheckDmaBufRange(std::uint64_t offset, std::uint64_t size,
                              std::uint64_t whole, std::uint64_t page) {
  if (offset % page != 0 || size % page != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", offset, " and size ", size,
                     " bytes; expected multiples of the host's page size of ",
                     page, " bytes. Export the pages around the range"));
  }
  if (offset >= whole || size > whole - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(size, " bytes at offset ", offset,
                     " leave the allocation of ", whole, " bytes"));
  }
  return absl::OkStatus();
}

std::vector<DmaBufPart> PartsOf(std::uint64_t begin, std::uint64_t end,
                                std::uint64_t chunk) {
  std::vector<DmaBufPart> parts;
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t next = std::min(end, (at / chunk + 1) * chunk);
    parts.push_back({at, next - at});
    at = next;
  }
  return parts;
}

absl::StatusOr<std::vector<DmaBufPart>> MappedParts(
    const platform::Driver& driver, CUdeviceptr address, std::uint64_t size) {
  std::vector<DmaBufPart> parts;
  for (std::uint64_t done = 0; done < size;) {
    CUdeviceptr base = 0;
    std::size_t chunk = 0;
    const CUdeviceptr at = address + done;
    const CUresult r = driver->cuMemGetAddressRange(&base, &chunk, at);
    if (r == CUDA_ERROR_NOT_FOUND || r == CUDA_ERROR_INVALID_VALUE ||
        (r == CUDA_SUCCESS && at - base >= chunk)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "nothing of the driver's is mapped at 0x", absl::Hex(at), ", ", done,
          " bytes into the ", size, " bytes for a dma-buf"));
    }
    if (r != CUDA_SUCCESS) {
      return driver.Error(
          r, absl::StrCat("cuMemGetAddressRange(0x", absl::Hex(at), ")"));
    }
    const std::uint64_t part =
        std::min<std::uint64_t>(size - done, chunk - (at - base));
    parts.push_back({done, part});
    done += part;
  }
  return parts;
}

}  // namespace vmm
