// TensorManifest: which tensors lie in a range of memory, and where.
//
//   TensorLayout layout({.fingerprint = "sha256:..."});
//   auto embed = layout.Add("embed.weight", DType::kBFloat16, {32000, 4096});
//   std::uint64_t bytes = layout.size();       // of the memory to allocate
//
// Values, without memory and without a driver. tensor_set.h puts them into
// memory; docs/weights.md has the picture, docs/wire_format.md the bytes.
#ifndef VMMSHARE_VMM_WEIGHTS_MANIFEST_H_
#define VMMSHARE_VMM_WEIGHTS_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace vmm {

// What a tensor's elements are. The numbers are those of an array ticket
// (docs/wire_format.md), and never change.
enum class DType : std::uint8_t {
  kBool = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kUInt32 = 6,
  kInt32 = 7,
  kUInt64 = 8,
  kInt64 = 9,
  kFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kBFloat16 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E8M0FNU = 18,
  kFloat8E4M3FNUZ = 19,
  kFloat8E5M2FNUZ = 20,
};
// "bfloat16", as NumPy and PyTorch write it.
absl::string_view NameOf(DType dtype);
// INVALID_ARGUMENT for any other name; the message has those that there are.
absl::StatusOr<DType> DTypeOf(absl::string_view name);
// Bytes of an element.
std::uint64_t SizeOf(DType dtype);

// What a manifest may have at most. Readers refuse more before they allocate.
inline constexpr std::size_t kMaxTensors = 262'144;
inline constexpr std::size_t kMaxTensorName = 512;  // Bytes.
inline constexpr std::size_t kMaxTensorRank = 32;
inline constexpr std::size_t kMaxFingerprint = 256;  // Bytes.
inline constexpr std::size_t kMaxMetadata = 4'096;   // Entries.
inline constexpr std::size_t kMaxMetadataKey = 512;  // Bytes.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{64} << 20;
// Bytes. Every tensor that TensorLayout places begins at a multiple.
inline constexpr std::uint64_t kTensorAlignment = 256;

// One tensor. A value.
struct TensorInfo {
  std::string name;  // 1 to kMaxTensorName of printable ASCII.
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;    // Outermost dimension first.
  std::vector<std::int64_t> strides;  // In elements, none below 0.
  std::uint64_t offset = 0;           // Bytes from the beginning of the set.
  // The tensor, by its place in the manifest, in whose bytes this one lies: tied
  // weights, and views. That one is no alias itself and comes before.
  std::optional<std::uint32_t> alias_of = std::nullopt;
  // CRC-32C of its bytes as they lie, if whoever wrote them knew it. An alias has
  // none.
  std::optional<std::uint32_t> checksum = std::nullopt;

  // Bytes from its first element to the end of its last; 0 without elements.
  // REQUIRES: CheckManifest() is OK with it.
  std::uint64_t extent() const;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// All tensors of a set, by offset but for aliases. A value.
struct TensorManifest {
  // What the program calls the model and how it was made: a hash of its
  // configuration and files, for example. Printable ASCII; may be empty.
  std::string fingerprint;
  // Counts from 1, one more each time the set is replaced; 0 until it is sealed.
  std::uint64_t generation = 0;
  // Keys are printable ASCII; values are any text without a NUL, UTF-8 by
  // convention.
  std::map<std::string, std::string> metadata;
  std::uint64_t data_bytes = 0;  // Before the manifest.
  std::vector<TensorInfo> tensors;
  friend bool operator==(const TensorManifest&,
                         const TensorManifest&) = default;
};

// OK when every tensor lies within the data, at a multiple of its elements' size,
// no two overlap but an alias and what it is one of, names are unique, and no
// limit is passed. INVALID_ARGUMENT, RESOURCE_EXHAUSTED for a limit. Total: no
// value overflows.
absl::Status CheckManifest(const TensorManifest& manifest);

// Bytes of a manifest. REQUIRES: CheckManifest() is OK with it.
std::vector<std::uint8_t> EncodeManifest(const TensorManifest& manifest);
// How many these are, without writing them.
std::uint64_t EncodedSize(const TensorManifest& manifest);

// Total: takes any bytes. INVALID_ARGUMENT for what is no manifest, is damaged,
// or contradicts itself; RESOURCE_EXHAUSTED for one that passes a limit;
// UNIMPLEMENTED for a newer version, or a dtype that this version does not know.
absl::StatusOr<TensorManifest> DecodeManifest(
    absl::Span<const std::uint8_t> bytes);

// What of a manifest is the program's own.
struct TensorSetNotes {
  std::string fingerprint = {};
  std::map<std::string, std::string> metadata = {};
};

// Places tensors side by side, in the order in which they are added.
// Thread-compatible.
class TensorLayout {
 public:
  explicit TensorLayout(TensorSetNotes notes = {});

