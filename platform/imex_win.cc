#include "platform/imex.h"

namespace vmm::platform {

std::vector<ImexChannel> ImexChannels() { return {}; }

const char* ImexChannelPattern() {
  return "nowhere: Windows has no IMEX channel nodes";
}

}  // namespace vmm::platform
