#include "docs/examples/vulkan_calls.h"

#include "absl/strings/str_cat.h"
#include "docs/examples/vulkan_os.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/library.h"

namespace examples {
namespace {

using vmm::platform::Library;

struct ResultName {
  VkResult result;
  const char* name;
  absl::StatusCode code;
};

// Those that the calls of the example give.
constexpr ResultName kResults[] = {
    {VK_ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY",
     absl::StatusCode::kResourceExhausted},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, "VK_ERROR_OUT_OF_DEVICE_MEMORY",
     absl::StatusCode::kResourceExhausted},
    {VK_ERROR_TOO_MANY_OBJECTS, "VK_ERROR_TOO_MANY_OBJECTS",
     absl::StatusCode::kResourceExhausted},
    {VK_ERROR_INITIALIZATION_FAILED, "VK_ERROR_INITIALIZATION_FAILED",
     absl::StatusCode::kUnavailable},
    {VK_ERROR_DEVICE_LOST, "VK_ERROR_DEVICE_LOST", absl::StatusCode::kAborted},
    {VK_ERROR_MEMORY_MAP_FAILED, "VK_ERROR_MEMORY_MAP_FAILED",
     absl::StatusCode::kResourceExhausted},
    {VK_ERROR_EXTENSION_NOT_PRESENT, "VK_ERROR_EXTENSION_NOT_PRESENT",
     absl::StatusCode::kUnimplemented},
    {VK_ERROR_INCOMPATIBLE_DRIVER, "VK_ERROR_INCOMPATIBLE_DRIVER",
     absl::StatusCode::kNotFound},
    {VK_ERROR_INVALID_EXTERNAL_HANDLE, "VK_ERROR_INVALID_EXTERNAL_HANDLE",
     absl::StatusCode::kInvalidArgument},
    {VK_TIMEOUT, "VK_TIMEOUT", absl::StatusCode::kDeadlineExceeded},
};

// Sets `call` to the entry point `name`, and `missing` to the name if there is
// none.
template <typename Call>
void Find(const VulkanLoaderCalls& loader, VkInstance instance,
          const char* name, Call* call, const char** missing) {
  *call = reinterpret_cast<Call>(loader.vkGetInstanceProcAddr(instance, name));
  if (*call == nullptr) *missing = name;
}

}  // namespace

absl::StatusOr<VulkanLoaderCalls> LoadVulkan(const std::string& path) {
  const absl::StatusOr<Library> library =
      path.empty() ? Library::OpenSystem(VulkanLibraryName())
                   : Library::OpenPath(path);
  if (!library.ok()) {
    return vmm::platform::Annotate(
        library.status(), "",
        absl::StrCat("Vulkan's loader, ", VulkanLibraryName(), ", ",
                     VulkanLibraryAdvice(),
                     ", or name one by --loader=/PATH."));
  }
  VulkanLoaderCalls loader;
  loader.vkGetInstanceProcAddr = reinterpret_cast<PFN_vkGetInstanceProcAddr>(
      library->Find("vkGetInstanceProcAddr"));
  const char* missing = nullptr;
  if (loader.vkGetInstanceProcAddr == nullptr) {
    missing = "vkGetInstanceProcAddr";
  } else {
    Find(loader, nullptr, "vkCreateInstance", &loader.vkCreateInstance,
         &missing);
  }
  if (missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        library->path(), " has no ", missing, ": it is no Vulkan loader"));
  }
  return loader;
}

absl::StatusOr<VulkanCalls> CallsOf(const VulkanLoaderCalls& loader,
                                    VkInstance instance) {
  VulkanCalls calls;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* call) {
    Find(loader, instance, name, call, &missing);
  };
  find("vkDestroyInstance", &calls.vkDestroyInstance);
  find("vkEnumeratePhysicalDevices", &calls.vkEnumeratePhysicalDevices);
  find("vkGetPhysicalDeviceProperties2", &calls.vkGetPhysicalDeviceProperties2);
  find("vkGetPhysicalDeviceMemoryProperties",
       &calls.vkGetPhysicalDeviceMemoryProperties);
  find("vkGetPhysicalDeviceQueueFamilyProperties",
       &calls.vkGetPhysicalDeviceQueueFamilyProperties);
  find("vkGetPhysicalDeviceExternalBufferProperties",
       &calls.vkGetPhysicalDeviceExternalBufferProperties);
  find("vkEnumerateDeviceExtensionProperties",
       &calls.vkEnumerateDeviceExtensionProperties);
  find("vkCreateDevice", &calls.vkCreateDevice);
  find("vkGetDeviceProcAddr", &calls.vkGetDeviceProcAddr);
  find("vkDestroyDevice", &calls.vkDestroyDevice);
  find("vkGetDeviceQueue", &calls.vkGetDeviceQueue);
  find("vkCreateCommandPool", &calls.vkCreateCommandPool);
  find("vkDestroyCommandPool", &calls.vkDestroyCommandPool);
  find("vkResetCommandPool", &calls.vkResetCommandPool);
  find("vkAllocateCommandBuffers", &calls.vkAllocateCommandBuffers);
  find("vkBeginCommandBuffer", &calls.vkBeginCommandBuffer);
  find("vkEndCommandBuffer", &calls.vkEndCommandBuffer);
  find("vkCmdPipelineBarrier", &calls.vkCmdPipelineBarrier);
  find("vkCmdCopyBuffer", &calls.vkCmdCopyBuffer);
  find("vkCreateFence", &calls.vkCreateFence);
  find("vkDestroyFence", &calls.vkDestroyFence);
  find("vkResetFences", &calls.vkResetFences);
  find("vkWaitForFences", &calls.vkWaitForFences);
  find("vkQueueSubmit", &calls.vkQueueSubmit);
  find("vkDeviceWaitIdle", &calls.vkDeviceWaitIdle);
  find("vkCreateBuffer", &calls.vkCreateBuffer);
  find("vkDestroyBuffer", &calls.vkDestroyBuffer);
  find("vkGetBufferMemoryRequirements", &calls.vkGetBufferMemoryRequirements);
  find("vkAllocateMemory", &calls.vkAllocateMemory);
  find("vkFreeMemory", &calls.vkFreeMemory);
  find("vkBindBufferMemory", &calls.vkBindBufferMemory);
  find("vkMapMemory", &calls.vkMapMemory);
  if (missing != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("this Vulkan has no ", missing, "(); Vulkan 1.1 has"));
  }
  return calls;
}

absl::Status VulkanStatus(VkResult result, absl::string_view call) {
  if (result == VK_SUCCESS) return absl::OkStatus();
  for (const ResultName& known : kResults) {
    if (known.result == result) {
      return absl::Status(known.code,
                          absl::StrCat(call, " failed: ", known.name));
    }
  }
  return absl::InternalError(
      absl::StrCat(call, " failed: VkResult ", static_cast<int>(result)));
}

}  // namespace examples