  // One more of the metadata, in place of what the key had.
  void Note(std::string key, std::string value) {
    manifest_.metadata[std::move(key)] = std::move(value);
  }

  // A dense tensor, or with `strides` one whose elements lie so; returns its place
  // in the manifest.
  //   INVALID_ARGUMENT    a name, shape or strides that no tensor has; a size
  //                       that does not fit 63 bits
  //   ALREADY_EXISTS      the name is taken
  //   RESOURCE_EXHAUSTED  one more tensor than kMaxTensors
  absl::StatusOr<std::size_t> Add(absl::string_view name, DType dtype,
                                  std::vector<std::int64_t> shape,
                                  std::vector<std::int64_t> strides = {});
  // A tensor in the bytes of tensor `of`, `offset` bytes behind its first element.
  // Errors as Add(); NOT_FOUND when there is no tensor `of`. What it is an alias
  // of, if that is one itself, is what `of` is.
  absl::StatusOr<std::size_t> AddAlias(absl::string_view name, std::size_t of,
                                       DType dtype,
                                       std::vector<std::int64_t> shape,
                                       std::vector<std::int64_t> strides = {},
                                       std::uint64_t offset = 0);

  const TensorManifest& manifest() const { return manifest_; }
  // Bytes of memory that the set takes at least, its manifest included.
  std::uint64_t size() const;

 private:
  absl::Status CheckNew(const TensorInfo& info) const;
  std::size_t Append(TensorInfo info);

  TensorManifest manifest_;
  std::unordered_map<std::string, std::size_t> places_;  // By name.
};

// The header of a safetensors file: which tensors it has, and where.
//
//   ASSIGN_OR_RETURN(auto header, ReadSafetensorsHeader("model.safetensors"));
//   for (const TensorInfo& tensor : header.tensors) {
//     ASSIGN_OR_RETURN(std::size_t place,
//                      layout.Add(tensor.name, tensor.dtype, tensor.shape));
//     reads.push_back({place, 0, {tensor.offset, tensor.extent(), tensor.extent()}});
//   }
//
// then TensorSetWriter::ReadFiles(). The format: a length of 8 bytes, little-endian;
// so many bytes of JSON; the data, which tensors fill without a gap
// (github.com/huggingface/safetensors, "Format").

// Bytes of JSON at most, as the format has it (MAX_HEADER_SIZE); that of a million
// tensors has as many.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

// A value.
struct SafetensorsHeader {
  // By offset, which is in the file; dense, row-major, none an alias, each with a
  // name of its own. TensorLayout::Add() judges the names.
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

// Of the JSON in a file of `file_size` bytes. Total: takes any bytes.
//   INVALID_ARGUMENT  what is no such header, is damaged, or contradicts itself or the
//                     file's size; a tensor of more than kMaxTensorRank dimensions
//   UNIMPLEMENTED     a dtype that is not known
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    absl::string_view json, std::uint64_t file_size);

// The same of a file, which the messages name. NOT_FOUND when there is none at `path`
// (UTF-8); others as the system answers.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(
    const std::string& path);

}  // namespace vmm

#endif  // VMMSHARE_VMM_WEIGHTS_MANIFEST_H_
