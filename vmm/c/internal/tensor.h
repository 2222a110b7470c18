// Tensors, their metadata and their layout as the C interface has them.
#ifndef VMMSHARE_VMM_C_INTERNAL_TENSOR_H_
#define VMMSHARE_VMM_C_INTERNAL_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "vmm/c/internal/handle.h"
#include "vmm/c/weights.h"
#include "vmm/weights/manifest.h"

namespace vmm::c {

// Of a vmmshare_tensor in version 1.
inline constexpr std::size_t kTensorBytes = 72;

// `*tensor` is the one at `place`; its pointers are those of `tensors`. OUT_OF_RANGE;
// INVALID_ARGUMENT for a `tensor` that is null or has no size.
absl::Status Describe(const std::vector<TensorInfo>& tensors,
                      std::uint64_t place, vmmshare_tensor* tensor);

// The caller's to free.
vmmshare_text* JsonOf(const std::map<std::string, std::string>& metadata);

}  // namespace vmm::c

struct vmmshare_weights_layout
    : vmm::c::Handle<vmm::c::HandleType::kWeightsLayout> {
  explicit vmmshare_weights_layout(vmm::TensorSetNotes notes)
      : layout(std::move(notes)) {}
  vmm::TensorLayout layout;
};

#endif  // VMMSHARE_VMM_C_INTERNAL_TENSOR_H_
