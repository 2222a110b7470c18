// The bytes of a manifest.
#include "vmm/weights/manifest.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/wire.h"

namespace vmm {
namespace {

constexpr std::array<std::uint8_t, 8> kMagic = {'V', 'M', 'M', 'S',
                                                'W', 'G', 'T', 'S'};
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHead = 48;
constexpr std::size_t kEntryHead = 8;
constexpr std::size_t kTensorHead = 24;
constexpr std::size_t kDimensionBytes = 16;
constexpr std::uint8_t kAlias = 1;
constexpr std::uint8_t kChecksum = 2;

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not the manifest of a tensor set: ", what));
}

absl::Status TooMany(absl::string_view what, std::uint64_t has,
                     std::uint64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the manifest of a tensor set with ", has, " ", what,
                   "; at most ", limit, " are read"));
}

// False when it is not there.
bool TakeText(WireReader& in, std::size_t size, std::string* text) {
  if (size > in.left()) return false;
  text->resize(size);
  in.TakeBytes({reinterpret_cast<std::uint8_t*>(text->data()), size});
  return true;
}

void PutTensor(WireWriter& out, const TensorInfo& tensor) {
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(tensor.name.size()));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(tensor.dtype));
  out.Put<std::uint8_t>(static_cast<std::uint8_t>(tensor.shape.size()));
  out.Put<std::uint8_t>(
      static_cast<std::uint8_t>((tensor.alias_of.has_value() ? kAlias : 0) |
                                (tensor.checksum.has_value() ? kChecksum : 0)));
  out.PutZeros(3);
  out.Put<std::uint32_t>(tensor.alias_of.value_or(0));
  out.Put<std::uint32_t>(tensor.checksum.value_or(0));
  out.Put<std::uint64_t>(tensor.offset);
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    out.Put<std::uint64_t>(static_cast<std::uint64_t>(tensor.shape[i]));
    out.Put<std::uint64_t>(static_cast<std::uint64_t>(tensor.strides[i]));
  }
  out.PutText(tensor.name);
}

absl::StatusOr<TensorInfo> TakeTensor(WireReader& in) {
  TensorInfo tensor;
  const auto name_size = in.Take<std::uint16_t>();
  const auto dtype = in.Take<std::uint8_t>();
  const auto rank = in.Take<std::uint8_t>();
  const auto flags = in.Take<std::uint8_t>();
  const bool zeros = in.TakeZeros(3);
  const auto alias_of = in.Take<std::uint32_t>();
  const auto checksum = in.Take<std::uint32_t>();
  tensor.offset = in.Take<std::uint64_t>();
  if (in.overrun() || !zeros || (flags & ~(kAlias | kChecksum)) != 0 ||
      ((flags & kAlias) == 0 && alias_of != 0) ||
      ((flags & kChecksum) == 0 && checksum != 0)) {
    return Damaged("a tensor's field has a value that it cannot have");
  }
  tensor.dtype = static_cast<DType>(dtype);
  if (SizeOf(tensor.dtype) == 0) {
    return absl::UnimplementedError(
        absl::StrCat("a tensor of dtype number ", dtype,
                     ", which this vmmshare does not know"));
  }
  if (rank > kMaxTensorRank) return TooMany("dimensions", rank, kMaxTensorRank);
  if (rank * kDimensionBytes > in.left()) return Damaged("it is cut");
  tensor.shape.resize(rank);
  tensor.strides.resize(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    tensor.shape[i] = static_cast<std::int64_t>(in.Take<std::uint64_t>());
    tensor.strides[i] = static_cast<std::int64_t>(in.Take<std::uint64_t>());
  }
  if (!TakeText(in, name_size, &tensor.name)) return Damaged("it is cut");
  if ((flags & kAlias) != 0) tensor.alias_of = alias_of;
  if ((flags & kChecksum) != 0) tensor.checksum = checksum;
  return tensor;
}

