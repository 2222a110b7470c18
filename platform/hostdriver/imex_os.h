// What the driver asks the system of IMEX: imex_posix.cc, imex_win.cc. `root`
// is a folder in whose /dev and /proc it looks, as `vmmshare doctor --root`.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_IMEX_OS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_IMEX_OS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace vmm::hostdriver {

// The numbers of the channels that this process may open, ascending: character
// devices of the class that /proc/devices names, and open() is tried. None on
// Windows.
std::vector<std::uint32_t> OpenableChannels(const std::string& root);

// Whether a process named nvidia-imex runs. Never on Windows.
bool ImexDaemonRuns(const std::string& root);

// A name for this process's network namespace; empty where it has none.
std::string NetworkNamespace();

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_IMEX_OS_H_
