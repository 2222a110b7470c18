// Tensor sets for tests.
#ifndef VMMSHARE_TESTS_UNIT_VMM_WEIGHTS_SAMPLES_H_
#define VMMSHARE_TESTS_UNIT_VMM_WEIGHTS_SAMPLES_H_

#include "tests/support/must.h"
#include "vmm/weights/manifest.h"

namespace vmm::testing {

// A dense tensor, one with strides of its own, one without elements, one without
// dimensions, and two aliases.
inline TensorLayout SampleLayout() {
  TensorLayout layout(
      {.fingerprint = "sha256:0123",
       .metadata = {{"format", "pt"}, {"step", "7\n\xc3\xa9"}}});
  const std::size_t embed =
      Must(layout.Add("embed.weight", DType::kBFloat16, {100, 16}));
  Must(layout.Add("conv", DType::kFloat32, {2, 3, 4, 4}, {48, 1, 12, 3}));
  Must(layout.Add("empty", DType::kInt64, {0, 5}));
  Must(layout.Add("scale", DType::kFloat64, {}));
  Must(layout.AddAlias("lm_head.weight", embed, DType::kBFloat16, {100, 16}));
  Must(layout.AddAlias("embed.rows", embed, DType::kUInt8, {10, 32}, {}, 320));
  return layout;
}

inline TensorManifest SampleManifest() {
  TensorManifest manifest = SampleLayout().manifest();
  manifest.generation = 3;
  manifest.tensors[0].checksum = 0x01020304;
  return manifest;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_UNIT_VMM_WEIGHTS_SAMPLES_H_
