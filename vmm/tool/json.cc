#include "vmm/tool/json.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace vmm::tool {
namespace {

// `json` with U+007F to U+009F escaped, which are in strings alone. REQUIRES: it is
// UTF-8.
std::string WithoutControls(absl::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    // The first of two bytes, of which the second is the character's number.
    const bool is_pair = byte == 0xc2 && i + 1 < json.size() &&
                         static_cast<unsigned char>(json[i + 1]) < 0xa0;
    if (!is_pair && byte != 0x7f) {
      text.push_back(json[i]);
      continue;
    }
    if (is_pair) ++i;
    const auto code = static_cast<unsigned char>(json[i]);
    absl::StrAppend(&text, "\\u", absl::Hex(code, absl::kZeroPad4));
  }
  return text;
}

}  // namespace

std::string JsonText(const Json& json) {
  return WithoutControls(json.dump(2, ' ', /*ensure_ascii=*/false,
                                   Json::error_handler_t::replace)) +
         '\n';
}

}  // namespace vmm::tool
