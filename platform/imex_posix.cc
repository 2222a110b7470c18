#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/imex.h"
#include "platform/os_error.h"
#include "platform/owned.h"

namespace vmm::platform {
namespace {

constexpr char kDirectory[] = "/dev/nvidia-caps-imex-channels";

struct DirectoryTraits {
  using Value = DIR*;
  static Value Nothing() { return nullptr; }
  static bool Holds(Value value) { return value != nullptr; }
  static void Close(Value value) { ::closedir(value); }
};

}  // namespace

absl::StatusOr<std::vector<ImexChannel>> ImexChannels() {
  std::vector<ImexChannel> channels;
  const auto directory = Owned<DirectoryTraits>::Adopt(::opendir(kDirectory));
  if (!directory.has_value()) {
    if (errno == ENOENT) return channels;
    return OsError(errno, absl::StrCat("opendir(", kDirectory, ")"));
  }
  while (const dirent* entry = ::readdir(directory.get())) {
    const absl::string_view name = entry->d_name;
    if (name.substr(0, 7) != "channel") continue;
    const std::string path = absl::StrCat(kDirectory, "/", name);
    channels.push_back({path, ::access(path.c_str(), R_OK | W_OK) == 0});
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
