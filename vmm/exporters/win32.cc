// Memory as an NT handle (CU_MEM_HANDLE_TYPE_WIN32).
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/memory_handle.h"
#include "vmm/exporter.h"

namespace vmm::exporters {
namespace {

using platform::Driver;
using platform::OsHandle;

constexpr CUmemAllocationHandleType kType = CU_MEM_HANDLE_TYPE_WIN32;

absl::StatusOr<ExportedHandle> Make(const Driver& driver,
                                    CUmemGenericAllocationHandle chunk) {
  // As wide as a HANDLE, which is what the driver writes.
  OsHandle::Value handle = 0;
  if (CUresult r =
          driver->cuMemExportToShareableHandle(&handle, chunk, kType, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, "cuMemExportToShareableHandle(NT handle)",
        "Only memory created with this handle kind can be exported, and "
        "imported memory never.");
  }
  return OsHandle::Adopt(handle);
}

absl::StatusOr<OwnedMemoryHandle> Open(const Driver& driver,
                                       const ExportedHandle& handle,
                                       std::uint64_t size) {
  const OsHandle* nt_handle = std::get_if<OsHandle>(&handle);
  if (nt_handle == nullptr) {
    return absl::InvalidArgumentError(
        "a fabric handle came where an NT handle was expected");
  }
  absl::Status usable = platform::CheckMemoryHandle(
      *nt_handle,
      driver.is_host_memory() ? platform::MemoryBacking::kHostMemory
                              : platform::MemoryBacking::kNvidiaDriver,
      size);
  if (!usable.ok()) return usable;
  CUmemGenericAllocationHandle imported = 0;
  if (CUresult r = driver->cuMemImportFromShareableHandle(
          &imported, reinterpret_cast<void*>(nt_handle->get()), kType);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r,
        absl::StrCat("cuMemImportFromShareableHandle(NT handle ",
                     nt_handle->get(), ")"),
        "The handle must come from cuMemExportToShareableHandle of a driver "
        "of this machine.");
  }
  return OwnedMemoryHandle::Adopt({driver, imported});
}

std::string Advice(CUresult result) {
  if (result == CUDA_ERROR_NOT_SUPPORTED ||
      result == CUDA_ERROR_INVALID_VALUE) {
    return "Virtual GPUs have no virtual memory management.";
  }
  return "";
}

}  // namespace

const Exporter kWin32 = {HandleKind::kWin32, &Make, &Open, &Advice};

}  // namespace vmm::exporters
