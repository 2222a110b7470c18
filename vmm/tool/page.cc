#include "vmm/tool/page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "vmm/tool/printable.h"

namespace vmm::tool {
namespace {

constexpr std::size_t kWidth = 96;
constexpr std::size_t kLabel = 16;  // Columns of what stands before a text.
constexpr std::size_t kMark = 9;

}  // namespace

void AppendWrapped(absl::string_view text, std::size_t column,
                   std::size_t indent, std::size_t width, std::string* to) {
  bool first = true;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!first && column + 1 + word.size() > width) {
      absl::StrAppend(to, "\n", std::string(indent, ' '));
      column = indent;
    } else if (!first) {
      to->push_back(' ');
      ++column;
    }
    absl::StrAppend(to, word);
    column += word.size();
    first = false;
  }
  while (!to->empty() && to->back() == ' ') to->pop_back();
  to->push_back('\n');
}

void Page::Heading(absl::string_view text) {
  absl::StrAppend(&out_, Paint(Masked(text), Ink::kStrong), "\n");
}

void Page::Plain(absl::string_view line) {
  absl::StrAppend(&out_, absl::StripTrailingAsciiWhitespace(Masked(line)),
                  "\n");
}

void Page::Row(absl::string_view label, absl::string_view text,
               std::size_t indent, Ink ink) {
  Start(indent, label, kLabel, ink);
  Wrap(text, indent + kLabel);
}

void Page::MarkedRow(absl::string_view label, absl::string_view mark, Ink ink,
                     absl::string_view text) {
  Start(2, label, kLabel, Ink::kPlain);
  Start(0, mark, kMark, ink);
  Wrap(text, 2 + kLabel + kMark);
}

void Page::Findings(const std::vector<fabric::Finding>& findings,
                    absl::string_view label, std::size_t indent) {
  constexpr std::size_t kWidthOfLabel = 7;
  for (const fabric::Finding& finding : findings) {
    Start(indent, label, kWidthOfLabel, Ink::kWarn);
    Wrap(absl::StrCat(finding.text, " [", finding.id, "]"),
         indent + kWidthOfLabel);
    Start(indent, "to do:", kWidthOfLabel, Ink::kPlain);
    Wrap(finding.remedy, indent + kWidthOfLabel);
  }
}

std::string Page::Paint(absl::string_view text, Ink ink) const {
  if (!colour_ || ink == Ink::kPlain || text.empty()) return std::string(text);
  constexpr const char* kCodes[] = {"0", "32", "31", "33", "1"};
  return absl::StrCat("\x1b[", kCodes[static_cast<int>(ink)], "m", text,
                      "\x1b[0m");
}

void Page::Start(std::size_t indent, absl::string_view label, std::size_t width,
                 Ink ink) {
  out_.append(indent, ' ');
  out_.append(Paint(Masked(label), ink));
  out_.append(label.size() < width ? width - label.size() : 1, ' ');
}

void Page::Wrap(absl::string_view text, std::size_t indent) {
  AppendWrapped(Masked(text), indent, indent, kWidth, &out_);
}

}  // namespace vmm::tool
