// Where the tensors of a set are to lie: see vmm/c/weights.h.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/c/internal/call.h"
#include "vmm/c/internal/convert.h"
#include "vmm/c/internal/tensor.h"
#include "vmm/c/weights.h"
#include "vmm/weights/internal/extent.h"

using vmm::c::Call;
using vmm::c::Check;
using vmm::c::CheckBits;
using vmm::c::CheckGiven;
using vmm::c::Clear;

namespace {

absl::StatusOr<std::vector<std::int64_t>> NumbersOf(const std::int64_t* numbers,
                                                    std::uint32_t rank,
                                                    absl::string_view name) {
  if (rank == 0) return std::vector<std::int64_t>();
  RETURN_IF_ERROR(CheckGiven(numbers, name));
  return std::vector<std::int64_t>(numbers, numbers + rank);
}

}  // namespace

vmmshare_status vmmshare_weights_layout_create(const char* fingerprint,
                                               vmmshare_weights_layout** layout,
                                               vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Clear(layout, "layout"));
    vmm::TensorManifest named;  // Whoever writes the set is refused it, too.
    named.fingerprint = fingerprint == nullptr ? "" : fingerprint;
    RETURN_IF_ERROR(vmm::weights::CheckNotes(named));
    *layout = new vmmshare_weights_layout(
        {.fingerprint = std::move(named.fingerprint)});
    return absl::OkStatus();
  });
}

void vmmshare_weights_layout_close(vmmshare_weights_layout* layout) {
  vmm::c::Close(layout);
}

vmmshare_status vmmshare_weights_layout_note(vmmshare_weights_layout* layout,
                                             const char* key, const char* value,
                                             vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(layout));
    RETURN_IF_ERROR(CheckGiven(key, "key"));
    RETURN_IF_ERROR(CheckGiven(value, "value"));
    // Before there is memory, and while the caller knows where it is from.
    RETURN_IF_ERROR(
        vmm::weights::CheckNote(layout->layout.manifest(), key, value));
    layout->layout.Note(key, value);
    return absl::OkStatus();
  });
}

vmmshare_status vmmshare_weights_layout_add(vmmshare_weights_layout* layout,
                                            const vmmshare_tensor* tensor,
                                            std::uint64_t* place,
                                            vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (place != nullptr) *place = 0;
    RETURN_IF_ERROR(Check(layout));
    RETURN_IF_ERROR(CheckGiven(tensor, "tensor"));
    ASSIGN_OR_RETURN(
        const vmmshare_tensor given,
        vmm::c::ReadOptions(tensor, vmm::c::kTensorBytes, "vmmshare_tensor"));
    RETURN_IF_ERROR(CheckGiven(given.name, "name"));
    RETURN_IF_ERROR(CheckBits(given.flags,
                              VMMSHARE_TENSOR_ALIAS | VMMSHARE_TENSOR_CHECKSUM,
                              "flags"));
    RETURN_IF_ERROR(CheckBits(given.reserved, 0, "reserved"));
    if (given.rank > vmm::kMaxTensorRank) {
      return absl::InvalidArgumentError(absl::StrCat(
          given.rank, " dimensions; at most ", vmm::kMaxTensorRank));
    }
    const auto dtype = static_cast<vmm::DType>(given.dtype);
    if (given.dtype > UINT8_MAX || vmm::SizeOf(dtype) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype ", given.dtype, "; expected one of VMMSHARE_DTYPE_*"));
    }
    ASSIGN_OR_RETURN(auto shape, NumbersOf(given.shape, given.rank, "shape"));
    std::vector<std::int64_t> strides;
    if (given.strides != nullptr) {
      ASSIGN_OR_RETURN(strides,
                       NumbersOf(given.strides, given.rank, "strides"));
    }
    std::size_t added = 0;
    if ((given.flags & VMMSHARE_TENSOR_ALIAS) != 0) {
      ASSIGN_OR_RETURN(
          added, layout->layout.AddAlias(given.name, given.alias_of, dtype,
                                         std::move(shape), std::move(strides),
                                         given.offset));
    } else {
      ASSIGN_OR_RETURN(added,
                       layout->layout.Add(given.name, dtype, std::move(shape),
                                          std::move(strides)));
    }
    if (place != nullptr) *place = added;
    return absl::OkStatus();
  });
}

std::uint64_t vmmshare_weights_layout_size(
    const vmmshare_weights_layout* layout) {
  return Check(layout).ok() ? layout->layout.size() : 0;
}

vmmshare_status vmmshare_weights_layout_tensor(
    const vmmshare_weights_layout* layout, std::uint64_t place,
    vmmshare_tensor* tensor, vmmshare_error** error) {
  return Call(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(Check(layout));
    return vmm::c::Describe(layout->layout.manifest().tensors, place, tensor);
  });
}
