#include "platform/ipc/socket_path_posix.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/peer_posix.h"
#include "platform/ipc/socket_advice_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

constexpr char kSharedDirectory[] = "NVIDIA_DRA_LOCAL_IPC_DIR";
constexpr char kRuntimeDirectory[] = "XDG_RUNTIME_DIR";

// A directory of a variable's, or "". Answers nothing in a set-user-id program,
// where the variables are somebody else's words.
absl::StatusOr<std::string> DirectoryFrom(const char* variable) {
  const char* value = ::secure_getenv(variable);
  if (value == nullptr || *value == '\0') return "";
  if (*value != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the variable ", variable, " is \"", value,
                     "\" and must be an absolute path"));
  }
  return value;
}

// For a directory of whose path the program has said nothing.
absl::Status CheckChosenForIt(const std::string& directory) {
  return Annotate(
      CheckDirectory(directory, {}), "",
      absl::StrCat("Or set ", kSharedDirectory, " to another directory"));
}

absl::StatusOr<std::string> MakePrivateDirectory(const std::string& parent,
                                                 const std::string& name) {
  RETURN_IF_ERROR(CheckChosenForIt(parent));
  std::string path = absl::StrCat(parent, "/", name);
  if (::mkdir(path.c_str(), 0700) == 0) {
    // The umask may have taken bits away, and later programs of this user's
    // would be kept out, too. Nobody else can have put another one in its
    // place, by what was checked above.
    if (::chmod(path.c_str(), 0700) != 0) {
      return LastError().Of(absl::StrCat("chmod(", path, ")"));
    }
  } else if (errno != EEXIST) {
    return LastError().Of(
        absl::StrCat("mkdir(", path, ")"),
        "Set NVIDIA_DRA_LOCAL_IPC_DIR to a directory that this "
        "process may write to; containers that share need one in "
        "common anyway.");
  }
  RETURN_IF_ERROR(CheckChosenForIt(path));
  return path;
}

}  // namespace

absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (path.empty() || path[0] != '/' || slash + 1 == path.size() ||
      path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path,
                     "\" is not a socket's address: expected its absolute "
                     "path, as /run/user/1000/vmmshare/keeper is one"));
  }
  SocketAddress address{};
  // Less one for the zero at the end.
  constexpr std::size_t kLongest = sizeof(address.name.sun_path) - 1;
  if (path.size() > kLongest) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", path, " has ", path.size(),
                     " bytes and the system takes ", kLongest,
                     "; use a directory with a shorter path"));
  }
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path, path.data(), path.size());
  address.size = sizeof(address.name);
  return address;
}

std::string OwnerText(uid_t owner) {
  std::string text = absl::StrCat("user ", owner);
  if (StandsForUnknownUsers(UserId(absl::StrCat(owner)))) {
    absl::StrAppend(&text,
                    " (a number that stands for everybody whom this user "
                    "namespace does not know: in a rootless container, what is "
                    "not of the user who started it; in others, what is not of "
                    "the range of users that they were given)");
  }
  return text;
}

absl::Status CheckDirectory(const std::string& directory,
                            const PeerPolicy& policy) {
  // With a slash at the end, lstat would follow a link.
  std::string path = directory;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  struct stat about;
  if (::lstat(path.c_str(), &about) != 0) {
    const LastError error;
    return error.Of(absl::StrCat("lstat(", path, ")"),
                    error.code() == ENOENT ? "A channel's directory must exist."
                                           : LookAdvice(error.code()));
  }
  if (!S_ISDIR(about.st_mode)) {
    return absl::PermissionDeniedError(absl::StrCat(
        path,
        S_ISLNK(about.st_mode)
            ? " is a symbolic link and must be a directory: a link can be "
              "pointed elsewhere. Name the directory itself"
            : " is a file and must be a directory. Name another path"));
  }
  if (!MayOwnPath(about.st_uid, policy)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the directory ", path, " belongs to ", OwnerText(about.st_uid),
        ", who is neither root nor an allowed user (this process's is ",
        CurrentUser().text(),
        "). Use a directory of one of these, or chown this one."));
  }
  const bool writable_by_others = (about.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  const bool sticky = (about.st_mode & S_ISVTX) != 0;
  if (writable_by_others && !sticky) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "the directory %s has mode %04o, so that others could replace the "
        "sockets in it. Run chmod go-w on it, or make it sticky (mode 1777) "
        "if it is meant to be shared; Kubernetes' emptyDir is not by itself.",
        path, about.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DefaultChannelDirectory() {
  ASSIGN_OR_RETURN(std::string shared, DirectoryFrom(kSharedDirectory));
  if (!shared.empty()) {
    RETURN_IF_ERROR(
        Annotate(CheckDirectory(shared, {}),
                 absl::StrCat("the folder that ", kSharedDirectory, " names")));
    return shared;
  }
  ASSIGN_OR_RETURN(const std::string runtime, DirectoryFrom(kRuntimeDirectory));
  if (!runtime.empty()) {
    absl::StatusOr<std::string> made =
        MakePrivateDirectory(runtime, "vmmshare");
    if (made.ok()) return made;
    // Of another user's after sudo or su, of another machine's after srun.
    return Annotate(made.status(),
                    absl::StrCat("in the folder that ", kRuntimeDirectory,
                                 " names (unset it where it is not of this "
                                 "user and machine)"));
  }
  return MakePrivateDirectory("/tmp",
                              absl::StrCat("vmmshare-", CurrentUser().text()));
}

}  // namespace vmm::platform
