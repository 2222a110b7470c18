#include "docs/examples/bytes.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace examples {

bool AbslParseFlag(absl::string_view text, Bytes* bytes, std::string* error) {
  const int shift = absl::ConsumeSuffix(&text, "G")   ? 30
                    : absl::ConsumeSuffix(&text, "M") ? 20
                    : absl::ConsumeSuffix(&text, "K") ? 10
                                                      : 0;
  if (!absl::SimpleAtoi(text, &bytes->count) || bytes->count == 0 ||
      bytes->count > (std::numeric_limits<std::uint64_t>::max() >> shift)) {
    *error =
        "expected a number of bytes above 0, such as 4096, 512K, 64M or 2G";
    return false;
  }
  bytes->count <<= shift;
  return true;
}

std::string AbslUnparseFlag(Bytes bytes) { return absl::StrCat(bytes.count); }

}  // namespace examples
