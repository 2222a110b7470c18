// How far the elements of a tensor reach, and what tensors may be; internal to vmm/.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_EXTENT_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_EXTENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "vmm/weights/manifest.h"

namespace vmm::weights {

// Sizes that are added and aligned without overflowing.
inline constexpr std::uint64_t kMaxBytes = INT64_MAX;

// TensorInfo::extent(), for any values: none when a length or stride is below 0,
// there are not as many strides as lengths, it passes kMaxBytes, or the dtype is
// none.
std::optional<std::uint64_t> ExtentOf(const TensorInfo& info);

// Row-major strides; none when they overflow.
std::optional<std::vector<std::int64_t>> DenseStrides(
    const std::vector<std::int64_t>& shape);

// OK for a name, shape and strides that a tensor may have.
absl::Status CheckTensor(const TensorInfo& info);
// OK when an alias lies within the bytes of `base`. REQUIRES: both are OK with
// CheckTensor().
absl::Status CheckAlias(const TensorInfo& alias, const TensorInfo& base);
absl::Status CheckNotes(const TensorManifest& manifest);
// OK for one more of its metadata, or another value of one: errors as CheckNotes().
absl::Status CheckNote(const TensorManifest& manifest, const std::string& key,
                       absl::string_view value);

// `text` as a message shows it: printable, and not too long.
std::string Shown(absl::string_view text);

// INVALID_ARGUMENT: the tensor `name`, and `why`.
absl::Status OfTensor(absl::string_view name, absl::string_view why);

// A name that two of them have; none when each has its own.
std::optional<absl::string_view> NameOfTwo(
    const std::vector<TensorInfo>& tensors);

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_EXTENT_H_
