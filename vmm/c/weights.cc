// Tensor sets that are complete: see vmm/c/weights.h.
#include "vmm/c/weights.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/handles.h"
#include "vmm/c/internal/tensor.h"
#include "vmm/weights/tensor_set.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckGiven;
using vmm::c::Clear;

struct vmmshare_weights : vmm::c::Handle<vmm::c::HandleType::kWeights> {
  vmmshare_weights(const vmmshare_memory& in, vmm::TensorSet opened)
      : memory(in.held), set(std::move(opened)) {}
  // The set goes before its memory.
  const std::shared_ptr<const vmmshare_memory::Any> memory;
  const vmm::TensorSet set;
};

vmmshare_status vmmshare_weights_open(const vmmshare_driver* driver,
                                      const vmmshare_memory* memory,
                                      vmmshare_weights** weights,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(weights, "weights"));
    RETURN_IF_ERROR(Check(driver));
    RETURN_IF_ERROR(Check(memory));
    ASSIGN_OR_RETURN(
        auto opened,
        vmm::TensorSet::Open(driver->driver, vmmshare_memory_address(memory),
                             vmmshare_memory_requested_size(memory)));
    *weights = new vmmshare_weights(*memory, std::move(opened));
    return absl::OkStatus();
  });
}

void vmmshare_weights_close(vmmshare_weights* weights) {
  vmm::c::Close(weights);
}

std::uint64_t vmmshare_weights_count(const vmmshare_weights* weights) {
  return Check(weights).ok() ? weights->set.manifest().tensors.size() : 0;
}

std::uint64_t vmmshare_weights_generation(const vmmshare_weights* weights) {
  return Check(weights).ok() ? weights->set.manifest().generation : 0;
}

const char* vmmshare_weights_fingerprint(const vmmshare_weights* weights) {
  return Check(weights).ok() ? weights->set.manifest().fingerprint.c_str() : "";
}

vmmshare_status vmmshare_weights_metadata(const vmmshare_weights* weights,
                                          vmmshare_text** json,
                                          vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(json, "json"));
    RETURN_IF_ERROR(Check(weights));
    *json = vmm::c::JsonOf(weights->set.manifest().metadata);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_weights_tensor(const vmmshare_weights* weights,
                                        std::uint64_t place,
                                        vmmshare_tensor* tensor,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(weights));
    return vmm::c::Describe(weights->set.manifest().tensors, place, tensor);
  });
}

vmmshare_status vmmshare_weights_find(const vmmshare_weights* weights,
                                      const char* name, std::uint64_t* place,
                                      vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(place, "place"));
    RETURN_IF_ERROR(Check(weights));
    RETURN_IF_ERROR(CheckGiven(name, "name"));
    const vmm::TensorInfo* found = weights->set.Find(name);
    if (found == nullptr) {
      return absl::NotFoundError("the set has no tensor of this name");
    }
    *place = static_cast<std::uint64_t>(found -
                                        weights->set.manifest().tensors.data());
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_weights_verify(const vmmshare_weights* weights,
                                        std::uint64_t* compared,
                                        vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (compared != nullptr) *compared = 0;
    RETURN_IF_ERROR(Check(weights));
    ASSIGN_OR_RETURN(const std::size_t count, weights->set.Verify());
    if (compared != nullptr) *compared = count;
    return absl::OkStatus();
  });
}
