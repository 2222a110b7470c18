#include "vmm/memory/dma_buf.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/dma_buf.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/device_attribute.h"
#include "vmm/memory/internal/dma_buf_parts.h"
#include "vmm/memory/internal/held_context.h"
#include "vmm/memory/stream_capture.h"

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
    return absl::UnimplementedError(absl::StrCat(
        "the driver is of CUDA version ", driver.version(),
        "; the PCIe mapping of a dma-buf came with 12080. Use "
        "DmaBufMapping::kDefault (in Python pcie=False), or install a "
        "newer driver"));
  }
  ASSIGN_OR_RETURN(
      const int supported,
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
                      "DMA_BUF_SUPPORTED"));
  if (supported != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("memory of ", device.Describe(),
                   " cannot be exported as dma-buf: "
                   "cuDeviceGetAttribute(DMA_BUF_SUPPORTED) says 0. ",
                   kRemedy));
}

absl::Status CheckKind(const PointerInfo& info, CUdeviceptr address) {
  const std::string what = absl::StrCat("the memory at 0x", absl::Hex(address));
  switch (info.kind) {
    case PointerKind::kNotCuda:
      return absl::InvalidArgumentError(
          absl::StrCat(what,
                       ", where the range for a dma-buf begins, is not "
                       "CUDA's"));
    case PointerKind::kManaged:
    case PointerKind::kPinnedHost:
      return absl::FailedPreconditionError(absl::StrCat(
          what, " is ", NameOf(info.kind), "; expected memory of a device"));
    case PointerKind::kVmm:
    case PointerKind::kPool:
    case PointerKind::kDeviceAlloc:
      break;
  }
  return info.host_numa_node.has_value()
             ? absl::FailedPreconditionError(absl::StrCat(
                   what, " is of the host; expected memory of a device"))
             : absl::OkStatus();
}

// The driver makes a dma-buf of memory that is mapped for reading alone, too
// (measured): whoever gets that could write. REQUIRES: all parts are mapped.
absl::Status CheckMayWrite(const Device& device, CUdeviceptr address,
                           absl::Span<const DmaBufPart> parts) {
  const CUmemLocation where = Location::On(device).ToCuda();
  for (const DmaBufPart& part : parts) {
    unsigned long long access = 0;
    const CUdeviceptr at = address + part.offset;
    if (CUresult r = device.driver()->cuMemGetAccess(&access, &where, at);
        r != CUDA_SUCCESS) {
      return device.driver().Error(
          r, absl::StrCat("cuMemGetAccess(0x", absl::Hex(at), ")"));
    }
    if (access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the memory at 0x", absl::Hex(at),
          access == CU_MEM_ACCESS_FLAGS_PROT_NONE
              ? " is mapped without access for "
              : " is mapped for reading alone on ",
          device.Describe(),
          ", and a dma-buf would give whole access: open it for writing (in "
          "Python writable=True), give it Access::kReadWrite by SetAccess() "
          "where it is this process's own, or let its owner export it"));
    }
  }
  return absl::OkStatus();
}

// What else is to be done for memory of a stream-ordered pool at `address`. Measured
// (H200, driver 580): the driver makes a dma-buf of what begins where a pool of this
// process got memory from it, and of what is larger than one such piece; of nothing
// else.
std::string PoolRemedy(const platform::Driver& driver, CUdeviceptr address) {
  CUdeviceptr begin = 0;
  std::size_t size = 0;
  if (driver->cuPointerGetAttribute(&begin,
                                    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                    address) != CUDA_SUCCESS ||
      driver->cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                    address) != CUDA_SUCCESS ||
      begin == address) {
    return "";
  }
  return absl::StrCat(
      ". Of a stream-ordered pool of this process a dma-buf has to begin where "
      "the pool got its memory: export the ",
      size, " bytes at 0x", absl::Hex(begin),
      ", all of which whoever gets that reaches; or use memory of cudaMalloc() "
      "or of a Pool of vmmshare's");
}

