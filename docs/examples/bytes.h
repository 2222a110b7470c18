// Bytes: the value of a flag, such as --size=64M.
#ifndef VMMSHARE_DOCS_EXAMPLES_BYTES_H_
#define VMMSHARE_DOCS_EXAMPLES_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace examples {

// A number above 0, which may end in K, M or G. Abseil's flags find the two
// functions by their names.
struct Bytes {
  std::uint64_t count = 0;
};
bool AbslParseFlag(absl::string_view text, Bytes* bytes, std::string* error);
std::string AbslUnparseFlag(Bytes bytes);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_BYTES_H_
