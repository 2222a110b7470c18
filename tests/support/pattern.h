// A matcher for regular expressions that is the same everywhere: GoogleTest's
// own knows no groups and no sets of characters on Windows.
#ifndef VMMSHARE_TESTS_SUPPORT_PATTERN_H_
#define VMMSHARE_TESTS_SUPPORT_PATTERN_H_

#include <gmock/gmock.h>

#include <regex>
#include <string>

namespace vmm::testing {

// Whether a part of the text is matched by `pattern` (ECMAScript).
MATCHER_P(ContainsPattern, pattern, "contains the pattern") {
  return std::regex_search(std::string(arg), std::regex(std::string(pattern)));
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_PATTERN_H_
