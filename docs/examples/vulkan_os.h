// What of Vulkan differs between the systems: descriptors on Linux, NT handles on
// Windows.
#ifndef VMMSHARE_DOCS_EXAMPLES_VULKAN_OS_H_
#define VMMSHARE_DOCS_EXAMPLES_VULKAN_OS_H_

#include <vulkan/vulkan_core.h>

#include "absl/status/statusor.h"
#include "docs/examples/vulkan_calls.h"
#include "platform/os/os_handle.h"

namespace examples {

// "libvulkan.so.1" or "vulkan-1.dll".
const char* VulkanLibraryName();
// Where it comes from: "is in Debian's package libvulkan1".
const char* VulkanLibraryAdvice();
// The device extension that exports and imports memory as handles.
const char* ExternalMemoryExtension();
// The one kind of handle that the example uses: opaque, which only a driver of
// the same GPU understands.
VkExternalMemoryHandleTypeFlagBits OpaqueHandleType();

// A handle of `memory`, which was allocated to be exported as such.
absl::StatusOr<vmm::platform::OsHandle> ExportMemory(const VulkanCalls& calls,
                                                     VkDevice device,
                                                     VkDeviceMemory memory);

// Allocates as `info` says, but of what `handle` refers to. The handle is gone
// afterwards, whatever happens.
absl::StatusOr<VkDeviceMemory> ImportMemory(const VulkanCalls& calls,
                                            VkDevice device,
                                            const VkMemoryAllocateInfo& info,
                                            vmm::platform::OsHandle handle);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_VULKAN_OS_H_
