// HandleKind and SharePolicy: how memory can be handed to another process, and
// which ways the program accepts. ExportedHandle: what that process is given, one
// a chunk.
//
// A kind must be asked for when memory is created; it cannot be added later.
// So an allocation asks for every kind of its policy that works here, and the
// choice is made per peer. Nothing falls back silently: the allocation says
// which kinds it has, and why each other one was passed over.
#ifndef VMMSHARE_VMM_MEMORY_HANDLE_KIND_H_
#define VMMSHARE_VMM_MEMORY_HANDLE_KIND_H_

#include <cuda.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fabric/handle.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"

namespace vmm {

// Values are those of CUmemAllocationHandleType, on the wire too; the last two
// are of none.
enum class HandleKind : std::uint8_t {
  kPosixFd = 1,  // A file descriptor, sent with SCM_RIGHTS. Same host, Linux.
  kWin32 = 2,    // An NT handle, duplicated into the peer. Same host, Windows.
  kFabric = 8,   // 64 plain bytes; any node of one NVLink fabric domain.
  // For memory that is not cuMemCreate()'s, and weaker: see driver_block.h.
  kLegacyIpc = 64,    // 64 plain bytes, of cuMemAlloc()'s memory. Same host.
  kStreamPool = 128,  // A descriptor of a stream-ordered pool and 64 bytes of
                      // a pointer in it. Same host.
};

// For people: "POSIX fd", "NT handle", "fabric handle", "legacy IPC handle",
// "stream-ordered pool's handle".
absl::string_view NameOf(HandleKind kind);

// Whether memory of this kind is cuMemCreate()'s.
constexpr bool IsVmm(HandleKind kind) {
  return kind != HandleKind::kLegacyIpc && kind != HandleKind::kStreamPool;
}

// A set of kinds. A value.
class HandleKindSet {
 public:
  constexpr HandleKindSet() = default;
  constexpr HandleKindSet(std::initializer_list<HandleKind> kinds) {
    for (HandleKind kind : kinds) Add(kind);
  }
  // From a mask of HandleKind's values; other bits are dropped.
  static constexpr HandleKindSet FromBits(unsigned bits) {
    HandleKindSet set;
    set.bits_ = bits & kKnownBits;
    return set;
  }

  // From a driver's bit mask; bits that are no HandleKind of VMM are dropped.
  static constexpr HandleKindSet FromCuda(unsigned long long bits) {
    return FromBits(static_cast<unsigned>(bits) & kVmmBits);
  }

  constexpr void Add(HandleKind kind) { bits_ |= static_cast<unsigned>(kind); }
  constexpr void Remove(HandleKind kind) {
    bits_ &= ~static_cast<unsigned>(kind);
  }
  constexpr bool Has(HandleKind kind) const {
    return (bits_ & static_cast<unsigned>(kind)) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr unsigned bits() const { return bits_; }
  // For the driver, which knows those of VMM.
  CUmemAllocationHandleType cuda_bits() const {
    return static_cast<CUmemAllocationHandleType>(bits_ & kVmmBits);
  }
  // "POSIX fd + fabric handle", or "none".
  std::string ToString() const;
  friend constexpr bool operator==(HandleKindSet, HandleKindSet) = default;

 private:
  static constexpr unsigned kVmmBits = 1 | 2 | 8;
  static constexpr unsigned kKnownBits = kVmmBits | 64 | 128;
  unsigned bits_ = 0;
};

// A kind of the policy that an allocation does not have, and why.
struct PassedOver {
  HandleKind kind;
  absl::Status reason;
};

// The kinds a program accepts, the preferred one first. A value.
class SharePolicy {
 public:
  // This kind, or the allocation fails before any memory is allocated.
  static SharePolicy Require(HandleKind kind);
  // Every one of these that works here; fails when none does. kLegacyIpc only
  // where no other does: such memory has no other. REQUIRES: at least one; of none
  // it is Private().
  static SharePolicy AnyOf(absl::Span<const HandleKind> kinds);
  // This system's own kind: kPosixFd on Linux, kWin32 on Windows.
  static SharePolicy Native();
  // Never shared: no kind is asked for.
  static SharePolicy Private();

  // The same, and the access list of NT handles admits these users too, beside
  // this process's and SYSTEM: for peers that run as somebody else. Only on
  // Windows have handles such a list. Who may connect is another question:
  // PeerPolicy::also_allowed.
  SharePolicy AndUsers(std::vector<platform::UserId> users) const {
    SharePolicy policy = *this;
    policy.users_ = std::move(users);
    return policy;
  }

  absl::Span<const HandleKind> kinds() const { return kinds_; }
  const std::vector<platform::UserId>& users() const { return users_; }

 private:
  explicit SharePolicy(absl::Span<const HandleKind> kinds)
      : kinds_(kinds.begin(), kinds.end()) {}
  absl::InlinedVector<HandleKind, 3> kinds_;
  std::vector<platform::UserId> users_;
};

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

#endif  // VMMSHARE_VMM_MEMORY_HANDLE_KIND_H_
