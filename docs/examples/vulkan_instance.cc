#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "docs/examples/vulkan_device.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace examples {
namespace {

// What is missing where Vulkan is there and has no device.
constexpr char kNoDriver[] =
    "Vulkan has no driver here that works. NVIDIA's is part of the display "
    "driver; a container has it with the driver capability \"graphics\".";

}  // namespace

absl::StatusOr<std::unique_ptr<VulkanInstance>> VulkanInstance::Create(
    const std::string& loader) {
  ASSIGN_OR_RETURN(const VulkanLoaderCalls entry, LoadVulkan(loader));
  VkApplicationInfo application = {};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.pApplicationName = "vulkan_memory";
  application.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &application;
  VkInstance instance = VK_NULL_HANDLE;
  RETURN_IF_ERROR(vmm::platform::Annotate(
      VulkanStatus(entry.vkCreateInstance(&info, nullptr, &instance),
                   "vkCreateInstance(Vulkan 1.1)"),
      "", kNoDriver));
  ASSIGN_OR_RETURN(const VulkanCalls calls, CallsOf(entry, instance));
  std::unique_ptr<VulkanInstance> made(new VulkanInstance(instance, calls));
  RETURN_IF_ERROR(made->FindGpus());
  return made;
}

VulkanInstance::~VulkanInstance() {
  calls_.vkDestroyInstance(instance_, nullptr);
}

absl::Status VulkanInstance::FindGpus() {
  std::uint32_t count = 0;
  RETURN_IF_ERROR(VulkanStatus(
      calls_.vkEnumeratePhysicalDevices(instance_, &count, nullptr),
      "vkEnumeratePhysicalDevices()"));
  std::vector<VkPhysicalDevice> handles(count);
  RETURN_IF_ERROR(VulkanStatus(
      calls_.vkEnumeratePhysicalDevices(instance_, &count, handles.data()),
      "vkEnumeratePhysicalDevices()"));
  handles.resize(count);
  for (VkPhysicalDevice handle : handles) {
    VkPhysicalDeviceIDProperties id = {};
    id.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES;
    VkPhysicalDeviceProperties2 about = {};
    about.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    about.pNext = &id;
    calls_.vkGetPhysicalDeviceProperties2(handle, &about);
    VulkanGpu gpu{handle, about.properties.deviceName, {}};
    static_assert(VK_UUID_SIZE == sizeof(gpu.uuid.bytes));
    std::copy(std::begin(id.deviceUUID), std::end(id.deviceUUID),
              gpu.uuid.bytes.begin());
    gpus_.push_back(gpu);
  }
  if (gpus_.empty()) {
    return absl::NotFoundError(
        absl::StrCat("Vulkan sees no device. ", kNoDriver));
  }
  return absl::OkStatus();
}

std::string VulkanInstance::Describe() const {
  int number = 0;
  return absl::StrJoin(gpus_, ", ",
                       [&number](std::string* out, const VulkanGpu& gpu) {
                         absl::StrAppend(out, number++, ": ", gpu.name, " (",
                                         gpu.uuid.ToString(), ")");
                       });
}

}  // namespace examples
