// The IMEX channel nodes of this machine: the permission to use fabric handles.
//
// Nothing is created or changed; a node is the administrator's to make.
#ifndef VMMSHARE_PLATFORM_IMEX_H_
#define VMMSHARE_PLATFORM_IMEX_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace vmm::platform {

struct ImexChannel {
  std::string path;
  bool usable = false;  // This process may open it for reading and writing.
};

// The channel nodes that exist where this process can see them, by path. Empty
// where the system has none (always so on Windows). Fails as looking does.
absl::StatusOr<std::vector<ImexChannel>> ImexChannels();

// Where the nodes would be, for messages.
const char* ImexChannelPattern();

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IMEX_H_
