// Completions of three shells: see commands.h.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/commands.h"

namespace vmm::tool {
namespace {

// An option with all that its rows say of its value.
struct Completed {
  absl::string_view name;
  absl::string_view value;  // Empty: takes none.
  std::string text;
  std::string words;  // With spaces between them.
  bool files = false;
  bool folders = false;
  bool users = false;
};

// As much of `text` as a list of options has room for.
std::string Brief(absl::string_view text) {
  for (absl::string_view end : {"; ", ". ", " ("}) {
    text = text.substr(0, text.find(end));
  }
  return std::string(text);
}

std::vector<Completed> Merged(absl::Span<const OptionRow> rows) {
  std::vector<Completed> all;
  for (const OptionRow& row : rows) {
    if (all.empty() || all.back().name != row.name) {
      all.push_back(
          {row.name, row.value, Brief(row.text), "", false, false, false});
    }
    Completed& one = all.back();
    const bool word = row.takes_word();
    const absl::string_view more = word ? row.value : row.choices;
    if (!more.empty()) {
      absl::StrAppend(&one.words, one.words.empty() ? "" : " ", more);
    }
    one.files |= row.value == "PATH" || row.value == "ADDRESS";
    one.folders |= row.value == "FOLDER";
    one.users |= row.value == "USER";
    // "the installed NVIDIA driver" is one of the things it can be.
    if (word) one.text = std::string(one.name);
  }
  return all;
}

// Of commands, or of a command's verbs.
template <typename Row>
std::string Names(absl::Span<const Row> rows) {
  return absl::StrJoin(rows, " ", [](std::string* to, const Row& row) {
    absl::StrAppend(to, row.name);
  });
}

std::string OptionWords(absl::Span<const OptionRow> rows) {
  return absl::StrJoin(
      Merged(rows), " ", [](std::string* to, const Completed& one) {
        absl::StrAppend(to, "--", one.name, one.value.empty() ? "" : "=");
      });
}

// In single quotes of zsh and fish. `special` is escaped as well.
std::string Quoted(absl::string_view text, absl::string_view special = "") {
  std::string escaped;
  for (char c : text) {
    if (special.find(c) != special.npos) escaped.push_back('\\');
    escaped.push_back(c);
  }
  return absl::StrReplaceAll(escaped, {{"'", "'\\''"}});
}

}  // namespace

std::string BashCompletion() {
  std::string text = absl::StrCat(
      R"(# bash completion of vmmshare; made from the tables that its --help is made from.
_vmmshare() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  local option='' words='' kinds=() word
  COMPREPLY=()
  # bash takes "--driver=host" apart at the sign.
  if [[ $cur == '=' ]]; then
    option=$before cur=''
  elif [[ $before == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $before == --* ]]; then
    option=$before
  fi
  case $COMP_CWORD:${COMP_WORDS[1]}:$option in
    1:*) words=')",
      Names(Commands()), " ", OptionWords(GeneralOptions()), "' ;;\n");
  for (const Command& command : Commands()) {
    for (const Completed& one : Merged(command.options)) {
      if (one.value.empty()) continue;
      absl::StrAppend(&text, "    *:", command.name, ":--", one.name, ")");
      if (!one.words.empty())
        absl::StrAppend(&text, " words='", one.words, "'");
      if (one.files) text.append(" kinds=(-f)");
      if (one.folders) text.append(" kinds=(-d)");
      if (one.users) text.append(" kinds=(-u)");
      text.append(" ;;\n");
    }
    if (!command.verbs.empty()) {
      absl::StrAppend(&text, "    2:", command.name, ":*) words='",
                      Names(command.verbs), " --help' ;;\n");
    }
    absl::StrAppend(&text, "    *:", command.name, ":*) words='",
                    OptionWords(command.options), "' ;;\n");
  }
  return absl::StrCat(text, R"(  esac
  while IFS='' read -r word; do
    COMPREPLY+=("$word")
  done < <(compgen -W "$words" "${kinds[@]}" -- "$cur")
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
  if [[ ${#kinds[@]} != 0 ]]; then compopt -o filenames; fi
}
complete -F _vmmshare vmmshare
)");
}

std::string ZshCompletion() {
  static constexpr absl::string_view kSpecial = "[]:\\";
  const auto arguments = [](absl::Span<const OptionRow> rows) {
    std::string text;
    for (const Completed& one : Merged(rows)) {
      absl::StrAppend(&text, " \\\n        '*--", one.name,
                      one.value.empty() ? "" : "=", "[",
                      Quoted(one.text, kSpecial), "]");
      if (!one.value.empty()) {
        absl::StrAppend(&text, ":", one.name, ":");
        if (one.files && !one.words.empty()) {
          absl::StrAppend(&text, "{ compadd -- ", one.words, "; _files }");
        } else if (!one.words.empty()) {
          absl::StrAppend(&text, "(", one.words, ")");
        }
        if (one.files && one.words.empty()) text.append("_files");
        if (one.folders) text.append("_files -/");
        if (one.users) text.append("_users");
      }
      text.push_back('\'');
    }
    return text;
  };
  std::string text =
      "#compdef vmmshare\n"
      "# Made from the tables that `vmmshare --help` is made from.\n"
      "_vmmshare() {\n  local -a commands\n  commands=(";
  for (const Command& command : Commands()) {
    absl::StrAppend(&text, "\n    '", command.name, ":",
                    Quoted(command.summary, ":"), "'");
  }
  absl::StrAppend(&text,
                  ")\n  if (( CURRENT == 2 )); then\n"
                  "    _describe -t commands command commands\n"
                  "    _arguments",
                  arguments(GeneralOptions()), "\n    return\n  fi\n",
                  "  shift words\n  (( CURRENT-- ))\n  case $words[1] in\n");
  for (const Command& command : Commands()) {
    absl::StrAppend(&text, "    ", command.name, ")\n      _arguments",
                    arguments(command.options));
    if (!command.verbs.empty()) {
      absl::StrAppend(&text, " \\\n        '1:command:(", Names(command.verbs),
                      ")' '*:name:'");
    }
    text.append("\n      ;;\n");
  }
  return absl::StrCat(text, "  esac\n}\n_vmmshare \"$@\"\n");
}

std::string FishCompletion() {
  const std::string none =
      absl::StrCat("not __fish_seen_subcommand_from ", Names(Commands()));
  std::string text =
      "# Made from the tables that `vmmshare --help` is made from.\n"
      "complete -c vmmshare -f\n";
  const auto options = [&text](const std::string& condition,
                               absl::Span<const OptionRow> rows) {
    for (const Completed& one : Merged(rows)) {
      absl::StrAppend(&text, "complete -c vmmshare -n '", condition, "' -l ",
                      one.name);
      if (!one.value.empty()) text.append(one.files ? " -rF" : " -x");
      const std::string words = one.folders ? "(__fish_complete_directories)"
                                : one.users ? "(__fish_complete_users)"
                                            : one.words;
      if (!words.empty()) absl::StrAppend(&text, " -a '", words, "'");
      absl::StrAppend(&text, " -d '", Quoted(one.text), "'\n");
    }
  };
  for (const Command& command : Commands()) {
    absl::StrAppend(&text, "complete -c vmmshare -n '", none, "' -a ",
                    command.name, " -d '", Quoted(command.summary), "'\n");
  }
  options(none, GeneralOptions());
  for (const Command& command : Commands()) {
    const std::string here =
        absl::StrCat("__fish_seen_subcommand_from ", command.name);
    options(here, command.options);
    if (command.verbs.empty()) continue;
    const std::string verbs = Names(command.verbs);
    for (const VerbRow& verb : command.verbs) {
      absl::StrAppend(&text, "complete -c vmmshare -n '", here,
                      "; and not __fish_seen_subcommand_from ", verbs, "' -a ",
                      verb.name, " -d '", Quoted(Brief(verb.text)), "'\n");
    }
  }
  return text;
}

}  // namespace vmm::tool
