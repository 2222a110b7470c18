#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/base/status_macros.h"
#include "platform/base/wire.h"
#include "platform/os/file_reader.h"
#include "vmm/weights/internal/extent.h"
#include "vmm/weights/internal/safetensors_json.h"
#include "vmm/weights/manifest.h"

namespace vmm {
namespace {

using weights::OfTensor;
using weights::SaidTensor;
using weights::Shown;

constexpr std::uint64_t kLengthBytes = 8;

struct Name {
  absl::string_view name;
  DType dtype;
};
constexpr std::array<Name, 19> kNames = {{
    {"BOOL", DType::kBool},
    {"U8", DType::kUInt8},
    {"I8", DType::kInt8},
    {"U16", DType::kUInt16},
    {"I16", DType::kInt16},
    {"U32", DType::kUInt32},
    {"I32", DType::kInt32},
    {"U64", DType::kUInt64},
    {"I64", DType::kInt64},
    {"F16", DType::kFloat16},
    {"BF16", DType::kBFloat16},
    {"F32", DType::kFloat32},
    {"F64", DType::kFloat64},
    {"C64", DType::kComplex64},
    {"F8_E4M3", DType::kFloat8E4M3FN},
    {"F8_E5M2", DType::kFloat8E5M2},
    {"F8_E8M0", DType::kFloat8E8M0FNU},
    {"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    {"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
}};

absl::StatusOr<DType> DTypeOf(const SaidTensor& said) {
  for (const Name& one : kNames) {
    if (one.name == said.dtype) return one.dtype;
  }
  std::string known;
  for (const Name& one : kNames) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", one.name);
  }
  return absl::UnimplementedError(
      absl::StrCat("tensor \"", Shown(said.name), "\" has the dtype \"",
                   Shown(said.dtype), "\"; known are ", known));
}

// The data begin at `begin` of the file, and have `room` bytes.
absl::StatusOr<TensorInfo> TensorOf(SaidTensor said, std::uint64_t begin,
                                    std::uint64_t room) {
  TensorInfo tensor;
  ASSIGN_OR_RETURN(tensor.dtype, DTypeOf(said));
  tensor.name = std::move(said.name);
  tensor.shape = std::move(said.shape);
  const std::vector<std::int64_t>& offsets = said.data_offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      static_cast<std::uint64_t>(offsets[1]) > room) {
    return OfTensor(
        tensor.name,
        absl::StrCat("has other data_offsets than a beginning and an end "
                     "within the ",
                     room, " bytes of data"));
  }
  std::optional<std::vector<std::int64_t>> strides =
      weights::DenseStrides(tensor.shape);
  if (strides.has_value()) tensor.strides = *std::move(strides);
  const std::optional<std::uint64_t> extent = weights::ExtentOf(tensor);
  if (!extent.has_value()) {
    return OfTensor(tensor.name, "has a shape of more bytes than fit 63 bits");
  }
  const auto bytes = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  if (*extent != bytes) {
    return OfTensor(tensor.name, absl::StrCat("has ", bytes,
                                              " bytes of data; of its shape "
                                              "and dtype expected ",
                                              *extent));
  }
  tensor.offset = begin + static_cast<std::uint64_t>(offsets[0]);
  return tensor;
}

// That they fill the data. REQUIRES: by offset.
absl::Status CheckNoGap(const SafetensorsHeader& header, std::uint64_t begin,
                        std::uint64_t room) {
  std::uint64_t end = begin;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.offset != end) {
      return OfTensor(tensor.name,
                      absl::StrCat("begins at ", tensor.offset - begin,
                                   " of the data, and the one before it ends "
                                   "at ",
                                   end - begin));
    }
    end += tensor.extent();
  }
  if (end == begin + room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "its tensors have ", end - begin, " bytes, and its data ", room));
}

