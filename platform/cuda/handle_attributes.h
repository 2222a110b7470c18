// What the driver must be told of the handles it will export.
#ifndef VMMSHARE_PLATFORM_CUDA_HANDLE_ATTRIBUTES_H_
#define VMMSHARE_PLATFORM_CUDA_HANDLE_ATTRIBUTES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "platform/os/process.h"

namespace vmm::platform {

// For CUmemAllocationProp::win32HandleMetaData of memory that is to be
// exported as an NT handle. Windows: OBJECT_ATTRIBUTES whose security
// descriptor admits this process's user and SYSTEM, the users `others` without
// the right to change who is admitted, and nobody else; the driver's
// documentation asks for it, and SECURITY_ATTRIBUTES in its place crash
// cuMemCreate. INVALID_ARGUMENT when one of `others` is no SID. Lives as long
// as the process, for the driver does not say when it last reads it: one is
// kept for each list of users. Elsewhere: null, for a descriptor has no access
// list of its own and whoever was sent it may use it. Thread-safe.
absl::StatusOr<void*> NativeHandleAttributes(
    const std::vector<UserId>& others = {});

// The same for CUmemPoolProps::win32SecurityAttributes of a pool, which are
// SECURITY_ATTRIBUTES; for this process's user and SYSTEM.
absl::StatusOr<void*> NativePoolAttributes();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_CUDA_HANDLE_ATTRIBUTES_H_
