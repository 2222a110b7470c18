// Memory as a POSIX file descriptor (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR).
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/memory_handle.h"
#include "vmm/exporter.h"

namespace vmm::exporters {
namespace {

using platform::Driver;
using platform::OsHandle;

constexpr CUmemAllocationHandleType kType =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

absl::StatusOr<ExportedHandle> Make(const Driver& driver,
                                    CUmemGenericAllocationHandle chunk) {
  int descriptor = -1;
  if (CUresult r =
          driver->cuMemExportToShareableHandle(&descriptor, chunk, kType, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, "cuMemExportToShareableHandle(POSIX file descriptor)",
        "Only memory created with this handle kind can be exported, and "
        "imported memory never; check `ulimit -n` and /proc/self/fd as well.");
  }
  // The driver sets close-on-exec itself (measured), so no child inherits it.
  return OsHandle::Adopt(descriptor);
}

absl::StatusOr<OwnedMemoryHandle> Open(const Driver& driver,
                                       const ExportedHandle& handle,
                                       std::uint64_t size) {
  const OsHandle* descriptor = std::get_if<OsHandle>(&handle);
  if (descriptor == nullptr) {
    return absl::InvalidArgumentError(
        "a fabric handle came where a file descriptor was expected");
  }
  absl::Status usable = platform::CheckMemoryHandle(
      *descriptor,
      driver.is_host_memory() ? platform::MemoryBacking::kHostMemory
                              : platform::MemoryBacking::kNvidiaDriver,
      size);
  if (!usable.ok()) return usable;
  CUmemGenericAllocationHandle imported = 0;
  if (CUresult r = driver->cuMemImportFromShareableHandle(
          &imported, reinterpret_cast<void*>(descriptor->get()), kType);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r,
        absl::StrCat("cuMemImportFromShareableHandle(POSIX file descriptor ",
                     descriptor->get(), ")"),
        "The descriptor must come from cuMemExportToShareableHandle of a "
        "driver of this machine.");
  }
  return OwnedMemoryHandle::Adopt({driver, imported});
}

std::string Advice(CUresult result) {
  if (result == CUDA_ERROR_NOT_SUPPORTED ||
      result == CUDA_ERROR_INVALID_VALUE) {
    return "Virtual GPUs have no virtual memory management; WSL2 refuses "
           "chunks of 4 GiB and more (set max_chunk_size).";
  }
  return "";
}

}  // namespace

const Exporter kPosixFd = {HandleKind::kPosixFd, &Make, &Open, &Advice};

}  // namespace vmm::exporters
