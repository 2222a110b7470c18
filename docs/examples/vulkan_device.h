// Vulkan without a window: which devices there are, and one of them, ready to
// copy between buffers.
#ifndef VMMSHARE_DOCS_EXAMPLES_VULKAN_DEVICE_H_
#define VMMSHARE_DOCS_EXAMPLES_VULKAN_DEVICE_H_

#include <vulkan/vulkan_core.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "docs/examples/vulkan_calls.h"
#include "vmm/vmm.h"

namespace examples {

// A device that Vulkan sees. Its number differs from CUDA's, its UUID does not.
struct VulkanGpu {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  std::string name;
  vmm::DeviceUuid uuid;
};

class VulkanInstance {
 public:
  // `loader` as in LoadVulkan(). NOT_FOUND where Vulkan has no driver.
  static absl::StatusOr<std::unique_ptr<VulkanInstance>> Create(
      const std::string& loader);
  VulkanInstance(const VulkanInstance&) = delete;
  VulkanInstance& operator=(const VulkanInstance&) = delete;
  ~VulkanInstance();

  const VulkanCalls& calls() const { return calls_; }
  const std::vector<VulkanGpu>& gpus() const { return gpus_; }
  // "0: NAME (GPU-...), 1: NAME (GPU-...)".
  std::string Describe() const;

 private:
  VulkanInstance(VkInstance instance, const VulkanCalls& calls)
      : instance_(instance), calls_(calls) {}
  absl::Status FindGpus();

  VkInstance instance_;
  VulkanCalls calls_;
  std::vector<VulkanGpu> gpus_;
};

// For one thread.
class VulkanDevice {
 public:
  // UNIMPLEMENTED names what the device lacks to share buffers. `instance`
  // must outlive it. No wait is longer than until `deadline`.
  static absl::StatusOr<std::unique_ptr<VulkanDevice>> Create(
      const VulkanInstance& instance, const VulkanGpu& gpu,
      absl::Time deadline);
  VulkanDevice(const VulkanDevice&) = delete;
  VulkanDevice& operator=(const VulkanDevice&) = delete;
  ~VulkanDevice();

  const VulkanCalls& calls() const { return calls_; }
  VkDevice handle() const { return device_; }
  std::uint32_t queue_family() const { return family_; }
  // Whether a buffer that is shared needs memory of its own.
  bool dedicated() const { return dedicated_; }

  // The first type of memory among `allowed`, a bit each, that has `flags`.
  absl::StatusOr<std::uint32_t> MemoryType(std::uint32_t allowed,
                                           VkMemoryPropertyFlags flags) const;

  // Does what `record` records, and returns once the device has done it.
  absl::Status Run(const std::function<void(VkCommandBuffer)>& record) const;

 private:
  VulkanDevice(const VulkanCalls& calls, VkPhysicalDevice gpu,
               absl::Time deadline)
      : calls_(calls), gpu_(gpu), deadline_(deadline) {}
  absl::Status CheckCanShare();
  std::uint64_t NanosecondsLeft() const;
  absl::Status Open();

  const VulkanCalls& calls_;
  VkPhysicalDevice gpu_;
  absl::Time deadline_;
  bool dedicated_ = false;
  std::uint32_t family_ = 0;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  VkFence done_ = VK_NULL_HANDLE;
};

// The buffers that are shared are used for.
inline constexpr VkBufferUsageFlags kCopies =
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_VULKAN_DEVICE_H_
