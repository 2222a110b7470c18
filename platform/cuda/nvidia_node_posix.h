// Which device node exported GPU memory is; internal to platform/.
#ifndef VMMSHARE_PLATFORM_CUDA_NVIDIA_NODE_POSIX_H_
#define VMMSHARE_PLATFORM_CUDA_NVIDIA_NODE_POSIX_H_

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace vmm::platform {

// /dev/nvidiactl's. Memory exported by the driver is an open one (measured).
// Nodes of GPUs have minors from 0 on, /dev/nvidia-modeset has 254.
inline constexpr unsigned kNvidiaControlMinor = 255;

// Whether `devices`, the text of /proc/devices, lists `number` as NVIDIA's. It
// is 195 (measured); the list is asked because that is only customary.
inline bool IsNvidiaMajor(unsigned number, absl::string_view devices) {
  for (absl::string_view line : absl::StrSplit(devices, '\n')) {
    if (line == "Block devices:") return false;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    unsigned listed = 0;
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &listed) &&
        listed == number &&
        (words[1] == "nvidia" || words[1] == "nvidiactl" ||
         words[1] == "nvidia-frontend")) {
      return true;
    }
  }
  return false;
}

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_CUDA_NVIDIA_NODE_POSIX_H_
