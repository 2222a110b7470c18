// How commands say what they have to say, and how they fail.
#ifndef VMMSHARE_VMM_TOOL_SAY_H_
#define VMMSHARE_VMM_TOOL_SAY_H_

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/command_line.h"

namespace vmm::tool {

// Writes all of `text`, at once. False when not all of it could be written.
inline bool Say(std::FILE* to, absl::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), to) == text.size() &&
         std::fflush(to) == 0;
}

// As every command says why it failed.
inline std::string ErrorLine(absl::string_view why) {
  return absl::StrCat("vmmshare: error: ", why, "\n");
}
// Says it on standard error. The process's exit status.
inline int Fail(absl::string_view why) {
  Say(stderr, ErrorLine(why));
  return kExitNotUsable;
}

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_SAY_H_
