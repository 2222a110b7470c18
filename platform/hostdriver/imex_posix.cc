#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "platform/hostdriver/environment.h"
#include "platform/hostdriver/folders_posix.h"
#include "platform/hostdriver/imex_os.h"

namespace vmm::hostdriver {
namespace {

constexpr char kFolder[] = "/dev/nvidia-caps-imex-channels";
constexpr std::string_view kClass = "nvidia-caps-imex-channels";
constexpr std::string_view kDaemon = "nvidia-imex";

// The major number of channel nodes, if the loaded driver registered one.
std::optional<unsigned> ChannelMajor(const std::string& root) {
  std::ifstream devices(root + "/proc/devices");
  for (std::string line; std::getline(devices, line);) {
    std::istringstream words(line);
    unsigned number = 0;
    std::string name;
    if (words >> number >> name && name == kClass) return number;
  }
  return std::nullopt;
}

// Opened and not only looked at: a container's device rules refuse the open
// of a node whose permission bits allow it.
bool CanOpen(const std::string& path, unsigned wanted_major) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISCHR(info.st_mode) ||
      major(info.st_rdev) != wanted_major) {
    return false;
  }
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return false;
  close(fd);
  return true;
}

}  // namespace

std::vector<std::uint32_t> OpenableChannels(const std::string& root) {
  std::vector<std::uint32_t> channels;
  const std::optional<unsigned> wanted = ChannelMajor(root);
  if (!wanted) return channels;
  constexpr std::string_view kPrefix = "channel";
  ForEachIn(root + kFolder, [&](const std::string& name) {
    if (name.compare(0, kPrefix.size(), kPrefix) != 0) return;
    const auto number = ParseNumber<std::uint32_t>(name.substr(kPrefix.size()));
    if (number && CanOpen(root + kFolder + "/" + name, *wanted)) {
      channels.push_back(*number);
    }
  });
  std::sort(channels.begin(), channels.end());
  return channels;
}

bool ImexDaemonRuns(const std::string& root) {
  bool runs = false;
  ForEachNumberIn(root + "/proc", [&](const std::string& name) {
    if (runs) return;
    std::ifstream file(root + "/proc/" + name + "/comm");
    std::string command;
    runs = std::getline(file, command) && command == kDaemon;
  });
  return runs;
}

std::string NetworkNamespace() {
  struct stat info {};
  if (stat("/proc/self/ns/net", &info) != 0) return "";
  return "net" + std::to_string(info.st_ino);
}

}  // namespace vmm::hostdriver
