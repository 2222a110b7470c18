#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "platform/imex.h"

namespace vmm::platform {
namespace {

constexpr char kDirectory[] = "/dev/nvidia-caps-imex-channels";

}  // namespace

std::vector<ImexChannel> ImexChannels() {
  std::vector<ImexChannel> channels;
  // A directory that is missing or unreadable holds no channel for us.
  std::error_code error;
  for (std::filesystem::directory_iterator entry(kDirectory, error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    if (entry->path().filename().string().rfind("channel", 0) != 0) continue;
    channels.push_back({path, access(path.c_str(), R_OK | W_OK) == 0});
  }
  std::sort(channels.begin(), channels.end(),
            [](const ImexChannel& a, const ImexChannel& b) {
              return a.path < b.path;
            });
  return channels;
}

const char* ImexChannelPattern() {
  return "/dev/nvidia-caps-imex-channels/channelN";
}

}  // namespace vmm::platform
