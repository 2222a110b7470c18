#include "vmm/weights/internal/extent.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace vmm {

std::uint64_t TensorInfo::extent() const {
  return weights::ExtentOf(*this).value_or(0);
}

namespace weights {

std::string Shown(absl::string_view text) {
  constexpr std::size_t kMost = 80;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMost)),
                      text.size() > kMost ? "..." : "");
}

absl::Status OfTensor(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor \"", Shown(name), "\" ", why));
}

std::optional<absl::string_view> NameOfTwo(
    const std::vector<TensorInfo>& tensors) {
  std::vector<absl::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return std::nullopt;
  return *twice;
}

std::optional<std::uint64_t> ExtentOf(const TensorInfo& info) {
  const std::uint64_t size = SizeOf(info.dtype);
  if (size == 0 || info.shape.size() != info.strides.size()) {
    return std::nullopt;
  }
  std::uint64_t elements = 1;
  bool is_empty = false;
  for (std::size_t i = 0; i < info.shape.size(); ++i) {
    if (info.shape[i] < 0 || info.strides[i] < 0) return std::nullopt;
    is_empty |= info.shape[i] == 0;
  }
  if (is_empty) return 0;
  for (std::size_t i = 0; i < info.shape.size(); ++i) {
    const auto steps = static_cast<std::uint64_t>(info.shape[i]) - 1;
    const auto stride = static_cast<std::uint64_t>(info.strides[i]);
    if (steps == 0 || stride == 0) continue;
    if (stride > (kMaxBytes - elements) / steps) return std::nullopt;
    elements += steps * stride;
  }
  if (elements > kMaxBytes / size) return std::nullopt;
  return elements * size;
}

std::optional<std::vector<std::int64_t>> DenseStrides(
    const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t next = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = next;
    const std::int64_t length = std::max<std::int64_t>(shape[i], 1);
    if (next > INT64_MAX / length) return std::nullopt;
    next *= length;
  }
  return strides;
}

}  // namespace weights
}  // namespace vmm