// The fields behind the head and before the checksum, which is right.
absl::Status TakeBody(WireReader& in, std::uint32_t tensors,
                      std::uint32_t metadata, std::uint32_t fingerprint,
                      TensorManifest& manifest) {
  if (!TakeText(in, fingerprint, &manifest.fingerprint)) {
    return Damaged("it is cut");
  }
  for (std::uint32_t i = 0; i < metadata; ++i) {
    const auto key_size = in.Take<std::uint32_t>();
    const auto value_size = in.Take<std::uint32_t>();
    std::string key;
    std::string value;
    if (in.overrun() || !TakeText(in, key_size, &key) ||
        !TakeText(in, value_size, &value)) {
      return Damaged("it is cut");
    }
    // One way to write each only.
    if (!manifest.metadata.empty() &&
        key <= manifest.metadata.rbegin()->first) {
      return Damaged("its metadata are not by key");
    }
    manifest.metadata.emplace_hint(manifest.metadata.end(), std::move(key),
                                   std::move(value));
  }
  // Before anything is allocated for them.
  if (tensors > in.left() / kTensorHead) return Damaged("it is cut");
  manifest.tensors.reserve(tensors);
  for (std::uint32_t i = 0; i < tensors; ++i) {
    ASSIGN_OR_RETURN(TensorInfo tensor, TakeTensor(in));
    manifest.tensors.push_back(std::move(tensor));
  }
  return in.left() == 0 ? absl::OkStatus()
                        : Damaged("it is longer than it says");
}

}  // namespace

std::uint64_t EncodedSize(const TensorManifest& manifest) {
  std::uint64_t size = kHead + manifest.fingerprint.size() + kCrcBytes;
  for (const auto& [key, value] : manifest.metadata) {
    size += kEntryHead + key.size() + value.size();
  }
  for (const TensorInfo& tensor : manifest.tensors) {
    size += kTensorHead + kDimensionBytes * tensor.shape.size() +
            tensor.name.size();
  }
  return size;
}

std::vector<std::uint8_t> EncodeManifest(const TensorManifest& manifest) {
  platform::Check(CheckManifest(manifest).ok(),
                  "a manifest that CheckManifest() refuses is not written");
  std::vector<std::uint8_t> bytes;
  bytes.reserve(EncodedSize(manifest));
  WireWriter out(bytes);
  out.PutBytes(kMagic);
  out.Put<std::uint16_t>(kVersion);
  out.PutZeros(6);
  out.Put<std::uint64_t>(manifest.generation);
  out.Put<std::uint64_t>(manifest.data_bytes);
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(manifest.tensors.size()));
  out.Put<std::uint32_t>(static_cast<std::uint32_t>(manifest.metadata.size()));
  out.Put<std::uint32_t>(
      static_cast<std::uint32_t>(manifest.fingerprint.size()));
  out.PutZeros(4);
  out.PutText(manifest.fingerprint);
  for (const auto& [key, value] : manifest.metadata) {
    out.Put<std::uint32_t>(static_cast<std::uint32_t>(key.size()));
    out.Put<std::uint32_t>(static_cast<std::uint32_t>(value.size()));
    out.PutText(key);
    out.PutText(value);
  }
  for (const TensorInfo& tensor : manifest.tensors) PutTensor(out, tensor);
  out.Put<std::uint32_t>(Crc32c(bytes));
  return bytes;
}

absl::StatusOr<TensorManifest> DecodeManifest(
    absl::Span<const std::uint8_t> bytes) {
  if (bytes.size() > kMaxManifestBytes) {
    return TooMany("bytes", bytes.size(), kMaxManifestBytes);
  }
  WireReader start(bytes);
  std::array<std::uint8_t, kMagic.size()> magic{};
  start.TakeBytes(absl::MakeSpan(magic));
  const auto version = start.Take<std::uint16_t>();
  if (start.overrun() || magic != kMagic) {
    return Damaged("it does not begin with the mark of one");
  }
  if (version > kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the manifest has format version ", version,
                     "; this vmmshare reads ", kVersion));
  }
  if (version != kVersion || bytes.size() < kHead + kCrcBytes) {
    return Damaged(
        absl::StrCat("version ", version, " in ", bytes.size(), " bytes"));
  }
  if (!TrailingCrc32c(bytes).is_right()) {
    return Damaged("its checksum is another");
  }
  // Without the checksum, which is then not taken for a field.
  WireReader in(bytes.first(bytes.size() - kCrcBytes)
                    .subspan(kMagic.size() + sizeof(version)));
  TensorManifest manifest;
  const bool first_zeros = in.TakeZeros(6);
  manifest.generation = in.Take<std::uint64_t>();
  manifest.data_bytes = in.Take<std::uint64_t>();
  const auto tensors = in.Take<std::uint32_t>();
  const auto metadata = in.Take<std::uint32_t>();
  const auto fingerprint = in.Take<std::uint32_t>();
  if (!in.TakeZeros(4) || !first_zeros) {
    return Damaged("reserved bytes are not zero");
  }
  if (tensors > kMaxTensors) return TooMany("tensors", tensors, kMaxTensors);
  if (metadata > kMaxMetadata) {
    return TooMany("metadata entries", metadata, kMaxMetadata);
  }
  RETURN_IF_ERROR(TakeBody(in, tensors, metadata, fingerprint, manifest));
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

}  // namespace vmm
