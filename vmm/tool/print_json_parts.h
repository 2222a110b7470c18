// What reports for programs have in common; internal to vmm/tool.
#ifndef VMMSHARE_VMM_TOOL_PRINT_JSON_PARTS_H_
#define VMMSHARE_VMM_TOOL_PRINT_JSON_PARTS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fabric/diagnosis.h"
#include "platform/cuda/driver.h"
#include "vmm/tool/examine.h"
#include "vmm/tool/json.h"

namespace vmm::tool {

// Null for OK.
inline Json StatusJson(const absl::Status& status) {
  if (status.ok()) return Json();
  Json object = Json::object();
  object["code"] = absl::StatusCodeToString(status.code());
  object["message"] = status.message();
  return object;
}

// The same with the driver's result.
inline Json ErrorJson(const absl::Status& status) {
  Json object = StatusJson(status);
  if (status.ok()) return object;
  const std::optional<CUresult> result = platform::ResultOf(status);
  object["cuda_result"] =
      result.has_value() ? Json(static_cast<int>(*result)) : Json();
  return object;
}

template <typename T>
Json ValueJson(const T& value) {
  return Json(value);
}
template <typename T>
Json ValueJson(const std::optional<T>& value) {
  return value.has_value() ? ValueJson(*value) : Json();
}
// What is not known is null, whatever the reason.
template <typename T>
Json ValueJson(const absl::StatusOr<T>& value) {
  return value.ok() ? ValueJson(*value) : Json();
}

inline Json FindingJson(const fabric::Finding& finding) {
  Json object = Json::object();
  object["id"] = finding.id;
  object["text"] = finding.text;
  object["remedy"] = finding.remedy;
  return object;
}

inline Json FindingsJson(const std::vector<fabric::Finding>& findings) {
  Json array = Json::array();
  for (const fabric::Finding& finding : findings) {
    array.push_back(FindingJson(finding));
  }
  return array;
}

// `report`, a device of a Report, and what the system says of its GPU.
Json DeviceJson(const DeviceReport& report, const fabric::GpuTopology& gpu);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_PRINT_JSON_PARTS_H_
