// A buffer of Vulkan's whose memory another has, too.
#ifndef VMMSHARE_DOCS_EXAMPLES_VULKAN_BUFFER_H_
#define VMMSHARE_DOCS_EXAMPLES_VULKAN_BUFFER_H_

#include <vulkan/vulkan_core.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "docs/examples/pattern.h"
#include "docs/examples/vulkan_device.h"
#include "platform/os/os_handle.h"

namespace examples {

// Move-only. Its device must outlive it.
class VulkanBuffer {
 public:
  // Of memory that Vulkan allocates, and that can be exported.
  static absl::StatusOr<VulkanBuffer> Create(const VulkanDevice& device,
                                             std::uint64_t size);
  // Of the memory behind `handle`, which has `size` bytes; the handle is gone
  // afterwards, whatever happens.
  static absl::StatusOr<VulkanBuffer> Import(const VulkanDevice& device,
                                             vmm::platform::OsHandle handle,
                                             std::uint64_t size);
  VulkanBuffer(VulkanBuffer&& other) noexcept;
  VulkanBuffer& operator=(VulkanBuffer&&) = delete;
  ~VulkanBuffer();

  // Of the memory: no less than what the buffer was asked for.
  std::uint64_t memory_size() const { return memory_size_; }
  // REQUIRES: made by Create().
  absl::StatusOr<vmm::platform::OsHandle> Export() const;

  // Writes the pattern by a copy on the device, with the byte at `corrupt`
  // changed.
  absl::Status Fill(const Pattern& pattern,
                    std::optional<std::uint64_t> corrupt) const;
  // Reads every byte by a copy on the device: DATA_LOSS names the first that
  // differs.
  absl::Status Verify(const Pattern& pattern) const;

 private:
  explicit VulkanBuffer(const VulkanDevice& device, std::uint64_t size)
      : device_(&device), size_(size) {}
  // A buffer that the CPU reads and writes, to copy to and from others.
  static absl::StatusOr<VulkanBuffer> Staging(const VulkanDevice& device,
                                              std::uint64_t size);
  absl::StatusOr<VkMemoryRequirements> Make(bool shared);
  VkMemoryDedicatedAllocateInfo Dedicated() const;
  absl::Status Bind() const;
  absl::Status Copy(const VulkanBuffer& staging, bool out) const;

  const VulkanDevice* device_;
  std::uint64_t size_;
  std::uint64_t memory_size_ = 0;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  void* bytes_ = nullptr;  // Of a staging buffer.
};

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_VULKAN_BUFFER_H_
