// What the parts of AsText() have in common; internal to vmm/tool.
#ifndef VMMSHARE_VMM_TOOL_PRINT_PARTS_H_
#define VMMSHARE_VMM_TOOL_PRINT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "vmm/tool/examine.h"
#include "vmm/tool/page.h"

namespace vmm::tool {

// What is known, or why not.
template <typename T, typename Text>
std::string Known(const absl::StatusOr<T>& value, Text text) {
  return value.ok() ? std::string(text(*value))
                    : absl::StrCat("unknown: ", value.status().message());
}

inline std::string YesNo(bool value) { return value ? "yes" : "no"; }

inline std::string Size(std::uint64_t bytes) {
  return bytes >= std::uint64_t{1} << 30
             ? absl::StrFormat("%.1f GiB",
                               static_cast<double>(bytes) / (1 << 30))
             : absl::StrFormat("%.1f MiB",
                               static_cast<double>(bytes) / (1 << 20));
}

// `report.devices[index]`, all that is known of it.
void PrintDevice(const Report& report, std::size_t index, Page* page);

// Limits and surroundings.
void PrintLimits(const Report& report, Page* page);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_PRINT_PARTS_H_
