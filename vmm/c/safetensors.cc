#include "vmm/c/safetensors.h"

#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handle.h"
#include "vmm/c/internal/tensor.h"
#include "vmm/weights/manifest.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;
using vmm::c::Make;

struct vmmshare_safetensors : vmm::c::Handle<vmm::c::HandleType::kSafetensors> {
  explicit vmmshare_safetensors(vmm::SafetensorsHeader read)
      : header(std::move(read)) {}
  const vmm::SafetensorsHeader header;
};

vmmshare_status vmmshare_safetensors_open(const char* path,
                                          vmmshare_safetensors** header,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(header, "header"));
    RETURN_IF_ERROR(CheckGiven(path, "path"));
    return Make(header, vmm::ReadSafetensorsHeader(path));
  });
}

void vmmshare_safetensors_close(vmmshare_safetensors* header) {
  vmm::c::Close(header);
}

std::uint64_t vmmshare_safetensors_count(const vmmshare_safetensors* header) {
  return Check(header).ok() ? header->header.tensors.size() : 0;
}

vmmshare_status vmmshare_safetensors_tensor(const vmmshare_safetensors* header,
                                            std::uint64_t place,
                                            vmmshare_tensor* tensor,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(header));
    return vmm::c::Describe(header->header.tensors, place, tensor);
  });
}

vmmshare_status vmmshare_safetensors_metadata(
    const vmmshare_safetensors* header, vmmshare_text** json,
    vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(header));
    *json = vmm::c::JsonOf(header->header.metadata);
    return absl::OkStatus();
  });
}
