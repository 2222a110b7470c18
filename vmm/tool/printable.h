// Texts of other people's as they are printed: a terminal obeys what it reads.
#ifndef VMMSHARE_VMM_TOOL_PRINTABLE_H_
#define VMMSHARE_VMM_TOOL_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace vmm::tool {

// As C writes it, but for UTF-8, which stays: "\n", "\\", "\x1b". What a terminal
// may obey, U+0080 to U+009F too, and bytes that are no UTF-8 are "\x9b" each.
std::string Escaped(absl::string_view text);

// The same with '?' for each byte that Escaped() writes as "\n" or "\x9b".
std::string Masked(absl::string_view text);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_PRINTABLE_H_
