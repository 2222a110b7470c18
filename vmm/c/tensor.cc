#include "vmm/c/internal/tensor.h"

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/tool/json.h"

namespace vmm::c {

absl::Status Describe(const std::vector<TensorInfo>& tensors,
                      std::uint64_t place, vmmshare_tensor* tensor) {
  RETURN_IF_ERROR(
      CheckResult(tensor, kTensorBytes, "vmmshare_tensor", "tensor"));
  if (place >= tensors.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", place, " of ", tensors.size()));
  }
  const TensorInfo& info = tensors[static_cast<std::size_t>(place)];
  vmmshare_tensor out{};
  out.name = info.name.c_str();
  out.dtype = static_cast<std::uint32_t>(info.dtype);
  out.rank = static_cast<std::uint32_t>(info.shape.size());
  out.shape = info.shape.data();
  out.strides = info.strides.data();
  out.offset = info.offset;
  out.bytes = info.extent();
  out.alias_of = info.alias_of.value_or(0);
  out.checksum = info.checksum.value_or(0);
  if (info.alias_of.has_value()) out.flags |= VMMSHARE_TENSOR_ALIAS;
  if (info.checksum.has_value()) out.flags |= VMMSHARE_TENSOR_CHECKSUM;
  WriteResult(out, tensor);
  return absl::OkStatus();
}

vmmshare_text* JsonOf(const std::map<std::string, std::string>& metadata) {
  return new vmmshare_text{tool::JsonText(metadata)};
}

}  // namespace vmm::c
