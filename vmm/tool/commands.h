// What the commands of `vmmshare` are called, take and do, said once: command
// lines are read by these tables, and --help, the manual pages and what shells
// complete are made from them.
#ifndef VMMSHARE_VMM_TOOL_COMMANDS_H_
#define VMMSHARE_VMM_TOOL_COMMANDS_H_

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace vmm::tool {

// An option. One that takes values of several kinds has a row for each, one
// below the other.
struct OptionRow {
  absl::string_view name;  // Without the "--".
  // What is given: in capitals what it stands for (FOLDER), else the word
  // itself; empty for an option that takes none.
  absl::string_view value;
  absl::string_view text;
  // Words of which the value is one, with spaces between them.
  absl::string_view choices = {};
  bool repeats = false;  // It may be given more than once.
  // Whether `value` is given as it is written.
  bool takes_word() const {
    return !value.empty() && absl::ascii_islower(value[0]);
  }
};

// A word after the command's name that says what to do.
struct VerbRow {
  absl::string_view name;
  absl::string_view text;
};

struct Command {
  absl::string_view name;
  absl::string_view summary;                 // One line, no full stop.
  absl::Span<const absl::string_view> uses;  // After "vmmshare ".
  absl::string_view description;
  absl::Span<const VerbRow> verbs;
  absl::Span<const OptionRow> options;
  absl::string_view exit_status;
  absl::string_view document;  // In docs/, which says more.
};

// Each command, in the order of the help.
absl::Span<const Command> Commands();

// REQUIRES: one of Commands() is called so.
const Command& CommandNamed(absl::string_view name);

// What stands in place of a command.
absl::Span<const OptionRow> GeneralOptions();

// What `vmmshare --help` and `vmmshare COMMAND --help` print.
std::string Usage();
std::string UsageOf(const Command& command);

// The manual page of a command, or of `vmmshare` itself for nullptr, in the
// language of man(7). `version` is that of vmmshare.
std::string ManualPage(const Command* command, absl::string_view version);

// What bash, zsh and fish read to complete `vmmshare`.
std::string BashCompletion();
std::string ZshCompletion();
std::string FishCompletion();

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_COMMANDS_H_
