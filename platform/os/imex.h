// What this system says of IMEX: the permission to use fabric handles.
//
// A fabric handle needs an IMEX channel: a character device that the
// administrator makes, /dev/nvidia-caps-imex-channels/channelN. Nothing is
// created or changed here. Each function takes `root`, a folder in whose /dev
// and /proc it looks in place of the system's; "" is the system itself.
#ifndef VMMSHARE_PLATFORM_OS_IMEX_H_
#define VMMSHARE_PLATFORM_OS_IMEX_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/os/process.h"

namespace vmm::platform {

struct ImexChannel {
  std::string path;
  // N of channelN; nothing when the rest of the name is no number.
  std::optional<unsigned> number;
  // This process opened it for reading and writing; otherwise why not.
  bool usable = false;
  absl::Status reason;
  // A character device, and the major number of its class. Container runtimes
  // leave a folder where the node to pass in did not exist.
  bool is_device = false;
  unsigned major = 0;
  unsigned mode = 0;  // Permission bits, as in chmod.
  UserId owner;

  // Whether any local user may open it, and so use the handles in it.
  bool world_writable() const { return (mode & 02) != 0; }
};

// The channel nodes that exist where this process can see them, by number.
// Empty where the system has none (always so on Windows). Fails as looking
// does.
absl::StatusOr<std::vector<ImexChannel>> ImexChannels(
    const std::string& root = "");

// Where the nodes would be, for messages.
const char* ImexChannelPattern();

// The major number that the loaded driver registered for channel nodes, new at
// each boot; nothing when it registered none. UNIMPLEMENTED on Windows.
absl::StatusOr<std::optional<unsigned>> ImexChannelMajor(
    const std::string& root = "");

// Whether a process named nvidia-imex is visible. In a container with process
// ids of its own it is not, even where the daemon runs. UNIMPLEMENTED on
// Windows.
absl::StatusOr<bool> ImexDaemonSeen(const std::string& root = "");

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_IMEX_H_
