#include "vmm/c/internal/tensor.h"

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/tool/json.h"

namespace vmm::c {

absl::Status Describe(const std::vector<TensorInfo>& tensors,
                      std::uint64_t place, vmmshare_tensor* tensor) {
  RETURN_IF_ERROR(CheckGiven(tensor, "tensor"));
  RETURN_IF_ERROR(CheckOptions(tensor, tensor->struct_size, sizeof(*tensor),
                               kTensorBytes, "vmmshare_tensor"));
  if (place >= tensors.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", place, " of ", tensors.size()));
  }
  const TensorInfo& info = tensors[static_cast<std::size_t>(place)];
  tensor->name = info.name.c_str();
  tensor->dtype = static_cast<std::uint32_t>(info.dtype);
  tensor->rank = static_cast<std::uint32_t>(info.shape.size());
  tensor->shape = info.shape.data();
  tensor->strides = info.strides.data();
  tensor->offset = info.offset;
  tensor->bytes = info.extent();
  tensor->alias_of = info.alias_of.value_or(0);
  tensor->checksum = info.checksum.value_or(0);
  tensor->flags = 0;
  if (info.alias_of.has_value()) tensor->flags |= VMMSHARE_TENSOR_ALIAS;
  if (info.checksum.has_value()) tensor->flags |= VMMSHARE_TENSOR_CHECKSUM;
  tensor->reserved = 0;
  return absl::OkStatus();
}

vmmshare_text* JsonOf(const std::map<std::string, std::string>& metadata) {
  return new vmmshare_text{tool::JsonText(metadata)};
}

}  // namespace vmm::c
