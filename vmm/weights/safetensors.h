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
#ifndef VMMSHARE_VMM_WEIGHTS_SAFETENSORS_H_
#define VMMSHARE_VMM_WEIGHTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "vmm/weights/manifest.h"

namespace vmm {

// Bytes of JSON at most; that of a million tensors has as many.
inline constexpr std::uint64_t kMaxSafetensorsHeader = std::uint64_t{64} << 20;

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

#endif  // VMMSHARE_VMM_WEIGHTS_SAFETENSORS_H_
