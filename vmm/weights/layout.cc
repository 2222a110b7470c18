#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/trailer.h"
#include "vmm/weights/manifest.h"

namespace vmm {
namespace {

using weights::kMaxBytes;
using weights::Shown;

absl::StatusOr<TensorInfo> Make(absl::string_view name, DType dtype,
                                std::vector<std::int64_t> shape,
                                std::vector<std::int64_t> strides) {
  TensorInfo info;
  info.name = std::string(name);
  info.dtype = dtype;
  info.shape = std::move(shape);
  info.strides = std::move(strides);
  if (info.strides.empty()) {
    std::optional<std::vector<std::int64_t>> dense =
        weights::DenseStrides(info.shape);
    if (!dense.has_value()) {
      return weights::OfTensor(name, "has more elements than fit 63 bits");
    }
    info.strides = *std::move(dense);
  }
  return info;
}

}  // namespace

TensorLayout::TensorLayout(TensorSetNotes notes) {
  manifest_.fingerprint = std::move(notes.fingerprint);
  manifest_.metadata = std::move(notes.metadata);
}

absl::Status TensorLayout::CheckNew(const TensorInfo& info) const {
  RETURN_IF_ERROR(weights::CheckTensor(info));
  if (places_.contains(info.name)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "the set has a tensor \"", Shown(info.name), "\" already"));
  }
  if (manifest_.tensors.size() >= kMaxTensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tensor \"", Shown(info.name), "\" is one more than the ",
                     kMaxTensors, " that a set may have. Make several sets."));
  }
  return absl::OkStatus();
}

std::size_t TensorLayout::Append(TensorInfo info) {
  const std::size_t place = manifest_.tensors.size();
  places_.emplace(info.name, place);
  manifest_.tensors.push_back(std::move(info));
  return place;
}

absl::StatusOr<std::size_t> TensorLayout::Add(
    absl::string_view name, DType dtype, std::vector<std::int64_t> shape,
    std::vector<std::int64_t> strides) {
  ASSIGN_OR_RETURN(TensorInfo info,
                   Make(name, dtype, std::move(shape), std::move(strides)));
  RETURN_IF_ERROR(CheckNew(info));
  const std::uint64_t extent = info.extent();
  const std::uint64_t begin = weights::AlignUp(manifest_.data_bytes);
  // Some room for the manifest behind it, too.
  if (begin > kMaxBytes / 2 || extent > kMaxBytes / 2 - begin) {
    return weights::OfTensor(
        name, absl::StrCat("has ", extent, " bytes, too many behind ", begin));
  }
  info.offset = begin;
  manifest_.data_bytes = begin + extent;
  return Append(std::move(info));
}

absl::StatusOr<std::size_t> TensorLayout::AddAlias(
    absl::string_view name, std::size_t of, DType dtype,
    std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
    std::uint64_t offset) {
  if (of >= manifest_.tensors.size()) {
    return absl::NotFoundError(
        absl::StrCat("tensor \"", Shown(name), "\" is an alias of number ", of,
                     ", and there are ", manifest_.tensors.size()));
  }
  ASSIGN_OR_RETURN(TensorInfo info,
                   Make(name, dtype, std::move(shape), std::move(strides)));
  const TensorInfo& near = manifest_.tensors[of];
  info.alias_of = near.alias_of.value_or(static_cast<std::uint32_t>(of));
  if (offset > kMaxBytes) {
    return weights::OfTensor(
        name, absl::StrCat("begins ", offset, " bytes behind another one"));
  }
  info.offset = near.offset + offset;
  RETURN_IF_ERROR(CheckNew(info));
  RETURN_IF_ERROR(weights::CheckAlias(info, manifest_.tensors[*info.alias_of]));
  return Append(std::move(info));
}

std::uint64_t TensorLayout::size() const {
  return weights::AlignUp(manifest_.data_bytes) +
         weights::AlignUp(EncodedSize(manifest_) + weights::kTrailerBytes);
}

}  // namespace vmm
