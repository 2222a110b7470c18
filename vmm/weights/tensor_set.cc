#include "vmm/weights/tensor_set.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/memory_copy.h"
#include "vmm/weights/internal/trailer.h"

namespace vmm {

using weights::kTrailerBytes;
using weights::MemoryCopy;

absl::StatusOr<TensorSet> TensorSet::Open(const platform::Driver& driver,
                                          CUdeviceptr address,
                                          std::uint64_t size) {
  if (size < kTrailerBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(size, " bytes of memory hold no tensor set"));
  }
  ASSIGN_OR_RETURN(MemoryCopy memory,
                   MemoryCopy::Open(driver, address, size, Access::kRead));
  // Copied before it is looked at: whoever wrote it may write on.
  std::vector<std::uint8_t> bytes(kTrailerBytes);
  RETURN_IF_ERROR(memory.Read(size - kTrailerBytes, absl::MakeSpan(bytes)));
  ASSIGN_OR_RETURN(const weights::Trailer trailer,
                   weights::DecodeTrailer(bytes, size));
  bytes.resize(static_cast<std::size_t>(trailer.manifest_bytes));
  RETURN_IF_ERROR(memory.Read(trailer.manifest_offset, absl::MakeSpan(bytes)));
  ASSIGN_OR_RETURN(TensorManifest manifest, DecodeManifest(bytes));
  if (manifest.data_bytes > trailer.manifest_offset ||
      manifest.generation == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor set of generation ", manifest.generation, " with ",
        manifest.data_bytes, " bytes of data before the manifest at ",
        trailer.manifest_offset));
  }
  return TensorSet(std::move(manifest),
                   std::make_unique<MemoryCopy>(std::move(memory)));
}

TensorSet::TensorSet(TensorManifest manifest,
                     std::unique_ptr<MemoryCopy> memory)
    : manifest_(std::move(manifest)),
      by_name_(manifest_.tensors.size()),
      memory_(std::move(memory)) {
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](std::uint32_t a, std::uint32_t b) {
              return manifest_.tensors[a].name < manifest_.tensors[b].name;
            });
}
TensorSet::~TensorSet() = default;
TensorSet::TensorSet(TensorSet&&) noexcept = default;
TensorSet& TensorSet::operator=(TensorSet&&) noexcept = default;

const TensorInfo* TensorSet::Find(absl::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [this](std::uint32_t tensor, absl::string_view wanted) {
                         return manifest_.tensors[tensor].name < wanted;
                       });
  if (found == by_name_.end() || manifest_.tensors[*found].name != name) {
    return nullptr;
  }
  return &manifest_.tensors[*found];
}

CUdeviceptr TensorSet::address(const TensorInfo& tensor) const {
  return memory_->address() + tensor.offset;
}

absl::StatusOr<std::size_t> TensorSet::Verify() const {
  std::vector<const TensorInfo*> tensors;
  std::vector<MemoryCopy::Part> parts;
  for (const TensorInfo& tensor : manifest_.tensors) {
    if (!tensor.checksum.has_value()) continue;
    tensors.push_back(&tensor);
    parts.push_back({tensor.offset, tensor.extent()});
  }
  ASSIGN_OR_RETURN(const std::vector<std::uint32_t> checksums,
                   memory_->Checksums(parts));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (checksums[i] == *tensors[i]->checksum) continue;
    return absl::DataLossError(absl::StrCat(
        "tensor \"", weights::Shown(tensors[i]->name), "\" has the checksum ",
        absl::Hex(checksums[i], absl::kZeroPad8), "; expected ",
        absl::Hex(*tensors[i]->checksum, absl::kZeroPad8),
        ": somebody wrote to it after it was sealed"));
  }
  return tensors.size();
}

}  // namespace vmm
