// A Report for people, and for programs.
#ifndef VMMSHARE_VMM_TOOL_PRINT_H_
#define VMMSHARE_VMM_TOOL_PRINT_H_

#include <string>

#include "vmm/tool/examine.h"

namespace vmm::tool {

// `colour`: with terminal sequences. See page.h.
std::string AsText(const Report& report, bool colour);

// One JSON object; docs/doctor.md describes it.
std::string AsJson(const Report& report);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_PRINT_H_
