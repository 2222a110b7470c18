// The command line of `vmmshare`.
#ifndef VMMSHARE_VMM_TOOL_COMMAND_LINE_H_
#define VMMSHARE_VMM_TOOL_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/os/process.h"
#include "vmm/memory/handle_kind.h"
#include "vmm/tool/commands.h"

namespace vmm::tool {

// How the process ends.
inline constexpr int kExitGood = 0;
inline constexpr int kExitNotUsable = 1;  // Also: no driver.
inline constexpr int kExitMisuse = 2;

struct Option {
  absl::string_view name;  // That of its OptionRow.
  std::string value;       // Empty if it takes none.
};

// `words`, each "--name", "--name=value" or "--name value", in their order; one
// of them may be no option if `other` is not null, and goes there.
// INVALID_ARGUMENT says which word is wrong, and what could stand there.
absl::StatusOr<std::vector<Option>> ParseOptions(
    const std::vector<std::string>& words, absl::Span<const OptionRow> known,
    std::string* other = nullptr);

// Whom --allow-user=`value` names. INVALID_ARGUMENT when that is nobody.
absl::StatusOr<platform::UserId> AllowedUser(const std::string& value);

struct DoctorOptions {
  std::string driver = "system";    // "system", "host", or a path.
  std::optional<std::string> nvml;  // A path; else the driver's own.
  std::string root;                 // See platform/os/imex.h.
  std::optional<HandleKind> required;
  bool json = false;
  bool touch = false;
  bool job = false;
  int timeout_seconds = 60;  // Of --job.
  bool help = false;
};

// Those that are tried, and may be required.
inline constexpr HandleKind kKinds[] = {
    HandleKind::kPosixFd, HandleKind::kWin32, HandleKind::kFabric};

// The name of a kind on the command line and in JSON: "fd", "nt", "fabric".
absl::string_view FlagOf(HandleKind kind);

// `words` after "doctor". INVALID_ARGUMENT says which word is wrong, and what
// could stand there.
absl::StatusOr<DoctorOptions> ParseDoctorOptions(
    const std::vector<std::string>& words);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_COMMAND_LINE_H_
