// What a manifest may say: sums are made so that no value of a peer's overflows.
#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/manifest.h"

namespace vmm {
namespace {

using weights::OfTensor;
using weights::Shown;

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isprint(c); });
}

absl::Status CheckMetadata(absl::string_view key, absl::string_view value) {
  if (!key.empty() && key.size() <= kMaxMetadataKey && IsPrintable(key) &&
      value.size() <= kMaxManifestBytes &&
      value.find('\0') == absl::string_view::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("metadata \"", Shown(key), "\", a key of ", key.size(),
                   " bytes with a value of ", value.size(),
                   "; expected a key of 1 to ", kMaxMetadataKey,
                   " of printable ASCII, and a value without NUL of at most ",
                   kMaxManifestBytes, " bytes"));
}

absl::Status TooMany(absl::string_view what, std::uint64_t has,
                     std::uint64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("a tensor set of ", has, " ",
                                                   what, "; at most ", limit,
                                                   ". Make several sets."));
}

// Whether a dense tensor of that shape would fit as well. Strides of 0 reach no
// further however many elements they make, of which readers make sums. A length of
// 0 counts as 1, as in DenseStrides().
bool IsFarTooMany(const TensorInfo& info) {
  std::uint64_t bytes = SizeOf(info.dtype);
  for (const std::int64_t each : info.shape) {
    const auto length =
        static_cast<std::uint64_t>(std::max<std::int64_t>(each, 1));
    if (bytes > weights::kMaxBytes / length) return true;
    bytes *= length;
  }
  return false;
}

}  // namespace

absl::Status CheckManifest(const TensorManifest& manifest) {
  RETURN_IF_ERROR(weights::CheckNotes(manifest));
  if (manifest.tensors.size() > kMaxTensors) {
    return TooMany("tensors", manifest.tensors.size(), kMaxTensors);
  }
  if (manifest.data_bytes > weights::kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(manifest.data_bytes, " bytes of data"));
  }
  std::uint64_t end = 0;  // Of what is no alias, so far.
  for (const TensorInfo& tensor : manifest.tensors) {
    RETURN_IF_ERROR(weights::CheckTensor(tensor));
    const std::uint64_t extent = tensor.extent();
    if (tensor.offset > manifest.data_bytes ||
        extent > manifest.data_bytes - tensor.offset) {
      return OfTensor(tensor.name,
                      absl::StrCat("has ", extent, " bytes at ", tensor.offset,
                                   ", outside of the ", manifest.data_bytes,
                                   " bytes of data"));
    }
    if (!tensor.alias_of.has_value()) {
      if (tensor.offset < end) {
        return OfTensor(
            tensor.name,
            absl::StrCat("begins at byte ", tensor.offset,
                         ", before the end of another one at ", end));
      }
      end = tensor.offset + extent;
      continue;
    }
    const auto place =
        static_cast<std::size_t>(&tensor - manifest.tensors.data());
    if (*tensor.alias_of >= place) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", place, " is an alias of tensor ",
                       *tensor.alias_of, "; expected one before it"));
    }
    RETURN_IF_ERROR(
        weights::CheckAlias(tensor, manifest.tensors[*tensor.alias_of]));
  }
  if (const auto twice = weights::NameOfTwo(manifest.tensors)) {
    return absl::InvalidArgumentError(
        absl::StrCat("two tensors have the name \"", Shown(*twice), "\""));
  }
  if (EncodedSize(manifest) > kMaxManifestBytes) {
    return TooMany("bytes of names and metadata", EncodedSize(manifest),
                   kMaxManifestBytes);
  }
  return absl::OkStatus();
}

namespace weights {

absl::Status CheckTensor(const TensorInfo& info) {
  if (info.name.empty() || info.name.size() > kMaxTensorName ||
      !IsPrintable(info.name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor's name of ", info.name.size(), " bytes, \"", Shown(info.name),
        "\"; expected 1 to ", kMaxTensorName, " of printable ASCII"));
  }
  const auto wrong = [&info](absl::string_view what) {
    return OfTensor(info.name, what);
  };
  if (info.shape.size() > kMaxTensorRank) {
    return wrong(absl::StrCat("has ", info.shape.size(),
                              " dimensions; at most ", kMaxTensorRank));
  }
  const std::optional<std::uint64_t> extent = ExtentOf(info);
  if (!extent.has_value()) {
    return wrong(
        "has a length or stride below 0, another number of strides than of "
        "lengths, more bytes than fit 63 bits, or a dtype that there is not");
  }
  if (IsFarTooMany(info)) {
    return wrong("has more elements than fit 63 bits");
  }
  if (info.offset % SizeOf(info.dtype) != 0) {
    return wrong(absl::StrCat("begins at byte ", info.offset,
                              ", no multiple of the ", SizeOf(info.dtype),
                              " bytes of its elements"));
  }
  if (info.alias_of.has_value() && info.checksum.has_value()) {
    return wrong("is an alias with a checksum");
  }
  return absl::OkStatus();
}

absl::Status CheckAlias(const TensorInfo& alias, const TensorInfo& base) {
  const std::uint64_t room = base.extent();
  const std::uint64_t extent = alias.extent();
  if (base.alias_of.has_value()) {
    return OfTensor(alias.name,
                    absl::StrCat("is an alias of \"", Shown(base.name),
                                 "\", which is one itself"));
  }
  if (alias.offset < base.offset || alias.offset - base.offset > room ||
      extent > room - (alias.offset - base.offset)) {
    return OfTensor(alias.name,
                    absl::StrCat("has ", extent, " bytes at ", alias.offset,
                                 ", outside of \"", Shown(base.name),
                                 "\", whose alias it is"));
  }
  return absl::OkStatus();
}

absl::Status CheckNotes(const TensorManifest& manifest) {
  if (manifest.fingerprint.size() > kMaxFingerprint ||
      !IsPrintable(manifest.fingerprint)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a fingerprint of ", manifest.fingerprint.size(), " bytes, \"",
        Shown(manifest.fingerprint), "\"; expected at most ", kMaxFingerprint,
        " of printable ASCII"));
  }
  if (manifest.metadata.size() > kMaxMetadata) {
    return TooMany("metadata entries", manifest.metadata.size(), kMaxMetadata);
  }
  for (const auto& [key, value] : manifest.metadata) {
    RETURN_IF_ERROR(CheckMetadata(key, value));
  }
  return absl::OkStatus();
}

absl::Status CheckNote(const TensorManifest& manifest, const std::string& key,
                       absl::string_view value) {
  RETURN_IF_ERROR(CheckMetadata(key, value));
  const std::size_t has = manifest.metadata.size();
  if (has >= kMaxMetadata && !manifest.metadata.contains(key)) {
    return TooMany("metadata entries", has + 1, kMaxMetadata);
  }
  return absl::OkStatus();
}

}  // namespace weights
}  // namespace vmm
