#include "platform/os/close_elsewhere_posix.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/of_process_posix.h"
#include "platform/os/start_detached_posix.h"

namespace vmm::platform {
namespace {

// Nobody of a connection: those of a lane are counted together.
using Sender = std::pair<UserId, std::int64_t>;

// More than the empty packets that fit in a socket buffer of the default size.
constexpr int kMostEmptyPackets = 512;

// Read without room for them, descriptors are dropped by the kernel. An empty
// packet reads like the end, and a hostile peer may send them.
void DropUnread(const OsHandle& socket) {
  std::uint8_t byte;
  for (int ends = 0; ends < kMostEmptyPackets;) {
    const ssize_t size = ::recv(Fd(socket), &byte, sizeof(byte), MSG_DONTWAIT);
    if (size < 0 && errno != EINTR && errno != ECONNRESET) break;
    if (size <= 0) ++ends;
  }
}

// Threads that close, and what waits for them.
class Lane {
 public:
  void Add(OsHandle handle, Sender sender, bool drop_unread) {
    const MutexLock lock(mutex_);
    // All that takes memory, before it counts.
    std::size_t& open = open_[sender];
    waiting_.push_back({std::move(handle), std::move(sender), drop_unread});
    ++open;
    if (threads_ < kMostThreads) StartThread();
  }

  std::size_t OpenOf(const UserId& user, std::optional<std::int64_t> process) {
    const MutexLock lock(mutex_);
    EnsureThread();
    std::size_t open = 0;
    for (const auto& [sender, count] : open_) {
      if (sender.first != user) continue;
      if (!process.has_value() || sender.second == *process) open += count;
    }
    return open;
  }

 private:
  struct Closing {
    OsHandle handle;
    Sender sender;
    bool drop_unread = false;
  };

  // One that blocks holds up no other until all threads are blocked.
  static constexpr int kMostThreads = 4;

  // None could be started before.
  void EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!waiting_.empty() && threads_ == 0) StartThread();
  }

  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Else they wait for a thread that runs already, or for the next call.
    if (StartDetached("vmmshare-close", [this] { Work(); })) ++threads_;
  }

  void Work() {
    MutexLock lock(mutex_);
    while (!waiting_.empty()) {
      Closing closing = std::move(waiting_.front());
      waiting_.pop_front();
      lock.Unlock();
      if (closing.drop_unread) DropUnread(closing.handle);
      closing.handle.Reset();
      lock.Lock();
      const auto found = open_.find(closing.sender);
      if (--found->second == 0) open_.erase(found);
    }
    --threads_;
  }

  Mutex mutex_;
  std::deque<Closing> waiting_ ABSL_GUARDED_BY(mutex_);
  // With those being closed.
  std::map<Sender, std::size_t> open_ ABSL_GUARDED_BY(mutex_);
  int threads_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct Lanes {
  Lane handles;
  Lane peers;
  Lane strangers;
};

Lanes& TheLanes() {
  static constinit OfProcess<Lanes> lanes;
  return lanes.Get();
}

Lane& LaneOf(Connections whose) {
  return whose == Connections::kOfPeers ? TheLanes().peers
                                        : TheLanes().strangers;
}

}  // namespace

absl::Status ClosesAtOnce(const OsHandle& handle) {
  // Files that are memory have seals, and no others have.
  if (::fcntl(Fd(handle), F_GET_SEALS) >= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const FileLook look, LookAt(handle));
  const bool without_type = (look.mode & S_IFMT) == 0;  // An eventfd, a pidfd.
  if (S_ISCHR(look.mode) || S_ISFIFO(look.mode) || without_type) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a handle in it is ", TypeName(look.mode),
                   ", whose closing may wait for somebody; a channel carries "
                   "memory, character devices, pipes and objects like "
                   "eventfds"));
}

void CloseElsewhere(std::vector<OsHandle> handles, const UserId& user,
                    std::int64_t process) {
  for (OsHandle& handle : handles) {
    TheLanes().handles.Add(std::move(handle), {user, process}, false);
  }
}

void CloseElsewhere(OsHandle connection, Connections whose) {
  LaneOf(whose).Add(std::move(connection), {}, false);
}

void DropUnreadElsewhere(OsHandle duplicate, Connections whose) {
  LaneOf(whose).Add(std::move(duplicate), {}, true);
}

std::size_t NotYetClosed(const UserId& user,
                         std::optional<std::int64_t> process) {
  return TheLanes().handles.OpenOf(user, process);
}

std::size_t NotYetClosed(Connections whose) {
  return LaneOf(whose).OpenOf({}, std::nullopt);
}

}  // namespace vmm::platform
