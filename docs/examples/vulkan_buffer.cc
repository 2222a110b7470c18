#include "docs/examples/vulkan_buffer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "docs/examples/vulkan_os.h"
#include "platform/base/status_macros.h"

namespace examples {

using vmm::platform::OsHandle;

absl::StatusOr<VulkanBuffer> VulkanBuffer::Create(const VulkanDevice& device,
                                                  std::uint64_t size) {
  VulkanBuffer made(device, size);
  ASSIGN_OR_RETURN(const VkMemoryRequirements needs, made.Make(true));
  made.memory_size_ = needs.size;
  ASSIGN_OR_RETURN(const std::uint32_t type,
                   device.MemoryType(needs.memoryTypeBits,
                                     VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT));
  VkMemoryDedicatedAllocateInfo dedicated = made.Dedicated();
  VkExportMemoryAllocateInfo exported = {};
  exported.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO;
  exported.pNext = device.dedicated() ? &dedicated : nullptr;
  exported.handleTypes = OpaqueHandleType();
  VkMemoryAllocateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  info.pNext = &exported;
  info.allocationSize = needs.size;
  info.memoryTypeIndex = type;
  RETURN_IF_ERROR(VulkanStatus(
      device.calls().vkAllocateMemory(device.handle(), &info, nullptr,
                                      &made.memory_),
      absl::StrCat("vkAllocateMemory(exportable, size=", needs.size,
                   ", type=", type, ")")));
  RETURN_IF_ERROR(made.Bind());
  return made;
}

absl::StatusOr<VulkanBuffer> VulkanBuffer::Import(const VulkanDevice& device,
                                                  OsHandle handle,
                                                  std::uint64_t size) {
  VulkanBuffer made(device, size);
  ASSIGN_OR_RETURN(const VkMemoryRequirements needs, made.Make(true));
  if (needs.size > size) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a buffer of ", size, " bytes needs ", needs.size, " bytes of memory"));
  }
  made.memory_size_ = size;
  // The one that Create() takes: the two must agree, and no handle tells it.
  ASSIGN_OR_RETURN(const std::uint32_t type,
                   device.MemoryType(needs.memoryTypeBits,
                                     VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT));
  VkMemoryDedicatedAllocateInfo dedicated = made.Dedicated();
  VkMemoryAllocateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  info.pNext = device.dedicated() ? &dedicated : nullptr;
  info.allocationSize = size;
  info.memoryTypeIndex = type;
  ASSIGN_OR_RETURN(made.memory_, ImportMemory(device.calls(), device.handle(),
                                              info, std::move(handle)));
  RETURN_IF_ERROR(made.Bind());
  return made;
}

absl::StatusOr<VulkanBuffer> VulkanBuffer::Staging(const VulkanDevice& device,
                                                   std::uint64_t size) {
  VulkanBuffer made(device, size);
  ASSIGN_OR_RETURN(const VkMemoryRequirements needs, made.Make(false));
  made.memory_size_ = needs.size;
  VkMemoryAllocateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  info.allocationSize = needs.size;
  // Every device has such a type for buffers.
  ASSIGN_OR_RETURN(info.memoryTypeIndex,
                   device.MemoryType(needs.memoryTypeBits,
                                     VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                         VK_MEMORY_PROPERTY_HOST_COHERENT_BIT));
  const VulkanCalls& calls = device.calls();
  RETURN_IF_ERROR(VulkanStatus(
      calls.vkAllocateMemory(device.handle(), &info, nullptr, &made.memory_),
      absl::StrCat("vkAllocateMemory(for the CPU, size=", needs.size, ")")));
  RETURN_IF_ERROR(made.Bind());
  RETURN_IF_ERROR(VulkanStatus(calls.vkMapMemory(device.handle(), made.memory_,
                                                 0, size, 0, &made.bytes_),
                               absl::StrCat("vkMapMemory(size=", size, ")")));
  return made;
}

VulkanBuffer::VulkanBuffer(VulkanBuffer&& other) noexcept
    : device_(other.device_),
      size_(other.size_),
      memory_size_(other.memory_size_),
      buffer_(std::exchange(other.buffer_, VK_NULL_HANDLE)),
      memory_(std::exchange(other.memory_, VK_NULL_HANDLE)),
      bytes_(std::exchange(other.bytes_, nullptr)) {}

