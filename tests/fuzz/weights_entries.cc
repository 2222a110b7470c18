// What a reader of a tensor set takes from memory that another process wrote.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "tests/fuzz/mutators.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "tests/unit/vmm_weights_samples.h"
#include "vmm/weights/internal/trailer.h"
#include "vmm/weights/manifest.h"

namespace vmm::fuzz {
namespace {

using platform::Check;

void CheckRefusal(const absl::Status& status) {
  Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
            absl::IsResourceExhausted(status),
        "another error than documented");
  Check(std::all_of(status.message().begin(), status.message().end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); }),
        "a message shows bytes of a peer as they are");
}

void CheckOne(Input bytes) {
  const absl::StatusOr<TensorManifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return CheckRefusal(manifest.status());
  Check(Input(EncodeManifest(*manifest)) == bytes,
        "a manifest is read otherwise than written");
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : manifest->tensors) {
    Check(tensor.shape.size() == tensor.strides.size() &&
              tensor.offset <= manifest->data_bytes &&
              tensor.extent() <= manifest->data_bytes - tensor.offset,
          "a tensor outside of the data");
    if (tensor.alias_of.has_value()) continue;
    Check(tensor.offset >= end, "two tensors in the same bytes");
    end = tensor.offset + tensor.extent();
  }
}

}  // namespace

void FuzzTensorManifest(Input input) {
  CheckOne(input);
  Bytes whole(input.begin(), input.end());
  if (whole.size() < 52) return;
  const Bytes good = EncodeManifest(testing::SampleManifest());
  std::copy_n(good.begin(), 16, whole.begin());
  testing::RepairChecksum(whole);
  CheckOne(whole);
}

void FuzzTensorTrailer(Input input) {
  constexpr std::uint64_t kMemory = 1 << 20;
  Bytes whole(input.begin(), input.end());
  for (const bool repaired : {false, true}) {
    if (repaired) {
      whole.resize(weights::kTrailerBytes);
      const Bytes good = weights::EncodeTrailer({});
      std::copy_n(good.begin(), 16, whole.begin());
      testing::RepairChecksum(whole);
    }
    const absl::StatusOr<weights::Trailer> trailer =
        weights::DecodeTrailer(whole, kMemory);
    if (!trailer.ok()) {
      if (!absl::IsFailedPrecondition(trailer.status())) {
        CheckRefusal(trailer.status());
      }
      continue;
    }
    Check(Input(weights::EncodeTrailer(*trailer)) == Input(whole),
          "a trailer is read otherwise than written");
    Check(trailer->manifest_offset <= kMemory &&
              trailer->manifest_bytes <= kMemory - trailer->manifest_offset,
          "a manifest outside of the memory");
  }
}

void FuzzSafetensors(Input input) {
  if (input.size() < 2) return;
  const std::uint64_t data = input[0] | std::uint64_t{input[1]} << 8;
  const std::string json(input.begin() + 2, input.end());
  const std::uint64_t begin = 8 + json.size();
  const absl::StatusOr<SafetensorsHeader> header =
      DecodeSafetensorsHeader(json, begin + data);
  if (!header.ok()) return CheckRefusal(header.status());
  std::uint64_t end = begin;
  std::set<std::string> names;
  for (const TensorInfo& tensor : header->tensors) {
    Check(tensor.offset == end, "a gap between tensors");
    Check(tensor.extent() <= begin + data - end, "a tensor behind the file");
    Check(names.insert(tensor.name).second, "a name is there twice");
    Check(tensor.name.find('\0') == std::string::npos, "a NUL in a name");
    end += tensor.extent();
  }
  Check(end == begin + data, "data of no tensor");
  // What a layout takes of them is a manifest's.
  TensorLayout layout;
  for (const TensorInfo& tensor : header->tensors) {
    const auto added = layout.Add(tensor.name, tensor.dtype, tensor.shape);
    if (!added.ok()) return CheckRefusal(added.status());
  }
  Check(CheckManifest(layout.manifest()).ok(), "no manifest of its tensors");
}

std::vector<Entry> WeightsEntries() {
  constexpr absl::string_view kHeader =
      R"({"__metadata__":{"format":"pt\u00e9"},"a":{"dtype":"F32","shape":[2,3],)"
      R"("data_offsets":[0,24]},"b\n":{"dtype":"I8","shape":[],)"
      R"("data_offsets":[24,25]}})";
  Bytes safetensors = {25, 0};
  safetensors.insert(safetensors.end(), kHeader.begin(), kHeader.end());
  return {{"safetensors", &FuzzSafetensors, {safetensors}, &MutateSafetensors},
          {"tensor_manifest",
           &FuzzTensorManifest,
           {EncodeManifest(testing::SampleManifest()),
            EncodeManifest(TensorManifest())},
           &MutateManifest},
          {"tensor_trailer",
           &FuzzTensorTrailer,
           {weights::EncodeTrailer(
               {.manifest_offset = 4096, .manifest_bytes = 1000})}}};
}

}  // namespace vmm::fuzz
