#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/imex.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

constexpr char kDirectory[] = "/dev/nvidia-caps-imex-channels";
constexpr char kClass[] = "nvidia-caps-imex-channels";
constexpr char kDaemon[] = "nvidia-imex";

// Opened and not asked for with access(): a container's device rules refuse
// the open of a node whose permission bits allow it.
absl::Status TryOpen(const std::string& path, bool is_device) {
  if (!is_device) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no character device"));
  }
  const OsHandle node = AdoptDescriptor(
      ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (node.has_value()) return absl::OkStatus();
  return LastError().Of(absl::StrCat("open(", path, ")"));
}

ImexChannel Look(const std::string& path, absl::string_view number) {
  ImexChannel channel;
  channel.path = path;
  unsigned parsed = 0;
  if (absl::SimpleAtoi(number, &parsed)) channel.number = parsed;
  struct stat about;
  if (::stat(path.c_str(), &about) != 0) {
    channel.reason = LastError().Of(absl::StrCat("stat(", path, ")"));
    return channel;
  }
  channel.is_device = S_ISCHR(about.st_mode);
  if (channel.is_device) channel.major = major(about.st_rdev);
  channel.mode = about.st_mode & 07777;
  channel.owner = UserId(absl::StrCat(about.st_uid));
  channel.reason = TryOpen(path, channel.is_device);
  channel.usable = channel.reason.ok();
  return channel;
}

}  // namespace

absl::StatusOr<std::vector<ImexChannel>> ImexChannels(const std::string& root) {
  const std::string directory = absl::StrCat(root, kDirectory);
  absl::StatusOr<std::vector<std::string>> names = NamesIn(directory);
  std::vector<ImexChannel> channels;
  if (absl::IsNotFound(names.status())) return channels;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    absl::string_view number = name;
    if (!absl::ConsumePrefix(&number, "channel")) continue;
    channels.push_back(Look(absl::StrCat(directory, "/", name), number));
  }
  std::sort(channels.begin(), channels.end(),
            [](const ImexChannel& a, const ImexChannel& b) {
              return std::tie(a.number, a.path) < std::tie(b.number, b.path);
            });
  return channels;
}

const char* ImexChannelPattern() {
  return "/dev/nvidia-caps-imex-channels/channelN";
}

absl::StatusOr<std::optional<unsigned>> ImexChannelMajor(
    const std::string& root) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadTextFile(absl::StrCat(root, "/proc/devices")));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(absl::StripAsciiWhitespace(line),
                       absl::MaxSplits(' ', 1));
    unsigned number = 0;
    if (entry.second == kClass && absl::SimpleAtoi(entry.first, &number)) {
      return std::optional<unsigned>(number);
    }
  }
  return std::optional<unsigned>();
}

absl::StatusOr<bool> ImexDaemonSeen(const std::string& root) {
  const std::string proc = absl::StrCat(root, "/proc");
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(proc));
  for (const std::string& name : names) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) continue;
    // A process may have ended meanwhile.
    absl::StatusOr<std::string> command =
        ReadTextFile(absl::StrCat(proc, "/", name, "/comm"));
    if (command.ok() && absl::StripAsciiWhitespace(*command) == kDaemon) {
      return true;
    }
  }
  return false;
}

}  // namespace vmm::platform
