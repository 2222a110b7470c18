// Page: lines of text for a terminal, wrapped, with a label in front.
#ifndef VMMSHARE_VMM_TOOL_PAGE_H_
#define VMMSHARE_VMM_TOOL_PAGE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "fabric/diagnosis.h"

namespace vmm::tool {

// Appends `text`, broken at spaces so that no line passes `width` columns, and a
// line's end, without spaces before that. The last line of `*to` holds `column`
// columns; further ones begin with `indent` spaces.
void AppendWrapped(absl::string_view text, std::size_t column,
                   std::size_t indent, std::size_t width, std::string* to);

enum class Ink { kPlain, kGood, kBad, kWarn, kStrong };

// Lines of at most 96 columns, but for words that are longer. Control
// characters in what is printed become '?', and so do bytes that are no UTF-8:
// names of files and environment variables are other people's, and a terminal obeys
// what it reads.
class Page {
 public:
  // `colour`: with terminal sequences.
  explicit Page(bool colour) : colour_(colour) {}

  void Heading(absl::string_view text);
  void Gap() { out_.push_back('\n'); }
  // One line as it is: of a table.
  void Plain(absl::string_view line);
  // `label`, then `text`, whose further lines are set below its first.
  void Row(absl::string_view label, absl::string_view text,
           std::size_t indent = 2, Ink ink = Ink::kPlain);
  // The same with a word in `ink` between the two.
  void MarkedRow(absl::string_view label, absl::string_view mark, Ink ink,
                 absl::string_view text);
  // Each with `label` before what was found, and what to do below.
  void Findings(const std::vector<fabric::Finding>& findings,
                absl::string_view label, std::size_t indent);

  std::string Take() && { return std::move(out_); }

 private:
  std::string Paint(absl::string_view text, Ink ink) const;
  void Start(std::size_t indent, absl::string_view label, std::size_t width,
             Ink ink);
  void Wrap(absl::string_view text, std::size_t indent);

  bool colour_;
  std::string out_;
};

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_PAGE_H_
