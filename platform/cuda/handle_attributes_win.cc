#include "platform/cuda/handle_attributes.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <map>
#include <utility>

#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/security_win.h"

namespace vmm::platform {
namespace {

// Everything that can be done with the object, but for changing its owner and
// its access list: the kernel maps these to the rights of the object's type.
constexpr std::uint32_t kUse = GENERIC_READ | GENERIC_WRITE | GENERIC_EXECUTE;

struct Attributes {
  LocalMemory descriptor;
  OBJECT_ATTRIBUTES attributes;
  SECURITY_ATTRIBUTES of_pool;
};

// Nodes of a map keep their address. Never destroyed: see the header.
struct Made {
  Mutex mutex;
  std::map<std::vector<UserId>, Attributes> by_users ABSL_GUARDED_BY(mutex);
};

Made& AllMade() {
  static Made& all = *new Made;
  return all;
}

absl::StatusOr<Attributes*> MadeFor(const std::vector<UserId>& others) {
  Made& all = AllMade();
  const MutexLock lock(all.mutex);
  const auto known = all.by_users.find(others);
  if (known != all.by_users.end()) return &known->second;
  ASSIGN_OR_RETURN(LocalMemory descriptor, OwnerAndSystemOnly(others, kUse));
  Attributes& made = all.by_users[others];
  made.descriptor = std::move(descriptor);
  made.attributes.Length = sizeof(made.attributes);
  made.attributes.SecurityDescriptor = made.descriptor.get();
  made.of_pool.nLength = sizeof(made.of_pool);
  made.of_pool.lpSecurityDescriptor = made.descriptor.get();
  return &made;
}

}  // namespace

absl::StatusOr<void*> NativeHandleAttributes(
    const std::vector<UserId>& others) {
  ASSIGN_OR_RETURN(auto* made, MadeFor(others));
  return &made->attributes;
}

absl::StatusOr<void*> NativePoolAttributes() {
  ASSIGN_OR_RETURN(auto* made, MadeFor({}));
  return &made->of_pool;
}

}  // namespace vmm::platform
