// RawHandle: one chunk of memory as other software makes and wants it.
//
//   // For cuda.core, NCCL, NIXL, Vulkan, or a transport of the program's own:
//   absl::StatusOr<RawHandle> raw = ExportRaw(weights.shareable(), 0, kind);
//   // Memory of theirs, here:
//   absl::StatusOr<ImportedAllocation> theirs =
//       ImportRaw(device, Location::On(device), {raw}, {});
//
// Between two processes that use vmmshare, transfer.h and endpoint.h do this
// and more: they say sizes and kinds themselves, and know who holds what.
#ifndef VMMSHARE_VMM_SHARE_RAW_HANDLE_H_
#define VMMSHARE_VMM_SHARE_RAW_HANDLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "vmm/memory/device.h"
#include "vmm/memory/exporter.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/location.h"
#include "vmm/memory/shareable.h"
#include "vmm/share/imported_allocation.h"

namespace vmm {

// Move-only: it owns a descriptor or NT handle.
struct RawHandle {
  HandleKind kind = HandleKind::kPosixFd;
  std::uint64_t size = 0;  // Bytes of the chunk. No handle tells them.
  ExportedHandle handle;
};

// Exports chunk `chunk` of `memory`. INVALID_ARGUMENT when it has fewer;
// FAILED_PRECONDITION when it was not created with `kind`; otherwise as the
// driver answers.
absl::StatusOr<RawHandle> ExportRaw(const Shareable& memory, std::size_t chunk,
                                    HandleKind kind);

// Maps chunks side by side, whoever made them: a whole cuMemCreate() each. All
// of one kind and of one size, but the last may be smaller. `where` they are is
// the caller's word; `device` maps them if `options` name none.
//   INVALID_ARGUMENT  no chunk; kinds or sizes that differ; what is no memory
//                     of the stated size
//   else              as ImportedAllocation::Open()
absl::StatusOr<ImportedAllocation> ImportRaw(const Device& device,
                                             const Location& where,
                                             std::vector<RawHandle> chunks,
                                             const ImportOptions& options);

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_RAW_HANDLE_H_
