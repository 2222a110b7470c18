#include "platform/handle_attributes.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include "platform/security_win.h"

namespace vmm::platform {
namespace {

struct Attributes {
  LocalMemory descriptor;
  OBJECT_ATTRIBUTES attributes;
};

}  // namespace

absl::StatusOr<void*> NativeHandleAttributes() {
  // Never destroyed: see the header.
  static absl::StatusOr<Attributes>& made =
      *new absl::StatusOr<Attributes>([]() -> absl::StatusOr<Attributes> {
        absl::StatusOr<LocalMemory> descriptor = OwnerAndSystemOnly({}, 0);
        if (!descriptor.ok()) return descriptor.status();
        Attributes result = {*std::move(descriptor), {}};
        result.attributes.Length = sizeof(result.attributes);
        result.attributes.SecurityDescriptor = result.descriptor.get();
        return result;
      }());
  if (!made.ok()) return made.status();
  return static_cast<void*>(&made->attributes);
}

}  // namespace vmm::platform
