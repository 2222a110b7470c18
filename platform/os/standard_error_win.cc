#include <cstdio>

#include "platform/os/standard_error.h"

namespace vmm::platform {

bool WriteErrorWithoutWaiting(absl::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stderr) == text.size() &&
         std::fflush(stderr) == 0;
}

}  // namespace vmm::platform
