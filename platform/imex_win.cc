#include "platform/imex.h"

namespace vmm::platform {

absl::StatusOr<std::vector<ImexChannel>> ImexChannels() {
  return std::vector<ImexChannel>();
}

const char* ImexChannelPattern() {
  return "nowhere: Windows has no IMEX channel nodes";
}

}  // namespace vmm::platform
