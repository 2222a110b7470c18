// What Vulkan declares for Windows alone, with <windows.h>.
#define VK_USE_PLATFORM_WIN32_KHR
#include <vulkan/vulkan.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "docs/examples/vulkan_os.h"
#include "platform/base/status_macros.h"

namespace examples {

using vmm::platform::OsHandle;

const char* VulkanLibraryName() { return "vulkan-1.dll"; }

const char* VulkanLibraryAdvice() {
  return "comes with the driver of the GPU: install it";
}

const char* ExternalMemoryExtension() {
  return VK_KHR_EXTERNAL_MEMORY_WIN32_EXTENSION_NAME;
}

VkExternalMemoryHandleTypeFlagBits OpaqueHandleType() {
  return VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT;
}

absl::StatusOr<OsHandle> ExportMemory(const VulkanCalls& calls, VkDevice device,
                                      VkDeviceMemory memory) {
  const auto get = reinterpret_cast<PFN_vkGetMemoryWin32HandleKHR>(
      calls.vkGetDeviceProcAddr(device, "vkGetMemoryWin32HandleKHR"));
  if (get == nullptr) {
    return absl::UnimplementedError(
        "the device has no vkGetMemoryWin32HandleKHR()");
  }
  const VkMemoryGetWin32HandleInfoKHR info = {
      VK_STRUCTURE_TYPE_MEMORY_GET_WIN32_HANDLE_INFO_KHR, nullptr, memory,
      OpaqueHandleType()};
  HANDLE handle = nullptr;
  RETURN_IF_ERROR(
      VulkanStatus(get(device, &info, &handle), "vkGetMemoryWin32HandleKHR()"));
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(handle));
}

absl::StatusOr<VkDeviceMemory> ImportMemory(const VulkanCalls& calls,
                                            VkDevice device,
                                            const VkMemoryAllocateInfo& info,
                                            OsHandle handle) {
  const VkImportMemoryWin32HandleInfoKHR import = {
      VK_STRUCTURE_TYPE_IMPORT_MEMORY_WIN32_HANDLE_INFO_KHR, info.pNext,
      OpaqueHandleType(), reinterpret_cast<HANDLE>(handle.get()),
      /*name=*/nullptr};
  VkMemoryAllocateInfo with_import = info;
  with_import.pNext = &import;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  // Vulkan takes no NT handle over: `handle` closes it.
  RETURN_IF_ERROR(VulkanStatus(
      calls.vkAllocateMemory(device, &with_import, nullptr, &memory),
      absl::StrCat("vkAllocateMemory(import of an NT handle, size=",
                   info.allocationSize, ", type=", info.memoryTypeIndex, ")")));
  return memory;
}

}  // namespace examples
