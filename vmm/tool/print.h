// A Report for people, and for programs.
#ifndef VMMSHARE_VMM_TOOL_PRINT_H_
#define VMMSHARE_VMM_TOOL_PRINT_H_

#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "vmm/tool/examine.h"

namespace vmm::tool {

// `colour`: with terminal sequences. See page.h.
std::string AsText(const Report& report, bool colour);

// One JSON object; docs/doctor.md describes it.
std::string AsJson(const Report& report);

// Writes all of `text`, at once. False when not all of it could be written.
inline bool Say(std::FILE* to, absl::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), to) == text.size() &&
         std::fflush(to) == 0;
}

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_PRINT_H_
