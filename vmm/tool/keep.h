// `vmmshare keep`: the keeper, and what asks one.
#ifndef VMMSHARE_VMM_TOOL_KEEP_H_
#define VMMSHARE_VMM_TOOL_KEEP_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/os/process.h"
#include "vmm/keeper/internal/registry.h"
#include "vmm/keeper/keeper.h"

namespace vmm::tool {

struct KeepOptions {
  std::string address;  // Empty: DefaultKeeperAddress().
  keeper::Limits limits;
  std::uint64_t max_connections = 64;
  std::vector<platform::UserId> allowed;  // Beside this user.
  bool list = false;
  bool json = false;
  std::optional<std::string> drop;
  bool help = false;
};

// `words` after "keep". INVALID_ARGUMENT says which word is wrong, and what
// could stand there.
absl::StatusOr<KeepOptions> ParseKeepOptions(
    const std::vector<std::string>& words);

// What `vmmshare keep --list` prints; times in `zone`.
std::string AsText(const KeeperListing& listing, absl::TimeZone zone);

// The same as an array of objects, and what vmmshare_keeper_list() returns.
std::string AsJson(const KeeperListing& listing);

// Runs it; the answer is the process's exit status. A keeper runs until the
// process is asked to end.
int Keep(const KeepOptions& options);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_KEEP_H_
