// Manual pages: see commands.h.
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/commands.h"

namespace vmm::tool {
namespace {

// Text as roff prints it: options can be copied out of the page, and no line
// that begins with a dot is taken for a request.
std::string Escaped(absl::string_view text) {
  std::string escaped =
      absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}});
  return !escaped.empty() && escaped[0] == '.' ? absl::StrCat("\\&", escaped)
                                               : escaped;
}

std::string Title(absl::string_view page, absl::string_view version) {
  return absl::StrCat(".TH ", absl::AsciiStrToUpper(page),
                      " 1 \"\" \"vmmshare ", version, "\" \"User Commands\"\n");
}

// "vmmshare keep [OPTIONS]": what is typed bold, what stands for something in
// italics.
std::string Synopsis(absl::string_view use) {
  std::string text = ".B vmmshare\n";
  for (absl::string_view word : absl::StrSplit(use, ' ')) {
    const bool typed = absl::ascii_islower(word[0]);
    absl::StrAppend(&text, typed ? ".B " : ".I ", Escaped(word), "\n");
  }
  return text;
}

std::string Row(absl::string_view term, absl::string_view text) {
  return absl::StrCat(".TP\n", term, "\n", Escaped(text), "\n");
}

std::string OptionRows(absl::Span<const OptionRow> options) {
  std::string text;
  for (const OptionRow& option : options) {
    std::string term = absl::StrCat("\\fB\\-\\-", Escaped(option.name));
    if (!option.value.empty()) {
      absl::StrAppend(&term, "=", option.takes_word() ? "" : "\\fI",
                      Escaped(option.value));
    }
    absl::StrAppend(&text, Row(absl::StrCat(term, "\\fR"), option.text));
  }
  return text;
}

std::string SeeAlso(const Command* self) {
  std::string text = ".SH SEE ALSO\n";
  if (self != nullptr) absl::StrAppend(&text, ".BR vmmshare (1),\n");
  absl::string_view comma = "";
  for (const Command& other : Commands()) {
    if (&other == self) continue;
    absl::StrAppend(&text, comma, ".BR vmmshare\\-", other.name, " (1)");
    comma = ",\n";
  }
  return absl::StrCat(text, "\n");
}

}  // namespace

std::string ManualPage(const Command* command, absl::string_view version) {
  if (command == nullptr) {
    std::string text = absl::StrCat(
        Title("vmmshare", version),
        ".SH NAME\nvmmshare \\- share GPU memory between processes\n"
        ".SH SYNOPSIS\n.B vmmshare\n.I COMMAND [OPTIONS]\n.SH COMMANDS\n");
    for (const Command& each : Commands()) {
      absl::StrAppend(&text, Row(absl::StrCat("\\fB", each.name, "\\fR"),
                                 absl::StrCat(each.summary, ": see vmmshare-",
                                              each.name, "(1)")));
    }
    return absl::StrCat(text, ".SH OPTIONS\n", OptionRows(GeneralOptions()),
                        SeeAlso(nullptr));
  }
  const std::string page = absl::StrCat("vmmshare-", command->name);
  std::string text =
      absl::StrCat(Title(page, version), ".SH NAME\n", Escaped(page), " \\- ",
                   Escaped(command->summary), "\n.SH SYNOPSIS\n");
  for (absl::string_view use : command->uses) {
    if (!text.ends_with("SYNOPSIS\n")) text.append(".br\n");
    absl::StrAppend(&text, Synopsis(use));
  }
  absl::StrAppend(&text, ".SH DESCRIPTION\n", Escaped(command->description),
                  "\n");
  if (!command->verbs.empty()) text.append(".SH COMMANDS\n");
  for (const VerbRow& verb : command->verbs) {
    absl::StrAppend(&text,
                    Row(absl::StrCat("\\fB", verb.name, "\\fR"), verb.text));
  }
  return absl::StrCat(text, ".SH OPTIONS\n", OptionRows(command->options),
                      ".SH EXIT STATUS\n", Escaped(command->exit_status), "\n",
                      SeeAlso(command));
}

}  // namespace vmm::tool
