#include <windows.h>

#include "platform/os/coarse_clock.h"

namespace vmm::platform {

// Reads a page that the system shows to every process.
std::uint64_t CoarseNow() { return ::GetTickCount64(); }

}  // namespace vmm::platform
