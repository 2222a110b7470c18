#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "platform/base/hex.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/machine.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {
namespace {

constexpr char kBootIdFile[] = "/proc/sys/kernel/random/boot_id";
constexpr std::size_t kBootIdText = 36;  // 8-4-4-4-12 hexadecimal digits.

}  // namespace

absl::StatusOr<Machine> ReadMachine(const std::string& root) {
  const std::string path = absl::StrCat(root, kBootIdFile);
  const OsHandle file =
      AdoptDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.has_value()) {
    return LastError().Of(
        absl::StrCat("open(", path, ")"),
        "vmmshare needs it to tell machines apart: mount /proc.");
  }
  char text[kBootIdText] = {};
  const ssize_t length = read(Fd(file), text, sizeof(text));
  if (length < 0) {
    return LastError().Of(absl::StrCat("read(", path, ")"));
  }
  const std::string digits =
      absl::StrReplaceAll(absl::string_view(text, length), {{"-", ""}});
  const std::optional<std::string> bytes = BytesFromHex(digits);
  Machine machine;
  if (!bytes.has_value() || bytes->size() != machine.boot_id.size()) {
    return absl::UnavailableError(absl::StrCat(
        path, " holds \"", absl::CEscape(absl::string_view(text, length)),
        "\"; expected a UUID. A container in whose masked paths it is sees "
        "nothing in it: take it out of them"));
  }
  std::copy(bytes->begin(), bytes->end(), machine.boot_id.begin());

  // HOST_NAME_MAX is 64 on Linux, to which the zero at the end comes.
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name)) != 0) {
    return LastError().Of("gethostname()");
  }
  machine.host_name = name;
  return machine;
}

absl::Status FillRandom(absl::Span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t filled = getrandom(bytes.data(), bytes.size(), 0);
    if (filled < 0) {
      if (errno == EINTR) continue;
      return LastError().Of(absl::StrCat("getrandom(", bytes.size(), ")"));
    }
    bytes.remove_prefix(static_cast<std::size_t>(filled));
  }
  return absl::OkStatus();
}

}  // namespace vmm::platform
