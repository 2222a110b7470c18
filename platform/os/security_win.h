// Users and who may reach an object; internal to platform/.
#ifndef VMMSHARE_PLATFORM_OS_SECURITY_WIN_H_
#define VMMSHARE_PLATFORM_OS_SECURITY_WIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "platform/base/owned.h"
#include "platform/os/process.h"

namespace vmm::platform {

// Memory that Windows gave out by LocalAlloc: a security descriptor, a text.
struct LocalMemoryTraits {
  using Value = void*;
  static Value Nothing() { return nullptr; }
  static bool Holds(Value value) { return value != nullptr; }
  static void Close(Value value);
};
using LocalMemory = Owned<LocalMemoryTraits>;

// The SID of `sid` (a PSID) as text: "S-1-5-18".
absl::StatusOr<UserId> UserOfSid(void* sid);
// The user of a process. The handle needs PROCESS_QUERY_LIMITED_INFORMATION.
absl::StatusOr<UserId> UserOfProcess(std::intptr_t process);
// How far Windows trusts a process, more is more: 0x1000 low, 0x2000 medium
// (what a user starts), 0x3000 high, 0x4000 the system. Likewise.
absl::StatusOr<std::uint32_t> IntegrityOfProcess(std::intptr_t process);

// A self-relative security descriptor that belongs to this process's user and
// admits him and the system to everything, the users `others` to the rights
// in `others_access`, and nobody else. It inherits nothing.
// INVALID_ARGUMENT when a user's text is no SID.
absl::StatusOr<LocalMemory> OwnerAndSystemOnly(
    const std::vector<UserId>& others, std::uint32_t others_access);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_SECURITY_WIN_H_
