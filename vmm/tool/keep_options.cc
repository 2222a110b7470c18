// The command line of `vmmshare keep`: see keep.h.
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/status_macros.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/tool/command_line.h"
#include "vmm/tool/commands.h"
#include "vmm/tool/keep.h"

namespace vmm::tool {
namespace {

// "16G" is 16 << 30. Nothing for what is no such number, or does not fit.
std::optional<std::uint64_t> NumberOf(absl::string_view text, bool bytes) {
  constexpr absl::string_view kUnits = "KMGT";
  int shift = 0;
  if (bytes && !text.empty()) {
    const std::size_t unit = kUnits.find(text.back());
    if (unit != absl::string_view::npos) {
      shift = 10 * static_cast<int>(unit + 1);
      text.remove_suffix(1);
    }
  }
  std::uint64_t number = 0;
  // SimpleAtoi() takes signs and spaces.
  if (text.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(text, &number) || number == 0 ||
      number > UINT64_MAX >> shift) {
    return std::nullopt;
  }
  return number << shift;
}

absl::Status SetOption(absl::string_view name, const std::string& value,
                       KeepOptions& options) {
  const struct {
    absl::string_view name;
    std::uint64_t* number;
    bool bytes;
  } numbers[] = {{"max-names", &options.limits.names, false},
                 {"max-bytes", &options.limits.bytes, true},
                 {"max-connections", &options.max_connections, false},
                 {"quota-names", &options.limits.user_names, false},
                 {"quota-bytes", &options.limits.user_bytes, true}};
  for (const auto& each : numbers) {
    if (each.name != name) continue;
    const std::optional<std::uint64_t> number = NumberOf(value, each.bytes);
    if (!number.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, "=", value, ": expected a number from 1 on",
          each.bytes ? ", of bytes or with K, M, G or T behind it" : ""));
    }
    *each.number = *number;
    return absl::OkStatus();
  }
  if (name == "address") {
    options.address = value;
  } else if (name == "allow-user") {
    ASSIGN_OR_RETURN(options.allowed.emplace_back(), AllowedUser(value));
  } else if (name == "drop") {
    if (absl::Status usable = keeper::CheckName(value); !usable.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--drop: ", usable.message()));
    }
    options.drop = value;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KeepOptions> ParseKeepOptions(
    const std::vector<std::string>& words) {
  ASSIGN_OR_RETURN(const std::vector<Option> given,
                   ParseOptions(words, CommandNamed("keep").options));
  KeepOptions options;
  for (const auto& [name, value] : given) {
    options.list |= name == "list";
    options.json |= name == "json";
    options.help |= name == "help";
    RETURN_IF_ERROR(SetOption(name, value, options));
  }
  if (options.list && options.drop.has_value()) {
    return absl::InvalidArgumentError("--list and --drop are two commands");
  }
  const bool asks = options.list || options.drop.has_value();
  for (const auto& [name, value] : given) {
    if (asks &&
        (absl::StartsWith(name, "max-") || absl::StartsWith(name, "quota-"))) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name,
                       " is for a keeper that serves, and not for --list and "
                       "--drop"));
    }
  }
  if (options.json && !options.list) {
    return absl::InvalidArgumentError("--json is for --list");
  }
  return options;
}

}  // namespace vmm::tool
