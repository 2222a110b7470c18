#include "platform/handle_attributes.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <map>
#include <mutex>
#include <utility>

#include "platform/security_win.h"

namespace vmm::platform {
namespace {

// Everything that can be done with the object, but for changing its owner and
// its access list: the kernel maps these to the rights of the object's type.
constexpr std::uint32_t kUse = GENERIC_READ | GENERIC_WRITE | GENERIC_EXECUTE;

struct Attributes {
  LocalMemory descriptor;
  OBJECT_ATTRIBUTES attributes;
};

// Nodes of a map keep their address. Never destroyed: see the header.
struct Made {
  std::mutex mutex;
  std::map<std::vector<UserId>, Attributes> by_users;
};

Made& AllMade() {
  static Made& all = *new Made;
  return all;
}

}  // namespace

absl::StatusOr<void*> NativeHandleAttributes(
    const std::vector<UserId>& others) {
  Made& all = AllMade();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto known = all.by_users.find(others);
  if (known != all.by_users.end()) return &known->second.attributes;
  absl::StatusOr<LocalMemory> descriptor = OwnerAndSystemOnly(others, kUse);
  if (!descriptor.ok()) return descriptor.status();
  Attributes& made = all.by_users[others];
  made.descriptor = *std::move(descriptor);
  made.attributes.Length = sizeof(made.attributes);
  made.attributes.SecurityDescriptor = made.descriptor.get();
  return &made.attributes;
}

}  // namespace vmm::platform
