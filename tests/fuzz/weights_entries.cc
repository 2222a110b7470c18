// What a reader of a tensor set takes from memory that another process wrote.
#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
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

std::vector<Entry> WeightsEntries() {
  return {{"tensor_manifest",
           &FuzzTensorManifest,
           {EncodeManifest(testing::SampleManifest()),
            EncodeManifest(TensorManifest())}},
          {"tensor_trailer",
           &FuzzTensorTrailer,
           {weights::EncodeTrailer(
               {.manifest_offset = 4096, .manifest_bytes = 1000})}}};
}

}  // namespace vmm::fuzz
