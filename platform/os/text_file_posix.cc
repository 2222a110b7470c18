#include "platform/os/text_file_posix.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/owned.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {
namespace {

constexpr std::size_t kMost = 256 << 10;

struct DirectoryTraits {
  using Value = DIR*;
  static Value Nothing() { return nullptr; }
  static bool Holds(Value value) { return value != nullptr; }
  static void Close(Value value) { ::closedir(value); }
};

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  ASSIGN_OR_RETURN(const OsHandle file, OpenForReading(path));
  std::string text;
  char piece[4096];
  while (text.size() < kMost) {
    const ssize_t count = ::read(Fd(file), piece, sizeof(piece));
    if (count < 0) {
      if (errno == EINTR) continue;
      return LastError().Of(absl::StrCat("read(", path, ")"));
    }
    if (count == 0) break;
    text.append(piece, static_cast<std::size_t>(count));
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& path) {
  const auto directory = Owned<DirectoryTraits>::Adopt(::opendir(path.c_str()));
  if (!directory.has_value()) {
    return LastError().Of(absl::StrCat("opendir(", path, ")"));
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;  // readdir() answers null at the end and for an error.
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return LastError().Of(absl::StrCat("readdir(", path, ")"));
  return names;
}

}  // namespace vmm::platform
