// What --help prints: see commands.h.
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/commands.h"
#include "vmm/tool/page.h"

namespace vmm::tool {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kTextAt = 23;  // Where what an option does begins.

// "  TERM      what it is"; a term that is too long has a line of its own.
void AppendRow(std::string* to, const std::string& term,
               absl::string_view text) {
  std::string line = absl::StrCat("  ", term);
  if (line.size() + 2 > kTextAt) {
    absl::StrAppend(to, line, "\n");
    line.clear();
  }
  line.resize(kTextAt, ' ');
  to->append(line);
  AppendWrapped(text, kTextAt, kTextAt, kColumns, to);
}

std::string TermOf(const OptionRow& option) {
  return absl::StrCat("--", option.name, option.value.empty() ? "" : "=",
                      option.value);
}

}  // namespace

std::string Usage() {
  std::string text = "usage: vmmshare COMMAND [OPTIONS]\n\n";
  for (const Command& command : Commands()) {
    AppendRow(&text, std::string(command.name), command.summary);
  }
  for (const OptionRow& option : GeneralOptions()) {
    AppendRow(&text, TermOf(option), option.text);
  }
  return text;
}

std::string UsageOf(const Command& command) {
  std::string text;
  for (absl::string_view use : command.uses) {
    absl::StrAppend(&text,
                    text.empty() ? "usage: vmmshare " : "       vmmshare ", use,
                    "\n");
  }
  text.push_back('\n');
  AppendWrapped(command.description, 0, 0, kColumns, &text);
  if (!command.verbs.empty()) text.push_back('\n');
  for (const VerbRow& verb : command.verbs) {
    AppendRow(&text, std::string(verb.name), verb.text);
  }
  text.push_back('\n');
  for (const OptionRow& option : command.options) {
    AppendRow(&text, TermOf(option), option.text);
  }
  text.push_back('\n');
  AppendWrapped(absl::StrCat("Exit status: ", command.exit_status), 0, 0,
                kColumns, &text);
  return text;
}

}  // namespace vmm::tool
