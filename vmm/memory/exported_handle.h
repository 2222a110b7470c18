// ExportedHandle: what another process is given for memory; one a chunk.
#ifndef VMMSHARE_VMM_MEMORY_EXPORTED_HANDLE_H_
#define VMMSHARE_VMM_MEMORY_EXPORTED_HANDLE_H_

#include <array>
#include <cstdint>
#include <variant>

#include "absl/status/statusor.h"
#include "fabric/handle.h"
#include "platform/os/os_handle.h"
#include "vmm/memory/handle_kind.h"

namespace vmm {

// As wide as a fabric handle: messages carry one like the other.
using HandleBytes = std::array<std::uint8_t, sizeof(fabric::Handle)>;

// A CUipcMemHandle.
struct LegacyHandle {
  HandleBytes bytes{};
  friend bool operator==(const LegacyHandle&, const LegacyHandle&) = default;
};

// A stream-ordered pool, and a CUmemPoolPtrExportData of memory in it.
struct StreamPoolHandle {
  platform::OsHandle pool;
  HandleBytes pointer{};
};

// An OsHandle of memory is a reference to it: the memory lives while it is open.
// The others hold nothing.
using ExportedHandle = std::variant<platform::OsHandle, fabric::Handle,
                                    LegacyHandle, StreamPoolHandle>;

// What a handle of this kind is made of.
constexpr bool HasOsHandle(HandleKind kind) {
  return kind != HandleKind::kFabric && kind != HandleKind::kLegacyIpc;
}
constexpr bool HasBytes(HandleKind kind) {
  return kind == HandleKind::kFabric || !IsVmm(kind);
}
// Its parts; null where it has none.
const platform::OsHandle* OsHandleOf(const ExportedHandle& handle);
const HandleBytes* BytesOf(const ExportedHandle& handle);
// A handle of `kind` of such parts. REQUIRES: `bytes` where it HasBytes(), and an
// `os_handle` where it HasOsHandle().
ExportedHandle HandleOf(HandleKind kind, platform::OsHandle os_handle,
                        const HandleBytes& bytes);

// Its part of the system's; empty where it has none.
platform::OsHandle TakeOsHandle(ExportedHandle handle);

// Another one of the same memory. Errors as platform::Duplicate().
absl::StatusOr<ExportedHandle> Duplicate(const ExportedHandle& handle);

}  // namespace vmm

#endif  // VMMSHARE_VMM_MEMORY_EXPORTED_HANDLE_H_
