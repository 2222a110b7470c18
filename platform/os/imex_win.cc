#include "platform/os/imex.h"

namespace vmm::platform {

absl::StatusOr<std::vector<ImexChannel>> ImexChannels(const std::string&) {
  return std::vector<ImexChannel>();
}

const char* ImexChannelPattern() {
  return "nowhere: Windows has no IMEX channel nodes";
}

absl::StatusOr<std::optional<unsigned>> ImexChannelMajor(const std::string&) {
  return absl::UnimplementedError("Windows has no IMEX channel nodes");
}

absl::StatusOr<bool> ImexDaemonSeen(const std::string&) {
  return absl::UnimplementedError("Windows has no IMEX daemon");
}

}  // namespace vmm::platform