VulkanBuffer::~VulkanBuffer() {
  const VulkanCalls& calls = device_->calls();
  calls.vkDestroyBuffer(device_->handle(), buffer_, nullptr);
  calls.vkFreeMemory(device_->handle(), memory_, nullptr);
}

// Makes the buffer, still without memory, and says what memory it needs.
absl::StatusOr<VkMemoryRequirements> VulkanBuffer::Make(bool shared) {
  VkExternalMemoryBufferCreateInfo external = {};
  external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
  external.handleTypes = OpaqueHandleType();
  VkBufferCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.pNext = shared ? &external : nullptr;
  info.size = size_;
  info.usage = kCopies;
  info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  const VulkanCalls& calls = device_->calls();
  RETURN_IF_ERROR(VulkanStatus(
      calls.vkCreateBuffer(device_->handle(), &info, nullptr, &buffer_),
      absl::StrCat("vkCreateBuffer(size=", size_, ")")));
  VkMemoryRequirements needs = {};
  calls.vkGetBufferMemoryRequirements(device_->handle(), buffer_, &needs);
  return needs;
}

VkMemoryDedicatedAllocateInfo VulkanBuffer::Dedicated() const {
  VkMemoryDedicatedAllocateInfo dedicated = {};
  dedicated.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO;
  dedicated.buffer = buffer_;
  return dedicated;
}

absl::Status VulkanBuffer::Bind() const {
  return VulkanStatus(device_->calls().vkBindBufferMemory(device_->handle(),
                                                          buffer_, memory_, 0),
                      "vkBindBufferMemory()");
}

absl::StatusOr<OsHandle> VulkanBuffer::Export() const {
  return ExportMemory(device_->calls(), device_->handle(), memory_);
}

// Copies to `staging` if `out`, else from it. The memory belongs to others
// before and after: the barriers take it over and give it back.
absl::Status VulkanBuffer::Copy(const VulkanBuffer& staging, bool out) const {
  const VulkanCalls& calls = device_->calls();
  return device_->Run([&](VkCommandBuffer commands) {
    VkBufferMemoryBarrier take = {};
    take.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER;
    take.dstAccessMask =
        out ? VK_ACCESS_TRANSFER_READ_BIT : VK_ACCESS_TRANSFER_WRITE_BIT;
    take.srcQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    take.dstQueueFamilyIndex = device_->queue_family();
    take.buffer = buffer_;
    take.size = VK_WHOLE_SIZE;
    calls.vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT,
                               VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, nullptr, 1,
                               &take, 0, nullptr);
    const VkBufferCopy whole = {0, 0, size_};
    calls.vkCmdCopyBuffer(commands, out ? buffer_ : staging.buffer_,
                          out ? staging.buffer_ : buffer_, 1, &whole);
    VkBufferMemoryBarrier give = take;
    give.srcAccessMask = take.dstAccessMask;
    give.dstAccessMask = 0;
    std::swap(give.srcQueueFamilyIndex, give.dstQueueFamilyIndex);
    VkMemoryBarrier to_the_cpu = {};
    to_the_cpu.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    to_the_cpu.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    to_the_cpu.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
    calls.vkCmdPipelineBarrier(
        commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
        VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
        &to_the_cpu, 1, &give, 0, nullptr);
  });
}

absl::Status VulkanBuffer::Fill(const Pattern& pattern,
                                std::optional<std::uint64_t> corrupt) const {
  ASSIGN_OR_RETURN(const VulkanBuffer staging, Staging(*device_, size_));
  auto* const bytes = static_cast<std::uint8_t*>(staging.bytes_);
  pattern.Write(0, absl::MakeSpan(bytes, size_));
  if (corrupt.has_value()) bytes[*corrupt] ^= 1;
  return Copy(staging, /*out=*/false);
}

absl::Status VulkanBuffer::Verify(const Pattern& pattern) const {
  ASSIGN_OR_RETURN(const VulkanBuffer staging, Staging(*device_, size_));
  RETURN_IF_ERROR(Copy(staging, /*out=*/true));
  const auto* const bytes = static_cast<const std::uint8_t*>(staging.bytes_);
  return pattern.Compare(0, absl::MakeConstSpan(bytes, size_), size_);
}

}  // namespace examples
