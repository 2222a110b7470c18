// Memory as a fabric handle (CU_MEM_HANDLE_TYPE_FABRIC): 64 bytes that name it
// on every node of an NVLink fabric domain.
#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fabric/access.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/stream_capture.h"

namespace vmm::exporters {
namespace {

using platform::Driver;

absl::StatusOr<ExportedHandle> Make(const Driver& driver,
                                    CUmemGenericAllocationHandle chunk) {
  const RelaxedCapture relaxed(driver);
  fabric::Handle handle;
  if (CUresult r = driver->cuMemExportToShareableHandle(
          handle.bytes.data(), chunk, CU_MEM_HANDLE_TYPE_FABRIC, 0);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemExportToShareableHandle(fabric handle)",
                        fabric::AdviceFor(r));
  }
  return handle;
}

absl::StatusOr<OwnedMemoryHandle> Open(const Driver& driver,
                                       const ExportedHandle& handle,
                                       std::uint64_t size) {
  const fabric::Handle* bytes = std::get_if<fabric::Handle>(&handle);
  if (bytes == nullptr) {
    return absl::InvalidArgumentError(
        "an operating-system handle came where a fabric handle was expected");
  }
  // The driver takes a pointer to mutable bytes and does not say that it only
  // reads them.
  fabric::Handle copy = *bytes;
  const RelaxedCapture relaxed(driver);
  CUmemGenericAllocationHandle imported = 0;
  if (CUresult r = driver->cuMemImportFromShareableHandle(
          &imported, copy.bytes.data(), CU_MEM_HANDLE_TYPE_FABRIC);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r,
        absl::StrCat(
            "cuMemImportFromShareableHandle(fabric handle, size=", size, ")"),
        fabric::ImportAdviceFor(r));
  }
  return OwnedMemoryHandle::Adopt({driver, imported});
}

}  // namespace

const Exporter kFabric = {HandleKind::kFabric, &Make, &Open,
                          &fabric::AdviceFor};

}  // namespace vmm::exporters
