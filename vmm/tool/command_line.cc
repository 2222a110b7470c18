#include "vmm/tool/command_line.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "platform/base/status_macros.h"
#include "platform/os/user_name.h"

namespace vmm::tool {
namespace {

absl::StatusOr<HandleKind> KindOf(absl::string_view text) {
  for (HandleKind kind : kKinds) {
    if (FlagOf(kind) == text) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--require=", text, ": expected fd, nt or fabric"));
}

absl::Status UnknownOption(absl::string_view name,
                           absl::Span<const OptionRow> known) {
  std::string expected;
  for (const OptionRow& one : known) {
    if (&one != &known.front() && (&one)[-1].name == one.name) continue;
    absl::StrAppend(&expected,
                    &one == &known.front()  ? " --"
                    : &one == &known.back() ? " or --"
                                            : ", --",
                    one.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown option --", name, "; expected", expected));
}

}  // namespace

absl::string_view FlagOf(HandleKind kind) {
  switch (kind) {
    case HandleKind::kPosixFd:
      return "fd";
    case HandleKind::kWin32:
      return "nt";
    case HandleKind::kFabric:
      return "fabric";
    case HandleKind::kLegacyIpc:
      return "legacy-ipc";
    case HandleKind::kStreamPool:
      return "stream-pool";
  }
  return "unknown";
}

absl::StatusOr<std::vector<Option>> ParseOptions(
    const std::vector<std::string>& words, absl::Span<const OptionRow> known,
    std::string* other) {
  std::vector<Option> options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    absl::string_view name = words[i];
    if (other != nullptr && other->empty() && !absl::StartsWith(name, "-")) {
      *other = words[i];
      continue;
    }
    if (name == "-h") name = "--help";
    if (!absl::ConsumePrefix(&name, "--")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unexpected word \"", words[i], "\"; options begin with --"));
    }
    std::optional<std::string> value;
    if (const std::size_t at = name.find('='); at != name.npos) {
      value = std::string(name.substr(at + 1));
      name = name.substr(0, at);
    }
    const auto found =
        std::find_if(known.begin(), known.end(),
                     [name](const OptionRow& one) { return one.name == name; });
    if (found == known.end()) return UnknownOption(name, known);
    const bool takes_value = !found->value.empty();
    if (!takes_value && value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " takes no value"));
    }
    // "--require fabric" as well as "--require=fabric".
    if (takes_value && !value.has_value() && i + 1 < words.size() &&
        words[i + 1].substr(0, 2) != "--") {
      value = words[++i];
    }
    if (takes_value && (!value.has_value() || value->empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a value: --", name, "=..."));
    }
    const auto before = std::find_if(
        options.begin(), options.end(),
        [found](const Option& one) { return one.name == found->name; });
    if (takes_value && !found->repeats && before != options.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is given twice, as \"", before->value,
                       "\" and as \"", *value, "\"; give it once"));
    }
    options.push_back({found->name, value.value_or("")});
  }
  return options;
}

absl::StatusOr<platform::UserId> AllowedUser(const std::string& value) {
  absl::StatusOr<platform::UserId> user = platform::ParseUser(value);
  if (user.ok()) return user;
  return absl::InvalidArgumentError(
      absl::StrCat("--allow-user: ", user.status().message()));
}

absl::StatusOr<DoctorOptions> ParseDoctorOptions(
    const std::vector<std::string>& words) {
  ASSIGN_OR_RETURN(const std::vector<Option> given,
                   ParseOptions(words, CommandNamed("doctor").options));
  DoctorOptions options;
  bool has_timeout = false;
  for (const auto& [name, value] : given) {
    has_timeout |= name == "timeout";
    options.json |= name == "json";
    options.touch |= name == "touch";
    options.job |= name == "job";
    options.help |= name == "help";
    if (name == "driver") options.driver = value;
    if (name == "nvml") options.nvml = value;
    if (name == "root") options.root = value;
    if (name == "timeout" &&
        (!absl::SimpleAtoi(value, &options.timeout_seconds) ||
         options.timeout_seconds < 1 || options.timeout_seconds > 86400)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--timeout=", value, ": expected seconds, 1 to 86400"));
    }
    if (name == "require") {
      ASSIGN_OR_RETURN(options.required, KindOf(value));
    }
  }
  if (has_timeout && !options.job && !options.help) {
    return absl::InvalidArgumentError(
        "--timeout is for --job: without it no rank is waited for");
  }
  return options;
}

}  // namespace vmm::tool
