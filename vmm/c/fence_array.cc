#include "vmm/sync/fence_array.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/c/fence.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handles.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::Clear;
using vmm::c::Make;

static_assert(VMMSHARE_FENCE_BYTES == vmm::kFenceBytes);

namespace {

vmmshare_status Create(const vmmshare_device* device, std::uint64_t memory,
                       std::uint64_t bytes, vmm::FenceMechanism mechanism,
                       vmmshare_fence_array** array, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(array, "array"));
    RETURN_IF_ERROR(Check(device));
    return Make(
        array, vmm::FenceArray::Over(device->device, memory, bytes, mechanism));
  });
}

}  // namespace

vmmshare_status vmmshare_fence_array_create(const vmmshare_device* device,
                                            std::uint64_t memory,
                                            std::uint64_t bytes,
                                            vmmshare_fence_array** array,
                                            vmmshare_error** error) {
  return Create(device, memory, bytes,
                vmm::FenceMechanism::kStreamMemoryOperations, array, error);
}

vmmshare_status vmmshare_fence_array_create_with_kernels(
    const vmmshare_device* device, std::uint64_t memory, std::uint64_t bytes,
    vmmshare_fence_array** array, vmmshare_error** error) {
  return Create(device, memory, bytes, vmm::FenceMechanism::kKernels, array,
                error);
}

void vmmshare_fence_array_close(vmmshare_fence_array* array) {
  vmm::c::Close(array);
}

std::uint64_t vmmshare_fence_array_size(const vmmshare_fence_array* array) {
  return Check(array).ok() ? array->array->size() : 0;
}

vmmshare_status vmmshare_fence_array_clear(vmmshare_fence_array* array,
                                           std::int64_t timeout_ns,
                                           vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(array));
    return array->array->Clear(vmm::c::DeadlineOf(timeout_ns));
  });
}

vmmshare_status vmmshare_fence_array_at(vmmshare_fence_array* array,
                                        std::uint64_t index,
                                        vmmshare_fence** fence,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(fence, "fence"));
    RETURN_IF_ERROR(Check(array));
    ASSIGN_OR_RETURN(vmm::Fence found, array->array->At(index));
    *fence = new vmmshare_fence(std::nullopt, std::move(found));
    return absl::OkStatus();
  });
}
