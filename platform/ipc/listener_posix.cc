#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/cancels_of.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/channel_state_posix.h"
#include "platform/ipc/hang_up_posix.h"
#include "platform/ipc/peer_posix.h"
#include "platform/ipc/socket_advice_posix.h"
#include "platform/ipc/socket_path_posix.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/ipc/stale_sockets_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/machine.h"
#include "platform/os/os_error.h"
#include "platform/os/wait_posix.h"

namespace vmm::platform {
namespace {

// Peers that may wait to be accepted; more wait in their connect().
constexpr int kBacklog = 64;

// The lock of a directory. Held by whoever binds a chosen name in it, so that
// between looking at a left-over socket and replacing it nobody else does the
// same. The system releases it when its holder ends.
class DirectoryLock {
 public:
  static absl::StatusOr<DirectoryLock> Take(const std::string& directory);
  DirectoryLock(DirectoryLock&&) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  // Closing alone would not do: a child that another thread has forked meanwhile
  // has the descriptor as well, and would hold the lock for as long as it lives.
  ~DirectoryLock() {
    if (directory_.has_value()) ::flock(Fd(directory_), LOCK_UN);
  }

  const OsHandle& directory() const { return directory_; }

 private:
  explicit DirectoryLock(OsHandle directory)
      : directory_(std::move(directory)) {}

  OsHandle directory_;
};

absl::StatusOr<DirectoryLock> DirectoryLock::Take(
    const std::string& directory) {
  OsHandle handle = AdoptDescriptor(
      ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.has_value()) {
    return LastError().Of(absl::StrCat("open(", directory, ")"));
  }
  // Honest holders need microseconds. In a shared directory somebody could
  // hold it for ever, which must not hold us.
  const Deadline deadline = Deadline::In(absl::Seconds(1));
  while (::flock(Fd(handle), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return LastError().Of(absl::StrCat("flock(", directory, ")"));
    }
    if (deadline.Passed()) {
      return absl::UnavailableError(absl::StrCat(
          "another process has held the lock of ", directory,
          " for a second; use a directory of your own, or no chosen name"));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return DirectoryLock(std::move(handle));
}

std::uint64_t FileId(const std::string& path) {
  struct stat about;
  return ::lstat(path.c_str(), &about) == 0 ? about.st_ino : 0;
}

}  // namespace

absl::StatusOr<Listener> Listener::Bind(const ListenerOptions& options,
                                        PeerPolicy policy) {
  IsForkedChild();  // A use of vmmshare: records this process.
  ASSIGN_OR_RETURN(std::string directory, options.directory.empty()
                                              ? DefaultChannelDirectory()
                                              : options.directory);
  const bool chosen = !options.name.empty();
  ASSIGN_OR_RETURN(const std::string name,
                   chosen ? options.name : RandomName());
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    return absl::InvalidArgumentError(absl::StrCat(
        "the socket name \"", name, "\" must not have a directory part"));
  }
  while (directory.size() > 1 && directory.back() == '/') {
    directory.pop_back();
  }
  const std::string path =
      absl::StrCat(directory, directory == "/" ? "" : "/", name);
  ASSIGN_OR_RETURN(const SocketAddress address, MakeSocketAddress(path));
  // A server's directory is its own or root's, whoever its clients are.
  RETURN_IF_ERROR(CheckDirectory(directory, {}));

  std::optional<DirectoryLock> lock;
  if (chosen) {
    ASSIGN_OR_RETURN(DirectoryLock locked, DirectoryLock::Take(directory));
    lock.emplace(std::move(locked));
    RETURN_IF_ERROR(RemoveStaleSocket(path, address, lock->directory()));
  }
  OsHandle socket = AdoptDescriptor(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.has_value()) {
    return LastError().Of("socket(AF_UNIX, SOCK_SEQPACKET)");
  }
  // bind() gives the file the mode of the socket, so that it is never wider
  // than meant, not even for a moment.
  if (::fchmod(Fd(socket), 0600) != 0) return LastError().Of("fchmod(socket)");
  if (::bind(Fd(socket), address.get(), address.size) != 0) {
    const int error = errno;
    return OsError(error, absl::StrCat("bind(", path, ")"),
                   BindAdvice(error, directory));
  }
  const bool for_others = !policy.also_allowed.empty();
  Listener listener(std::move(socket), path, std::move(policy));
  // The umask may have taken bits away. Other users who are allowed need to
  // reach the socket; who they are is checked when they connect.
  if (::chmod(path.c_str(), for_others ? 0666 : 0600) != 0) {
    return LastError().Of(absl::StrCat("chmod(", path, ")"));
  }
  // Before anybody can connect and speak.
  RETURN_IF_ERROR(AskWhoSpeaks(listener.socket_));
  if (::listen(Fd(listener.socket_), kBacklog) != 0) {
    return LastError().Of(absl::StrCat("listen(", path, ")"));
  }
  SweepStaleSockets(path);
  return listener;
}

Listener::Listener(OsHandle socket, std::string address, PeerPolicy policy)
    : socket_(std::move(socket)),
      address_(std::move(address)),
      policy_(std::move(policy)),
      owner_(ProcessMark()),
      file_id_(FileId(address_)) {}

Listener::Listener(Listener&&) noexcept = default;

Listener& Listener::operator=(Listener&& other) noexcept {
  if (this != &other) {
    End();
    socket_ = std::move(other.socket_);
    address_ = std::move(other.address_);
    policy_ = std::move(other.policy_);
    tell_ = std::move(other.tell_);
    refused_ = other.refused_;
    owner_ = other.owner_;
    file_id_ = other.file_id_;
  }
  return *this;
}

Listener::~Listener() { End(); }

void Listener::End() {
  // In a forked child it is the parent's, which may listen on.
  if (!socket_.has_value() || ProcessMark() != owner_) return;
  // While this socket listens nobody replaces its file, but an administrator
  // may have removed it and another listener taken the name. A file that could
  // not be looked at, then or now, is taken for this one's own: else a failing
  // lstat would leave it behind for ever.
  const std::uint64_t id = FileId(address_);
  if (id == file_id_ || id == 0 || file_id_ == 0) ::unlink(address_.c_str());
  EndListening(std::move(socket_));
}

absl::StatusOr<Channel> Listener::Accept(Deadline deadline,
                                         const CancelEvent* cancel) {
  Check(socket_.has_value(), "this Listener was moved from");
  const std::string what = absl::StrCat("connection to ", address_);
  for (;;) {
    RETURN_IF_ERROR(
        WaitForEvents(socket_, POLLIN, deadline, CancelsOf(cancel), what)
            .status());
    RETURN_IF_ERROR(CheckThatConnectionsClose());
    OsHandle socket =
        AdoptDescriptor(::accept4(Fd(socket_), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.has_value()) {
      absl::StatusOr<PeerCredentials> peer = ReadPeer(socket);
      if (peer.ok() && Admit(*peer).ok()) {
        return Channel::State::MakeChannel(std::move(socket), *std::move(peer),
                                           policy_, HeldBy::kThisProcessAlone);
      }
      ++refused_;
      HangUp(std::move(socket), HeldBy::kThisProcessAlone,
             Connections::kOfStrangers);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      return LastError().Of(absl::StrCat("accept4(", address_, ")"));
    }
    // However many are turned away, the caller's deadline holds.
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no ", what, " by an allowed peer before the deadline"));
    }
  }
}

}  // namespace vmm::platform
