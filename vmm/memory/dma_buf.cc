#include "vmm/memory/dma_buf.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/dma_buf.h"
#include "vmm/memory/primary_context.h"

namespace vmm {
namespace {

// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, which older headers lack.
constexpr unsigned long long kPcieFlag = 1;
constexpr int kFirstWithPcie = 12080;

constexpr char kRemedy[] =
    "dma-buf needs the open kernel modules of NVIDIA's driver (515 or newer) "
    "and Linux 5.12; with the others, network cards take the address itself "
    "once the module nvidia_peermem is loaded";

constexpr char kPcieRemedy[] =
    "not every platform has the mapping over PCIe: use DmaBufMapping::kDefault "
    "(in C no VMMSHARE_DMA_BUF_PCIE, in Python pcie=False)";

absl::Status CheckSupported(const Device& device, DmaBufMapping mapping) {
  const platform::Driver& driver = device.driver();
  if (mapping == DmaBufMapping::kPcie && driver.version() < kFirstWithPcie) {
    return absl::UnimplementedError(
        absl::StrCat("the driver is of CUDA version ", driver.version(),
                     "; the PCIe mapping of a dma-buf came with 12080. Use "
                     "DmaBufMapping::kDefault, or install a newer driver"));
  }
  int supported = 0;
  if (CUresult r = driver->cuDeviceGetAttribute(
          &supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
          device.cuda_device());
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuDeviceGetAttribute(DMA_BUF_SUPPORTED, device=",
                        device.ordinal(), ")"));
  }
  if (supported != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("memory of ", device.Describe(),
                   " cannot be exported as dma-buf: "
                   "cuDeviceGetAttribute(DMA_BUF_SUPPORTED) says 0. ",
                   kRemedy));
}

// The context in which the driver makes them: measured on a H100 (580),
// INVALID_CONTEXT without one. Nothing to keep if one of `device` is current.
struct ContextHeld {
  std::optional<PrimaryContext> primary;
  std::optional<CurrentContext> current;  // Ends first.
};
absl::StatusOr<ContextHeld> HoldContext(const Device& device) {
  ContextHeld held;
  CUdevice here = 0;
  if (device.driver()->cuCtxGetDevice(&here) == CUDA_SUCCESS &&
      here == device.cuda_device()) {
    return held;
  }
  ASSIGN_OR_RETURN(held.primary, PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(held.current, held.primary->MakeCurrent());
  return held;
}

absl::Status CheckRange(std::uint64_t offset, std::uint64_t size,
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

}  // namespace

absl::StatusOr<std::vector<DmaBuf>> ExportDmaBufs(
    const Allocation& memory, const DmaBufOptions& options) {
  ASSIGN_OR_RETURN(const std::uint64_t page, platform::DmaBufGranularity());
  const std::uint64_t whole = memory.size();
  const std::uint64_t size = options.size != 0 || options.offset >= whole
                                 ? options.size
                                 : whole - options.offset;
  RETURN_IF_ERROR(CheckRange(options.offset, size, whole, page));
  if (!memory.is_mapped()) {
    return absl::FailedPreconditionError(
        "ExportDmaBufs of memory that is not mapped; Remap() it first");
  }
  const Shareable shareable = memory.shareable();
  if (shareable.where().is_host()) {
    return absl::FailedPreconditionError(
        "ExportDmaBufs of memory of the host, which drivers reach by its "
        "address; expected memory of a device");
  }
  const Device& device = memory.device();
  RETURN_IF_ERROR(CheckSupported(device, options.mapping));
  ASSIGN_OR_RETURN(const ContextHeld context, HoldContext(device));

  const std::uint64_t chunk = shareable.layout().chunk_size;
  const std::uint64_t end = options.offset + size;
  std::vector<DmaBuf> parts;
  for (std::uint64_t at = options.offset; at < end;) {
    const std::uint64_t next = std::min(end, (at / chunk + 1) * chunk);
    absl::StatusOr<platform::OsHandle> descriptor = platform::ExportDmaBuf(
        device.driver(), memory.address() + at, next - at,
        options.mapping == DmaBufMapping::kPcie ? kPcieFlag : 0);
    if (!descriptor.ok()) {
      return platform::Annotate(
          descriptor.status(),
          absl::StrCat("memory of ", device.Describe(),
                       " cannot be exported as dma-buf"),
          absl::IsResourceExhausted(descriptor.status()) ? ""
          : options.mapping == DmaBufMapping::kPcie      ? kPcieRemedy
                                                         : kRemedy);
    }
    parts.push_back({*std::move(descriptor), at, next - at});
    at = next;
  }
  return parts;
}

}  // namespace vmm