// Errors without the words that they begin with.
absl::StatusOr<SafetensorsHeader> Decode(absl::string_view json,
                                         std::uint64_t begin,
                                         std::uint64_t room) {
  ASSIGN_OR_RETURN(weights::SaidHeader said,
                   weights::ReadSafetensorsJson(json));
  SafetensorsHeader header;
  header.metadata = std::move(said.metadata);
  header.tensors.reserve(said.tensors.size());
  for (SaidTensor& one : said.tensors) {
    ASSIGN_OR_RETURN(TensorInfo tensor, TensorOf(std::move(one), begin, room));
    header.tensors.push_back(std::move(tensor));
  }
  if (const auto twice = weights::NameOfTwo(header.tensors)) {
    return OfTensor(*twice, "is there twice");
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& one, const TensorInfo& other) {
                     // Those without bytes before the one that begins there.
                     return one.offset != other.offset
                                ? one.offset < other.offset
                                : one.extent() < other.extent();
                   });
  RETURN_IF_ERROR(CheckNoGap(header, begin, room));
  return header;
}

absl::Status CheckLength(std::uint64_t length, std::uint64_t file_size) {
  if (file_size >= kLengthBytes && length <= file_size - kLengthBytes &&
      length <= kMaxSafetensorsHeader) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "its header is said to have ", length, " bytes, and the file has ",
      file_size, "; a header has at most ", kMaxSafetensorsHeader));
}

// Puts around an error what it is of, and what to do.
absl::Status Tell(absl::string_view path, const absl::Status& why) {
  const bool is_damaged = absl::IsInvalidArgument(why);
  return absl::Status(
      why.code(),
      absl::StrCat(path, path.empty() ? "" : ": ",
                   is_damaged ? "no safetensors file, or a damaged one: " : "",
                   why.message(),
                   is_damaged ? ". Save or fetch the file anew."
                              : ". Convert the tensor to one of these."));
}

absl::Status CannotRead(const std::string& path, const absl::Status& why) {
  return absl::Status(why.code(),
                      absl::StrCat(path, " cannot be read: ", why.message(),
                                   ". Check the path, and who may read it."));
}

struct HeaderBytes {
  std::uint64_t file_size = 0;
  std::uint64_t length = 0;  // As the file says; not checked yet.
  std::string json;          // Empty where that cannot be.
};

absl::StatusOr<HeaderBytes> ReadBytes(const std::string& path) {
  ASSIGN_OR_RETURN(const platform::FileReader file,
                   platform::FileReader::Open(path));
  HeaderBytes bytes;
  ASSIGN_OR_RETURN(bytes.file_size, file.Size());
  // What is no regular file has no size, and not all of these can be read at a place.
  if (bytes.file_size < kLengthBytes) return bytes;
  std::array<std::uint8_t, kLengthBytes> first{};
  ASSIGN_OR_RETURN(const std::size_t came, file.Read(0, absl::MakeSpan(first)));
  bytes.length =
      platform::WireReader({first.data(), came}).Take<std::uint64_t>();
  if (!CheckLength(bytes.length, bytes.file_size).ok()) return bytes;
  bytes.json.resize(static_cast<std::size_t>(bytes.length));
  // What is cut meanwhile is zeros here, which are no JSON.
  RETURN_IF_ERROR(file.Read(kLengthBytes,
                            {reinterpret_cast<std::uint8_t*>(bytes.json.data()),
                             bytes.json.size()})
                      .status());
  return bytes;
}

// The header of `length` bytes, which are `json` where that can be, of a file of
// `file_size` at `path`; "" for none.
absl::StatusOr<SafetensorsHeader> DecodeOf(absl::string_view path,
                                           std::uint64_t length,
                                           absl::string_view json,
                                           std::uint64_t file_size) {
  if (const absl::Status checked = CheckLength(length, file_size);
      !checked.ok()) {
    return Tell(path, checked);
  }
  const std::uint64_t begin = kLengthBytes + length;
  absl::StatusOr<SafetensorsHeader> header =
      Decode(json, begin, file_size - begin);
  if (!header.ok()) return Tell(path, header.status());
  return header;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    absl::string_view json, std::uint64_t file_size) {
  return DecodeOf("", json.size(), json, file_size);
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(
    const std::string& path) {
  const absl::StatusOr<HeaderBytes> bytes = ReadBytes(path);
  if (!bytes.ok()) return CannotRead(path, bytes.status());
  return DecodeOf(path, bytes->length, bytes->json, bytes->file_size);
}

}  // namespace vmm
