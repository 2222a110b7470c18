// Json: values to print, and nothing more.
#ifndef VMMSHARE_VMM_TOOL_JSON_H_
#define VMMSHARE_VMM_TOOL_JSON_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace vmm::tool {

// A value. Objects keep the order in which members were added.
class Json {
 public:
  static Json Null() { return Json(nullptr); }
  static Json Bool(bool value) { return Json(value); }
  static Json Text(absl::string_view text) { return Json(std::string(text)); }
  static Json Object() { return Json(Members()); }
  static Json Array() { return Json(Items()); }
  template <std::integral Number>
  static Json Integer(Number value) {
    return Json(static_cast<std::int64_t>(value));
  }

  // REQUIRES: an object; `name` is not there yet.
  Json& Add(absl::string_view name, Json value);
  // REQUIRES: an array.
  Json& Append(Json value);

  // RFC 8259, indented, with a newline at the end. Bytes that are not UTF-8
  // become U+FFFD.
  std::string Print() const;

 private:
  using Members = std::vector<std::pair<std::string, Json>>;
  using Items = std::vector<Json>;
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, std::string,
                             Members, Items>;

  explicit Json(Value value) : value_(std::move(value)) {}
  void PrintTo(int depth, std::string* out) const;

  Value value_;
};

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_JSON_H_
