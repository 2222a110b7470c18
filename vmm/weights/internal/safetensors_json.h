// What the JSON of a safetensors header says; internal to vmm/. Whether there can be
// such tensors is safetensors.cc's to find out.
#ifndef VMMSHARE_VMM_WEIGHTS_INTERNAL_SAFETENSORS_JSON_H_
#define VMMSHARE_VMM_WEIGHTS_INTERNAL_SAFETENSORS_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace vmm::weights {

struct SaidTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;         // At most kMaxTensorRank, from 0 on.
  std::vector<std::int64_t> data_offsets;  // At most two, from 0 on.
};

struct SaidHeader {
  std::vector<SaidTensor> tensors;  // As they come; names may come twice.
  std::map<std::string, std::string> metadata;
};

// Reads `json` once from front to back, and keeps nothing that the format has no
// place for: neither depth nor memory is up to whoever wrote it. Texts have no NUL.
//
// INVALID_ARGUMENT: no JSON (the byte is named); a member that is unknown, missing,
// there twice, or of another type (it is named, and what was expected).
absl::StatusOr<SaidHeader> ReadSafetensorsJson(absl::string_view json);

}  // namespace vmm::weights

#endif  // VMMSHARE_VMM_WEIGHTS_INTERNAL_SAFETENSORS_JSON_H_
