#include "docs/examples/vulkan_device.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "docs/examples/vulkan_os.h"
#include "platform/base/status_macros.h"

namespace examples {

absl::StatusOr<std::unique_ptr<VulkanDevice>> VulkanDevice::Create(
    const VulkanInstance& instance, const VulkanGpu& gpu, absl::Time deadline) {
  std::unique_ptr<VulkanDevice> device(
      new VulkanDevice(instance.calls(), gpu.handle, deadline));
  RETURN_IF_ERROR(device->CheckCanShare());
  RETURN_IF_ERROR(device->Open());
  return device;
}

VulkanDevice::~VulkanDevice() {
  if (device_ == VK_NULL_HANDLE) return;
  calls_.vkDestroyFence(device_, done_, nullptr);
  calls_.vkDestroyCommandPool(device_, pool_, nullptr);
  calls_.vkDestroyDevice(device_, nullptr);
}

// OK when buffers can be exported and imported as opaque handles.
absl::Status VulkanDevice::CheckCanShare() {
  std::uint32_t count = 0;
  RETURN_IF_ERROR(VulkanStatus(calls_.vkEnumerateDeviceExtensionProperties(
                                   gpu_, nullptr, &count, nullptr),
                               "vkEnumerateDeviceExtensionProperties()"));
  std::vector<VkExtensionProperties> extensions(count);
  RETURN_IF_ERROR(VulkanStatus(calls_.vkEnumerateDeviceExtensionProperties(
                                   gpu_, nullptr, &count, extensions.data()),
                               "vkEnumerateDeviceExtensionProperties()"));
  if (std::none_of(extensions.begin(), extensions.end(),
                   [](const VkExtensionProperties& extension) {
                     return absl::string_view(extension.extensionName) ==
                            ExternalMemoryExtension();
                   })) {
    return absl::UnimplementedError(
        absl::StrCat("the Vulkan device has no ", ExternalMemoryExtension(),
                     ", so it can share no memory"));
  }
  const VkPhysicalDeviceExternalBufferInfo buffer = {
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO, nullptr,
      /*flags=*/0, kCopies, OpaqueHandleType()};
  VkExternalBufferProperties about = {};
  about.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES;
  calls_.vkGetPhysicalDeviceExternalBufferProperties(gpu_, &buffer, &about);
  const VkExternalMemoryFeatureFlags features =
      about.externalMemoryProperties.externalMemoryFeatures;
  constexpr VkExternalMemoryFeatureFlags kNeeded =
      VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT |
      VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
  if ((features & kNeeded) != kNeeded) {
    return absl::UnimplementedError(absl::StrCat(
        "vkGetPhysicalDeviceExternalBufferProperties(opaque handles) says ",
        features, "; expected buffers to be exportable and importable, ",
        kNeeded));
  }
  dedicated_ = (features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) != 0;
  return absl::OkStatus();
}

absl::Status VulkanDevice::Open() {
  std::uint32_t count = 0;
  calls_.vkGetPhysicalDeviceQueueFamilyProperties(gpu_, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  calls_.vkGetPhysicalDeviceQueueFamilyProperties(gpu_, &count,
                                                  families.data());
  // Every queue that computes or draws can copy, too, and every device has one.
  const auto family = std::find_if(
      families.begin(), families.end(), [](const VkQueueFamilyProperties& f) {
        return (f.queueFlags &
                (VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT)) != 0;
      });
  if (family == families.end()) {
    return absl::UnimplementedError(absl::StrCat(
        "none of the device's ", count, " queue families computes or draws"));
  }
  family_ = static_cast<std::uint32_t>(family - families.begin());

  const float priority = 1;
  VkDeviceQueueCreateInfo queue = {};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = family_;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  const char* const extension = ExternalMemoryExtension();
  VkDeviceCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = 1;
  info.ppEnabledExtensionNames = &extension;
  RETURN_IF_ERROR(
      VulkanStatus(calls_.vkCreateDevice(gpu_, &info, nullptr, &device_),
                   absl::StrCat("vkCreateDevice(", extension, ")")));
  calls_.vkGetDeviceQueue(device_, family_, 0, &queue_);

  VkCommandPoolCreateInfo pool = {};
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.queueFamilyIndex = family_;
  RETURN_IF_ERROR(
      VulkanStatus(calls_.vkCreateCommandPool(device_, &pool, nullptr, &pool_),
                   "vkCreateCommandPool()"));
  VkCommandBufferAllocateInfo commands = {};
  commands.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  commands.commandPool = pool_;
  commands.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  commands.commandBufferCount = 1;
  RETURN_IF_ERROR(VulkanStatus(
      calls_.vkAllocateCommandBuffers(device_, &commands, &commands_),
      "vkAllocateCommandBuffers()"));
  VkFenceCreateInfo fence = {};
  fence.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  return VulkanStatus(calls_.vkCreateFence(device_, &fence, nullptr, &done_),
                      "vkCreateFence()");
}

absl::StatusOr<std::uint32_t> VulkanDevice::MemoryType(
    std::uint32_t allowed, VkMemoryPropertyFlags flags) const {
  VkPhysicalDeviceMemoryProperties memory = {};
  calls_.vkGetPhysicalDeviceMemoryProperties(gpu_, &memory);
  for (std::uint32_t type = 0; type < memory.memoryTypeCount; ++type) {
    if ((allowed >> type & 1) != 0 &&
        (memory.memoryTypes[type].propertyFlags & flags) == flags) {
      return type;
    }
  }
  return absl::UnimplementedError(absl::StrCat(
      "none of the device's ", memory.memoryTypeCount,
      " types of memory has the flags ", flags, " and is one of ", allowed));
}

absl::Status VulkanDevice::Run(
    const std::function<void(VkCommandBuffer)>& record) const {
  if (NanosecondsLeft() == 0) {
    return absl::DeadlineExceededError(
        "the time was up before Vulkan could copy; give more by --timeout");
  }
  RETURN_IF_ERROR(VulkanStatus(calls_.vkResetCommandPool(device_, pool_, 0),
                               "vkResetCommandPool()"));
  VkCommandBufferBeginInfo begin = {};
  begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  RETURN_IF_ERROR(VulkanStatus(calls_.vkBeginCommandBuffer(commands_, &begin),
                               "vkBeginCommandBuffer()"));
  record(commands_);
  RETURN_IF_ERROR(VulkanStatus(calls_.vkEndCommandBuffer(commands_),
                               "vkEndCommandBuffer()"));
  RETURN_IF_ERROR(VulkanStatus(calls_.vkResetFences(device_, 1, &done_),
                               "vkResetFences()"));
  VkSubmitInfo submit = {};
  submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &commands_;
  RETURN_IF_ERROR(VulkanStatus(calls_.vkQueueSubmit(queue_, 1, &submit, done_),
                               "vkQueueSubmit()"));
  const VkResult result =
      calls_.vkWaitForFences(device_, 1, &done_, VK_TRUE, NanosecondsLeft());
  if (result == VK_TIMEOUT) {
    // The caller destroys what is in use. Work that hangs is the driver's to end.
    calls_.vkDeviceWaitIdle(device_);
  }
  return VulkanStatus(result, "vkWaitForFences()");
}

std::uint64_t VulkanDevice::NanosecondsLeft() const {
  return static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(
      std::max(deadline_ - absl::Now(), absl::ZeroDuration())));
}

}  // namespace examples
