#include "tests/ipc/fake_systemd_posix.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "platform/base/check.h"
#include "platform/os/descriptor_posix.h"
#include "tests/support/emulator.h"
#include "tests/support/must.h"

namespace vmm::testing {
namespace {

using platform::OsHandle;
using platform::StoredHandle;

// Of memory of the host: every other descriptor is of a file of its own.
bool IsSameFileAsOneOf(const std::vector<StoredHandle>& stored,
                       const OsHandle& handle) {
  struct stat about {};
  if (::fstat(Fd(handle), &about) != 0 || !S_ISREG(about.st_mode)) return false;
  return std::any_of(
      stored.begin(), stored.end(), [&](const StoredHandle& each) {
        struct stat its {};
        return ::fstat(Fd(each.handle), &its) == 0 &&
               its.st_dev == about.st_dev && its.st_ino == about.st_ino;
      });
}

}  // namespace

FakeSystemd::FakeSystemd(const std::string& directory)
    : address_(directory + "/notify"),
      socket_(OsHandle::Adopt(
          ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))),
      stop_(Must(platform::CancelEvent::Create())) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  platform::Check(address_.size() < sizeof name.sun_path, "a short path");
  std::memcpy(name.sun_path, address_.data(), address_.size());
  platform::Check(::bind(Fd(socket_), reinterpret_cast<const sockaddr*>(&name),
                         sizeof name) == 0,
                  "the fake systemd cannot bind its socket");
  thread_ = std::thread([this] { Run(); });
}

FakeSystemd::~FakeSystemd() {
  stop_.Notify();
  thread_.join();
}

void FakeSystemd::KillAt(std::size_t count, bool lose,
                         std::function<void()> kill) {
  std::lock_guard<std::mutex> lock(mutex_);
  kill_at_ = count;
  lose_ = lose;
  kill_ = std::move(kill);
  seen_ = 0;
}

bool FakeSystemd::killed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return killed_;
}

void FakeSystemd::GoOn() {
  std::lock_guard<std::mutex> lock(mutex_);
  // What a dead service had sent is lost with it.
  for (char byte = 0; ::recv(Fd(socket_), &byte, 1, MSG_DONTWAIT) >= 0;) {
  }
  killed_ = false;
  ready_ = false;
  kill_at_ = 0;
}

std::size_t FakeSystemd::seen() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return seen_;
}

bool FakeSystemd::ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ready_;
}

std::vector<StoredHandle> FakeSystemd::Stored() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StoredHandle> copies;
  for (auto at = stored_.rbegin(); at != stored_.rend(); ++at) {
    copies.push_back({at->name, Must(platform::Duplicate(at->handle))});
  }
  return copies;
}

void FakeSystemd::Plant(const std::string& name, const OsHandle& handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  stored_.push_back({name, Must(platform::Duplicate(handle))});
}

void FakeSystemd::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  stored_.clear();
}

void FakeSystemd::Run() {
  for (;;) {
    std::array<pollfd, 2> waits = {
        {{Fd(socket_), POLLIN, 0}, {Fd(stop_.handle()), POLLIN, 0}}};
    ::poll(waits.data(), waits.size(), -1);
    if (waits[1].revents != 0) return;
    if (waits[0].revents != 0) Read();
  }
}

void FakeSystemd::Read() {
  std::array<char, 4096> text;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
  iovec part{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const std::lock_guard<std::mutex> lock(mutex_);
  const ssize_t size = ::recvmsg(Fd(socket_), &message, MSG_CMSG_CLOEXEC);
  if (size < 0) return;  // GoOn() was faster.
  Datagram datagram{std::string(text.data(), static_cast<std::size_t>(size)),
                    {}};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      datagram.handles.push_back(OsHandle::Adopt(fd));
    }
  }
  if (killed_) return;
  ++seen_;
  if (kill_at_ != 0 && seen_ == kill_at_) {
    killed_ = true;
    kill_();
    if (lose_) return;
  }
  Obey(std::move(datagram));
}

void FakeSystemd::Obey(Datagram datagram) {
  std::string name = "stored";
  bool store = false;
  bool remove = false;
  for (absl::string_view line : absl::StrSplit(datagram.text, '\n')) {
    if (absl::ConsumePrefix(&line, "FDNAME=")) name = std::string(line);
    store |= line == "FDSTORE=1";
    remove |= line == "FDSTOREREMOVE=1";
    ready_ |= line == "READY=1";
  }
  // As systemd checks it.
  EXPECT_LT(name.size(), 255u);
  EXPECT_FALSE(absl::StrContains(name, ":")) << name;
  if (remove) {
    std::erase_if(stored_,
                  [&](const StoredHandle& each) { return each.name == name; });
  }
  if (store) {
    EXPECT_EQ(datagram.handles.size(), 1u);
    for (OsHandle& handle : datagram.handles) {
      // As systemd does, which says nothing of it.
      if (IsSameFileAsOneOf(stored_, handle)) continue;
      stored_.push_back({name, std::move(handle)});
    }
  }
  // BARRIER=1 is answered by closing what came with it.
}

void PassHandles(platform::Channel& channel,
                 const std::vector<StoredHandle>& handles) {
  for (std::size_t at = 0; at <= handles.size(); at += platform::kMaxHandles) {
    std::vector<const OsHandle*> part;
    std::string names;
    for (std::size_t i = at;
         i < std::min(handles.size(), at + platform::kMaxHandles); ++i) {
      part.push_back(&handles[i].handle);
      absl::StrAppend(&names, handles[i].name, "\n");
    }
    Must(channel.Send(
        1, {reinterpret_cast<const std::uint8_t*>(names.data()), names.size()},
        part, Late()));
    // The last one is not full, and may be empty.
    if (part.size() < platform::kMaxHandles) return;
  }
}

void BecomeService(platform::Channel channel, const std::string& role,
                   const std::vector<std::string>& args) {
  std::vector<OsHandle> handles;
  std::vector<std::string> names;
  for (;;) {
    platform::Message message = Must(channel.Receive(Late()));
    const std::string text(message.payload.begin(), message.payload.end());
    for (absl::string_view name :
         absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      names.emplace_back(name);
    }
    for (OsHandle& handle : message.handles) {
      // Out of the way of those that are going to be numbers 3 and up.
      handles.push_back(
          OsHandle::Adopt(::fcntl(Fd(handle), F_DUPFD_CLOEXEC, 400)));
      platform::Check(handles.back().has_value(), "a descriptor above 400");
    }
    if (message.handles.size() < platform::kMaxHandles) break;
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    platform::Check(::dup2(Fd(handles[i]), static_cast<int>(3 + i)) >= 0,
                    "dup2() of a stored descriptor");
  }
  ::setenv("LISTEN_FDS", absl::StrCat(handles.size()).c_str(), 1);
  ::setenv("LISTEN_PID", absl::StrCat(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDNAMES", absl::StrJoin(names, ":").c_str(), 1);
  std::vector<std::string> words = CommandFor(
      IsEmulated() ? std::filesystem::read_symlink("/proc/self/exe").string()
                   : "/proc/self/exe");
  words.push_back("--vmmshare_child=" + role);
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers.front(), pointers.data());
  platform::Die("execvp() of the service failed");
}

}  // namespace vmm::testing
