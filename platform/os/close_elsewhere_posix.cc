#include "platform/os/close_elsewhere_posix.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <deque>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

using Sender = std::pair<UserId, std::int64_t>;

// Lives as long as the process: its threads may outlast everything else.
class Closer {
 public:
  void Add(std::vector<OsHandle> handles, const Sender& sender) {
    if (handles.empty()) return;
    const MutexLock lock(mutex_);
    for (OsHandle& handle : handles) {
      waiting_.emplace_back(std::move(handle), sender);
      ++open_[sender];
    }
    if (threads_ < kMostThreads) StartThread();
  }

  std::size_t OpenOf(const UserId& user, std::optional<std::int64_t> process) {
    const MutexLock lock(mutex_);
    // None could be started before.
    if (!waiting_.empty() && threads_ == 0) StartThread();
    std::size_t open = 0;
    for (const auto& [sender, count] : open_) {
      if (sender.first != user) continue;
      if (!process.has_value() || sender.second == *process) open += count;
    }
    return open;
  }

 private:
  // One that blocks holds up no other until all threads are blocked.
  static constexpr int kMostThreads = 4;

  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    try {
      std::thread([this] { Work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      // They wait for a thread that runs already, or for the next call.
    }
  }

  void Work() {
    MutexLock lock(mutex_);
    while (!waiting_.empty()) {
      auto [handle, sender] = std::move(waiting_.front());
      waiting_.pop_front();
      lock.Unlock();
      handle.Reset();
      lock.Lock();
      const auto found = open_.find(sender);
      if (--found->second == 0) open_.erase(found);
    }
    --threads_;
  }

  Mutex mutex_;
  std::deque<std::pair<OsHandle, Sender>> waiting_ ABSL_GUARDED_BY(mutex_);
  // With those being closed.
  std::map<Sender, std::size_t> open_ ABSL_GUARDED_BY(mutex_);
  int threads_ ABSL_GUARDED_BY(mutex_) = 0;
};

Closer& TheCloser() {
  static Closer& closer = *new Closer;
  return closer;
}

}  // namespace

absl::StatusOr<FileLook> LookAt(const OsHandle& handle) {
  struct statx about {};
  if (::statx(Fd(handle), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
              STATX_TYPE | STATX_MODE | STATX_SIZE, &about) != 0) {
    return OsError(errno, absl::StrCat("statx(descriptor ", handle.get(), ")"));
  }
  return FileLook{about.stx_mode, about.stx_size, about.stx_rdev_major,
                  about.stx_rdev_minor};
}

const char* TypeName(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISCHR(mode)) return "a character device";
  return "an object of unknown type";
}

absl::Status ClosesAtOnce(const OsHandle& handle) {
  // Files that are memory have seals, and no others have.
  if (::fcntl(Fd(handle), F_GET_SEALS) >= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const FileLook look, LookAt(handle));
  const bool without_type = (look.mode & S_IFMT) == 0;  // An eventfd, a pidfd.
  if (S_ISCHR(look.mode) || S_ISFIFO(look.mode) || without_type) {
    return absl::OkStatus();
  }
  if (S_ISSOCK(look.mode)) {
    int domain = 0;
    socklen_t size = sizeof(domain);
    if (::getsockopt(Fd(handle), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) {
      return OsError(errno, "getsockopt(SO_DOMAIN)");
    }
    if (domain == AF_UNIX) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a handle in it is ", TypeName(look.mode),
                   S_ISSOCK(look.mode) ? " of a network" : "",
                   ", whose closing may wait for somebody; a channel carries "
                   "memory, character devices, pipes, Unix sockets and objects "
                   "like eventfds"));
}

void CloseElsewhere(std::vector<OsHandle> handles, const UserId& user,
                    std::int64_t process) {
  TheCloser().Add(std::move(handles), {user, process});
}

std::size_t NotYetClosed(const UserId& user,
                         std::optional<std::int64_t> process) {
  return TheCloser().OpenOf(user, process);
}

}  // namespace vmm::platform
