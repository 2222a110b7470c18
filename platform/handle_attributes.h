// What the driver must be told of the handles it will export.
#ifndef VMMSHARE_PLATFORM_HANDLE_ATTRIBUTES_H_
#define VMMSHARE_PLATFORM_HANDLE_ATTRIBUTES_H_

#include "absl/status/statusor.h"

namespace vmm::platform {

// For CUmemAllocationProp::win32HandleMetaData of memory that is to be
// exported as an NT handle. Windows: OBJECT_ATTRIBUTES whose security
// descriptor admits this process's user and SYSTEM and nobody else; the
// driver's documentation asks for it, and SECURITY_ATTRIBUTES in its place
// crash cuMemCreate. Elsewhere: null. Lives as long as the process, for the
// driver does not say when it last reads it. Thread-safe.
absl::StatusOr<void*> NativeHandleAttributes();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_HANDLE_ATTRIBUTES_H_
