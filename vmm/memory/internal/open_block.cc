// Opening what another process shares as a DriverBlock.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/internal/imported_pools.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;
using platform::DriverTable;

absl::StatusOr<CUdeviceptr> OpenLegacy(const Driver& driver,
                                       const HandleBytes& bytes) {
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuIpcOpenMemHandle>());
  CUipcMemHandle raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  CUdeviceptr address = 0;
  const CUresult r = driver->cuIpcOpenMemHandle(
      &address, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (r == CUDA_SUCCESS) return address;
  // Measured: so it answers in the process that made the memory. A context of
  // the device is current, so nothing else can be meant.
  if (r == CUDA_ERROR_INVALID_CONTEXT) {
    return absl::FailedPreconditionError(
        "cuIpcOpenMemHandle() answered CUDA_ERROR_INVALID_CONTEXT (201): this "
        "process made the memory, and legacy CUDA IPC opens only that of "
        "another. Use the address at which it is mapped here");
  }
  return driver.Error(r, "cuIpcOpenMemHandle()", kOpenAdvice);
}

absl::StatusOr<CUdeviceptr> OpenPooled(const Device& device,
                                       const Device& owner,
                                       const StreamPoolHandle& handle) {
  const Driver& driver = device.driver();
  RETURN_IF_ERROR(driver.Need<&DriverTable::cuMemPoolImportPointer>());
  RETURN_IF_ERROR(platform::CheckMemoryHandle(
      handle.pool,
      driver.is_host_memory() ? platform::MemoryBacking::kHostMemory
                              : platform::MemoryBacking::kNvidiaDriver,
      platform::kHostMemoryPoolBytes));
  return ImportedPools::Get().Open(device, owner, handle);
}

absl::Status CloseBlock(const OpenBlock& block) {
  const Driver& driver = *block.driver;
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(const CurrentContext current, block.context->MakeCurrent());
  const CUdeviceptr at = block.span.base;
  if (block.kind != HandleKind::kLegacyIpc) {
    return ImportedPools::Get().Close(driver, at);
  }
  const CUresult r = driver->cuIpcCloseMemHandle(at);
  // Words take memory, in a destructor.
  if (r == CUDA_SUCCESS) return absl::OkStatus();
  return driver.Error(
      r, absl::StrCat("cuIpcCloseMemHandle(address=0x", absl::Hex(at), ")"));
}

}  // namespace

void OpenBlockTraits::Close(const Value& value) {
  platform::ReportReleaseFailure(CloseBlock(value));
}

absl::StatusOr<OwnedOpenBlock> OpenSharedBlock(const Device& device,
                                               const Device& owner,
                                               HandleKind kind,
                                               const ExportedHandle& handle,
                                               std::uint64_t size) {
  const auto* legacy = std::get_if<LegacyHandle>(&handle);
  const auto* pooled = std::get_if<StreamPoolHandle>(&handle);
  if (kind == HandleKind::kLegacyIpc ? legacy == nullptr : pooled == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "another handle came where a ", NameOf(kind), " was expected"));
  }
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  OpenBlock block{driver, nullptr, kind, {}};
  ASSIGN_OR_RETURN(PrimaryContext primary, PrimaryContext::Retain(device));
  block.context = std::make_shared<const PrimaryContext>(std::move(primary));
  ASSIGN_OR_RETURN(const CurrentContext current, block.context->MakeCurrent());
  ASSIGN_OR_RETURN(block.span.base, legacy != nullptr
                                        ? OpenLegacy(driver, legacy->bytes)
                                        : OpenPooled(device, owner, *pooled));
  block.span.size = size;
  OwnedOpenBlock opened = OwnedOpenBlock::Adopt(block);
  CUdeviceptr base = 0;
  std::size_t found = 0;
  if (CUresult r = driver->cuMemGetAddressRange(&base, &found, block.span.base);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuMemGetAddressRange(0x",
                                        absl::Hex(block.span.base), ")"));
  }
  if (base == block.span.base && found == size) return opened;
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", NameOf(kind), " is of ", found, " bytes and not of ", size,
      ": the owner has freed the memory, and something else is there now; or "
      "the size that was given with the handle is another's"));
}

}  // namespace vmm
