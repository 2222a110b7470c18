#include "vmm/memory/driver_block.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "vmm/memory/internal/pointer.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

// Documented for cudaMalloc(): what an address is a multiple of.
constexpr std::uint64_t kAlignment = 256;

std::string Words(AddressSpan span) {
  return absl::StrCat(span.size, " bytes at 0x", absl::Hex(span.base));
}

std::string Words(absl::Span<const AddressSpan> spans) {
  if (spans.size() == 1) return Words(spans.front());
  std::uint64_t bytes = 0;
  for (const AddressSpan& span : spans) bytes += span.size;
  return absl::StrCat(bytes, " bytes in ", spans.size(),
                      " pieces, the first at 0x",
                      absl::Hex(spans.front().base));
}

absl::StatusOr<ExportedHandle> ExportLegacy(const Driver& driver,
                                            const DriverBlock& block) {
  RETURN_IF_ERROR(driver.Need<&platform::DriverTable::cuIpcGetMemHandle>());
  ASSIGN_OR_RETURN(const CurrentContext current,
                   MakeCurrent(driver, block.context));
  CUipcMemHandle raw{};
  if (CUresult r = driver->cuIpcGetMemHandle(&raw, block.span.base);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuIpcGetMemHandle(", Words(block.span), ")"),
        "Jetson has no legacy IPC of memory.");
  }
  LegacyHandle handle;
  static_assert(sizeof(raw) == sizeof(handle.bytes));
  std::memcpy(handle.bytes.data(), &raw, sizeof(raw));
  return handle;
}

absl::StatusOr<ExportedHandle> ExportPooled(const Driver& driver,
                                            const DriverBlock& block) {
  RETURN_IF_ERROR(
      driver.Need<&platform::DriverTable::cuMemPoolExportPointer>());
  StreamPoolHandle handle;
  if (CUresult r = platform::kMemoryHandleKind.make_pool(driver, block.pool,
                                                         &handle.pool);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemPoolExportToShareableHandle()");
  }
  CUmemPoolPtrExportData raw{};
  if (CUresult r = driver->cuMemPoolExportPointer(&raw, block.span.base);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuMemPoolExportPointer(", Words(block.span), ")"));
  }
  static_assert(sizeof(raw) == sizeof(handle.pointer));
  std::memcpy(handle.pointer.data(), &raw, sizeof(raw));
  return handle;
}

}  // namespace

absl::StatusOr<DriverBlock> BlockAt(const Driver& driver, CUdeviceptr pointer,
                                    HandleKind kind) {
  DriverBlock block;
  block.kind = kind;
  unsigned long long number = 0;
  std::size_t size = 0;
  std::array<CUpointer_attribute, 5> names = {
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_CONTEXT,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  std::array<void*, 5> values = {&block.span.base, &size, &number,
                                 &block.context, &block.pool};
  if (CUresult r = driver->cuPointerGetAttributes(names.size(), names.data(),
                                                  values.data(), pointer);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuPointerGetAttributes(",
                                        DescribePointer(pointer), ")"));
  }
  block.span.size = size;
  block.number = number;
  return block;
}

AddressSpan DriverBlock::Disclosed() const {
  if (kind != HandleKind::kLegacyIpc) return span;
  const CUdeviceptr base = span.base / kBlockBytes * kBlockBytes;
  const CUdeviceptr end =
      (span.base + span.size + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  return {base, end - base};
}

std::string DescribeWeakness(HandleKind kind, AddressSpan disclosed) {
  return DescribeWeakness(kind, absl::MakeConstSpan(&disclosed, 1));
}

std::string DescribeWeakness(HandleKind kind,
                             absl::Span<const AddressSpan> disclosed) {
  if (IsVmm(kind) || disclosed.empty()) return "";
  return absl::StrCat(
      "shared by ",
      kind == HandleKind::kLegacyIpc
          ? absl::StrCat("legacy CUDA IPC, which discloses ", Words(disclosed),
                         " and all that is allocated there")
          : absl::StrCat("its stream-ordered pool, which discloses ",
                         Words(disclosed),
                         " and what the driver has put beside them"),
      ", for reading and writing. Its owner must keep it until all have closed "
      "it: nothing else does. A process has it once on a device, and only "
      "where it sees the device it lives on");
}

absl::StatusOr<std::vector<AddressSpan>> Neighbours(const Driver& driver,
                                                    const DriverBlock& block) {
  const AddressSpan within = block.Disclosed();
  std::vector<AddressSpan> found;
  std::optional<CurrentContext> current;
  if (block.context != nullptr) {
    ASSIGN_OR_RETURN(current, MakeCurrent(driver, block.context));
  }
  for (CUdeviceptr at = within.base; at < within.base + within.size;) {
    CUdeviceptr base = 0;
    std::size_t size = 0;
    if (driver->cuMemGetAddressRange(&base, &size, at) != CUDA_SUCCESS ||
        size == 0) {
      at += kAlignment;
      continue;
    }
    if (base != block.span.base) found.push_back({base, size});
    at = std::max(at + kAlignment,
                  (base + size + kAlignment - 1) / kAlignment * kAlignment);
  }
  return found;
}

// An address may be another allocation's by now, and has the same handle as the
// old one (measured, of allocations under 2 MiB).
absl::Status CheckIsStillThere(const Driver& driver, const DriverBlock& block) {
  unsigned long long number = 0;
  const CUresult r = driver->cuPointerGetAttribute(
      &number, CU_POINTER_ATTRIBUTE_BUFFER_ID, block.span.base);
  if (r == CUDA_SUCCESS && number == block.number) return absl::OkStatus();
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_VALUE) {
    return driver.Error(r, absl::StrCat("cuPointerGetAttribute(BUFFER_ID, ",
                                        Words(block.span), ")"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(Words(block.span),
                   " were freed after they were adopted, and cannot be shared "
                   "any more. Keep them until nobody has them open"));
}

absl::StatusOr<ExportedHandle> ExportBlock(const Driver& driver,
                                           const DriverBlock& block) {
  const RelaxedCapture relaxed(driver);
  RETURN_IF_ERROR(CheckIsStillThere(driver, block));
  return block.kind == HandleKind::kLegacyIpc ? ExportLegacy(driver, block)
                                              : ExportPooled(driver, block);
}

}  // namespace vmm
