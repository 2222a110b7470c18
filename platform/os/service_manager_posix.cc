#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/process.h"
#include "platform/os/service_manager.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START

// Empty when it is not set. A set-user-id program must not be told by its
// caller whom to hand descriptors to.
std::string Variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<ServiceManager> ServiceManager::Find() {
  const std::string path = Variable("NOTIFY_SOCKET");
  if (path.empty()) {
    return absl::NotFoundError(
        "no service manager: NOTIFY_SOCKET is not set (systemd sets it for "
        "Type=notify)");
  }
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const bool known = path[0] == '/' || path[0] == '@';
  if (!known || path.size() < 2 || path.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(
        "NOTIFY_SOCKET is \"", path,
        "\"; expected an absolute path or @NAME of a socket, shorter than ",
        sizeof name.sun_path, " bytes"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  if (path[0] == '@') name.sun_path[0] = '\0';  // Of no directory.
  OsHandle socket = AdoptDescriptor(
      ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.has_value()) return LastError().Of("socket(AF_UNIX, SOCK_DGRAM)");
  // Connected, so that poll() tells when there is room in its queue.
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (::connect(Fd(socket), reinterpret_cast<const sockaddr*>(&name), size) !=
      0) {
    return LastError().Of(absl::StrCat("connect(NOTIFY_SOCKET ", path, ")"));
  }
  ServiceManager manager(std::move(socket), path);
  std::uint64_t capacity = 0;
  if (absl::SimpleAtoi(Variable("FDSTORE"), &capacity)) {
    manager.capacity_ = capacity;
  }
  return manager;
}

absl::Status ServiceManager::Send(absl::string_view state,
                                  const OsHandle* handle, Deadline deadline) {
  std::string text(state);
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (handle != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = Fd(*handle);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  for (;;) {
    if (::sendmsg(Fd(socket_), &message, MSG_NOSIGNAL) >= 0) {
      return absl::OkStatus();
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return LastError().Of(
          absl::StrCat("sendmsg(NOTIFY_SOCKET ", address_, ", ", state, ")"));
    }
    RETURN_IF_ERROR(
        WaitForEvents(socket_, POLLOUT, deadline, {},
                      absl::StrCat("room in the queue of ", address_))
            .status());
  }
}

absl::Status ServiceManager::Ready(Deadline deadline) {
  return Send("READY=1", nullptr, deadline);
}

absl::Status ServiceManager::Store(absl::string_view name,
                                   const OsHandle& handle, Deadline deadline) {
  // Without FDPOLL=0 it would close what polls as hung up, which a driver's
  // device may do for reasons of its own.
  return Send(absl::StrCat("FDSTORE=1\nFDNAME=", name, "\nFDPOLL=0"), &handle,
              deadline);
}

absl::Status ServiceManager::Remove(absl::string_view name, Deadline deadline) {
  return Send(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name), nullptr,
              deadline);
}

absl::Status ServiceManager::Barrier(Deadline deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return LastError().Of("pipe2(O_CLOEXEC)");
  const OsHandle read_end = AdoptDescriptor(ends[0]);
  OsHandle write_end = AdoptDescriptor(ends[1]);
  RETURN_IF_ERROR(Send("BARRIER=1", &write_end, deadline));
  // It closes its copy when it comes to this message: the pipe then hangs up.
  write_end.Reset();
  return WaitForEvents(
             read_end, 0, deadline, {},
             absl::StrCat("answer of the service manager at ", address_))
      .status();
}

// systemd compares open files by kcmp(), which a process may be forbidden.
// Those of one memfd that was opened twice are two to that, and one here.
std::optional<FileNumber> FileNumberOf(const OsHandle& handle) {
  struct stat about {};
  if (::fstat(Fd(handle), &about) != 0 || !S_ISREG(about.st_mode)) {
    return std::nullopt;
  }
  return FileNumber(about.st_dev, about.st_ino);
}

StoredHandles TakeStoredHandles() {
  StoredHandles taken;
  std::int64_t pid = 0;
  int count = 0;
  // Meant for another process when the id is another one: they are inherited.
  if (!absl::SimpleAtoi(Variable("LISTEN_PID"), &pid) ||
      pid != CurrentProcessId()) {
    return taken;
  }
  const std::string stated = Variable("LISTEN_FDS");
  if (!absl::SimpleAtoi(stated, &count) || count < 0) {
    taken.problems.push_back(absl::StrCat(
        "LISTEN_FDS is \"", stated, "\"; expected a number of descriptors"));
    return taken;
  }
  const std::string variable = Variable("LISTEN_FDNAMES");
  const std::vector<std::string> names = absl::StrSplit(variable, ':');
  for (int i = 0; i < count; ++i) {
    const int fd = kFirstPassed + i;
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      taken.problems.push_back(absl::StrCat(
          "LISTEN_FDS states ", count, " descriptors; ",
          LastError().Of(absl::StrCat("fcntl(", fd, ", F_SETFD)")).message()));
      break;
    }
    const auto index = static_cast<std::size_t>(i);
    taken.handles.push_back(
        {index < names.size() ? names[index] : "", OsHandle::Adopt(fd)});
  }
  return taken;
}

}  // namespace vmm::platform
