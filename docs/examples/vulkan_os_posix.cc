#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "docs/examples/vulkan_os.h"
#include "platform/base/status_macros.h"

namespace examples {
namespace {

using vmm::platform::OsHandle;

// Whether both are open, and of one file.
bool AreOfOneFile(const OsHandle& a, const OsHandle& b) {
  struct stat of_a;
  struct stat of_b;
  return fstat(static_cast<int>(a.get()), &of_a) == 0 &&
         fstat(static_cast<int>(b.get()), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

const char* VulkanLibraryName() { return "libvulkan.so.1"; }

const char* VulkanLibraryAdvice() {
  return "is in the package libvulkan1 of Debian and Ubuntu: install it";
}

const char* ExternalMemoryExtension() {
  return VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
}

VkExternalMemoryHandleTypeFlagBits OpaqueHandleType() {
  return VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
}

absl::StatusOr<OsHandle> ExportMemory(const VulkanCalls& calls, VkDevice device,
                                      VkDeviceMemory memory) {
  const auto get = reinterpret_cast<PFN_vkGetMemoryFdKHR>(
      calls.vkGetDeviceProcAddr(device, "vkGetMemoryFdKHR"));
  if (get == nullptr) {
    return absl::UnimplementedError("the device has no vkGetMemoryFdKHR()");
  }
  const VkMemoryGetFdInfoKHR info = {VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                     nullptr, memory, OpaqueHandleType()};
  int descriptor = -1;
  RETURN_IF_ERROR(
      VulkanStatus(get(device, &info, &descriptor), "vkGetMemoryFdKHR()"));
  return OsHandle::Adopt(descriptor);
}

absl::StatusOr<VkDeviceMemory> ImportMemory(const VulkanCalls& calls,
                                            VkDevice device,
                                            const VkMemoryAllocateInfo& info,
                                            OsHandle handle) {
  ASSIGN_OR_RETURN(OsHandle given, vmm::platform::Duplicate(handle));
  const VkImportMemoryFdInfoKHR import = {
      VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, info.pNext,
      OpaqueHandleType(), static_cast<int>(given.get())};
  VkMemoryAllocateInfo with_import = info;
  with_import.pNext = &import;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  const VkResult result =
      calls.vkAllocateMemory(device, &with_import, nullptr, &memory);
  // Vulkan takes the descriptor over, and closes it, if the import succeeds. Mesa's
  // llvmpipe (22.3) closes it also if it fails, so look whose it is.
  if (result == VK_SUCCESS || !AreOfOneFile(handle, given)) {
    static_cast<void>(std::move(given).Relinquish());
  }
  RETURN_IF_ERROR(VulkanStatus(
      result,
      absl::StrCat("vkAllocateMemory(import of a descriptor, size=",
                   info.allocationSize, ", type=", info.memoryTypeIndex, ")")));
  return memory;
}

}  // namespace examples