// What to do about `refused`, of memory of `kind` at `address`.
std::string RemedyFor(const platform::Driver& driver,
                      const absl::Status& refused, DmaBufMapping mapping,
                      PointerKind kind, CUdeviceptr address) {
  if (absl::IsResourceExhausted(refused)) return "";
  if (platform::ResultOf(refused) == CUDA_ERROR_INVALID_VALUE) {
    return absl::StrCat(
        "all of the range must be in memory that one call of this process "
        "made; what came by legacy IPC or a stream-ordered pool of another "
        "process, that one exports (measured)",
        kind == PointerKind::kPool ? PoolRemedy(driver, address) : "");
  }
  return mapping == DmaBufMapping::kPcie ? kPcieRemedy : kRemedy;
}

// Of `kind`: what cuMemCreate() made may be mapped for less than all.
absl::StatusOr<std::vector<DmaBuf>> ExportParts(
    const Device& device, CUdeviceptr address,
    absl::Span<const DmaBufPart> parts, DmaBufMapping mapping,
    PointerKind kind) {
  const RelaxedCapture relaxed(device.driver());
  RETURN_IF_ERROR(CheckSupported(device, mapping));
  // Measured on a H100 (580): INVALID_CONTEXT without one.
  ASSIGN_OR_RETURN(const ContextHeld context, HoldContextOf(device));
  if (kind == PointerKind::kVmm) {
    RETURN_IF_ERROR(CheckMayWrite(device, address, parts));
  }
  std::vector<DmaBuf> made;
  for (const DmaBufPart& part : parts) {
    absl::StatusOr<platform::OsHandle> descriptor = platform::ExportDmaBuf(
        device.driver(), address + part.offset, part.size,
        mapping == DmaBufMapping::kPcie ? kPcieFlag : 0);
    if (!descriptor.ok()) {
      return platform::Annotate(
          descriptor.status(),
          absl::StrCat("memory of ", device.Describe(),
                       " cannot be exported as dma-buf"),
          RemedyFor(device.driver(), descriptor.status(), mapping, kind,
                    address + part.offset));
    }
    made.push_back({*std::move(descriptor), part.offset, part.size});
  }
  return made;
}

}  // namespace

absl::StatusOr<std::vector<DmaBuf>> ExportDmaBufs(
    const Allocation& memory, const DmaBufOptions& options) {
  ASSIGN_OR_RETURN(const std::uint64_t page, platform::DmaBufGranularity());
  const std::uint64_t whole = memory.size();
  const std::uint64_t size = options.size != 0 || options.offset >= whole
                                 ? options.size
                                 : whole - options.offset;
  RETURN_IF_ERROR(CheckDmaBufRange(options.offset, size, whole, page));
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
  return ExportParts(memory.device(), memory.address(),
                     PartsOf(options.offset, options.offset + size,
                             shareable.layout().chunk_size),
                     options.mapping,
                     shareable.block() == nullptr ? PointerKind::kVmm
                                                  : PointerKind::kDeviceAlloc);
}

absl::StatusOr<std::vector<DmaBuf>> ExportDmaBufs(
    const platform::Driver& driver, CUdeviceptr address, std::uint64_t size,
    DmaBufMapping mapping) {
  ASSIGN_OR_RETURN(const std::uint64_t page, platform::DmaBufGranularity());
  const CUdeviceptr begin = address / page * page;
  if (size == 0 ||
      size > std::numeric_limits<CUdeviceptr>::max() - page - address) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, " bytes at 0x", absl::Hex(address),
        " for a dma-buf; expected at least 1, and no more than the address "
        "space"));
  }
  const std::uint64_t whole = (address + size - begin + page - 1) / page * page;
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(const PointerInfo info, Classify(driver, address));
  RETURN_IF_ERROR(CheckKind(info, address));
  ASSIGN_OR_RETURN(const std::optional<int> ordinal,
                   ReachedFrom(driver, address, info));
  if (!ordinal.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no device that this process sees reaches the memory at "
                     "0x",
                     absl::Hex(address), ", so none makes its dma-buf"));
  }
  ASSIGN_OR_RETURN(const Device device, Device::ByOrdinal(driver, *ordinal));
  ASSIGN_OR_RETURN(const ContextHeld context, HoldContextOf(device));
  // cudaMalloc()'s blocks share pages, which the driver exports whole, also where
  // the block that a page begins with was freed (measured).
  std::vector<DmaBufPart> parts = {{0, whole}};
  if (info.kind == PointerKind::kVmm) {
    ASSIGN_OR_RETURN(parts, MappedParts(driver, begin, whole));
  }
  return ExportParts(device, begin, parts, mapping, info.kind);
}

}  // namespace vmm
