// Exporters: one for each kind of VMM's handles, each with the same functions.
//
// An exporter turns a driver's memory handle into something another process
// can be given, and back. A new kind is a file beside this one, a line in
// exporter.cc, and what docs/contributing.md names under "A kind of handle". Memory
// of the driver's own allocators has no exporter: see driver_block.h.
#ifndef VMMSHARE_VMM_MEMORY_INTERNAL_EXPORTER_H_
#define VMMSHARE_VMM_MEMORY_INTERNAL_EXPORTER_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "vmm/memory/device.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/memory/physical_memory.h"
#include "vmm/memory/shareable.h"

namespace vmm {

struct Exporter {
  HandleKind kind;

  // The handle for `chunk`, which must have been created with this kind.
  absl::StatusOr<ExportedHandle> (*make)(const platform::Driver& driver,
                                         CUmemGenericAllocationHandle chunk);

  // The chunk of `size` bytes that `handle` stands for, in this process. What
  // `handle` refers to is checked before the driver sees it
  // (INVALID_ARGUMENT). The handle may be closed afterwards.
  absl::StatusOr<OwnedMemoryHandle> (*open)(const platform::Driver& driver,
                                            const ExportedHandle& handle,
                                            std::uint64_t size);

  // What to do about `result` of a driver call that asked for this kind.
  // Empty when there is nothing particular to the kind to say.
  std::string (*advice)(CUresult result);
};

// Every exporter of this build.
absl::Span<const Exporter> Exporters();

// The exporter of `kind`; UNIMPLEMENTED when this build has none (NT handles
// on Linux, descriptors on Windows).
absl::StatusOr<const Exporter*> FindExporter(HandleKind kind);

// The kind as which `memory` is shared where nobody names one: the first of
// Exporters() that it has, so the system's own before fabric handles.
// FAILED_PRECONDITION for private memory.
absl::StatusOr<HandleKind> PreferredKind(const Shareable& memory);

// The handle of chunk `chunk`. FAILED_PRECONDITION when the memory cannot be
// shared as `kind`; otherwise as the driver answers. REQUIRES: it has the chunk.
absl::StatusOr<ExportedHandle> ExportChunk(const Shareable& memory,
                                           HandleKind kind, std::size_t chunk);

// FAILED_PRECONDITION when it cannot.
absl::Status CheckHasKind(const Shareable& memory, HandleKind kind);

// The real try behind Device::Probe(), not remembered: OK, or the failure of
// the call that failed, without advice. UNIMPLEMENTED for a kind of another
// system.
absl::Status TryKind(const Device& device, HandleKind kind);
// Whether the kind may well work at another time, for all that this failure of
// TryKind() says: memory or descriptors ran out, a fabric is not ready yet, a
// stream is captured into a graph, or the program's context is lost.
bool MayPass(const absl::Status& reason);
// As TryKind(), with the device, the kind and advice in the message.
absl::Status ProbeKind(const Device& device, HandleKind kind);

namespace exporters {
// Defined one file each. The first is a function, because its kind is a constant of
// another source, which may not be there when this one is made.
Exporter OsHandleExporter();
extern const Exporter kFabric;
}  // namespace exporters

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_INTERNAL_EXPORTER_H_
