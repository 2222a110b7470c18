// Memory as this operating system's handle: a POSIX file descriptor
// (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) or an NT handle
// (CU_MEM_HANDLE_TYPE_WIN32).
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/stream_capture.h"

namespace vmm::exporters {
namespace {

using platform::Driver;
using platform::kMemoryHandleKind;
using platform::OsHandle;

absl::StatusOr<ExportedHandle> Make(const Driver& driver,
                                    CUmemGenericAllocationHandle chunk) {
  const RelaxedCapture relaxed(driver);
  OsHandle handle;
  if (CUresult r = kMemoryHandleKind.make(driver, chunk, &handle);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuMemExportToShareableHandle(",
                                     kMemoryHandleKind.name, ")"),
                        kMemoryHandleKind.export_advice);
  }
  return handle;
}

absl::StatusOr<OwnedMemoryHandle> Open(const Driver& driver,
                                       const ExportedHandle& exported,
                                       std::uint64_t size) {
  const OsHandle* handle = std::get_if<OsHandle>(&exported);
  if (handle == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fabric handle came where a ", kMemoryHandleKind.name,
                     " was expected"));
  }
  RETURN_IF_ERROR(platform::CheckMemoryHandle(
      *handle,
      driver.is_host_memory() ? platform::MemoryBacking::kHostMemory
                              : platform::MemoryBacking::kNvidiaDriver,
      size));
  const RelaxedCapture relaxed(driver);
  CUmemGenericAllocationHandle imported = 0;
  if (CUresult r = driver->cuMemImportFromShareableHandle(
          &imported, reinterpret_cast<void*>(handle->get()),
          kMemoryHandleKind.type);
      r != CUDA_SUCCESS) {
    absl::Status refused = driver.Error(
        r,
        absl::StrCat("cuMemImportFromShareableHandle(", kMemoryHandleKind.name,
                     " ", handle->get(), ")"),
        "It must come from cuMemExportToShareableHandle of a driver of this "
        "machine.");
    // So it answers to what is no memory of its own (measured). Where the process
    // is short of something, that may be why.
    return r == CUDA_ERROR_UNKNOWN && !absl::IsResourceExhausted(refused)
               ? platform::WithCode(refused, absl::StatusCode::kInvalidArgument)
               : refused;
  }
  return OwnedMemoryHandle::Adopt({driver, imported});
}

std::string Advice(CUresult result) {
  return result == CUDA_ERROR_NOT_SUPPORTED ||
                 result == CUDA_ERROR_INVALID_VALUE
             ? kMemoryHandleKind.support_advice
             : "";
}

}  // namespace

Exporter OsHandleExporter() {
  return {platform::kNativeHandleIsPosixFd ? HandleKind::kPosixFd
                                           : HandleKind::kWin32,
          &Make, &Open, &Advice};
}

}  // namespace vmm::exporters
