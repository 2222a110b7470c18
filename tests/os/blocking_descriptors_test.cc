// Descriptors whose close() and fstat() block: nobody waits for them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/cuda/memory_handle.h"
#include "platform/cuda/nvidia_node_posix.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/close_elsewhere_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/blocking_file_posix.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using testing::BlockingFile;
using testing::Child;
using ::testing::HasSubstr;
using testing::RegisterChild;

// A blocked call lasts 10 s at least.
constexpr absl::Duration kAtOnce = absl::Seconds(5);

bool AllAreClosed() { return NotYetClosed(CurrentUser()) == 0; }

class BlockingDescriptorsTest : public OsTest {
 protected:
  OsHandle File() {
    const std::string path = temp_.File("file");
    OsHandle file = OsHandle::Adopt(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    Check(file.has_value(), "open() failed");
    return file;
  }
  TempDirectory temp_;
};

TEST_F(BlockingDescriptorsTest, AReceiverWaitsForNoClose) {
  const OsHandle file = File();
  const OsHandle memory = MemoryWith("x");
  const OsHandle* handles[] = {&memory, &file, &memory};
  {
    const BlockingFile blocking(RawFd(file));
    const absl::Time start = absl::Now();
    {
      auto [peer, ours] = Must(Channel::Pair());
      Must(peer.Send(1, {}, handles, Late()));
      const absl::Status status = ours.Receive(Late()).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("is a file"));
      EXPECT_FALSE(ours.is_open());
    }
    EXPECT_LT(absl::Now() - start, kAtOnce);
    EXPECT_EQ(NotYetClosed(CurrentUser()), 1u);
    EXPECT_EQ(NotYetClosed(UserId("54321")), 0u) << "it sent none";
  }
  EXPECT_TRUE(ComesTrue(&AllAreClosed));
}

TEST_F(BlockingDescriptorsTest, WhatIsSentHasANameInMessages) {
  EXPECT_STREQ(TypeName(S_IFREG | 0600), "a file");
  EXPECT_STREQ(TypeName(S_IFDIR), "a directory");
  EXPECT_STREQ(TypeName(S_IFSOCK), "a socket");
  EXPECT_STREQ(TypeName(S_IFIFO), "a pipe");
  EXPECT_STREQ(TypeName(S_IFBLK | 0660), "a block device");
  EXPECT_STREQ(TypeName(S_IFCHR), "a character device");
  EXPECT_STREQ(TypeName(0600), "a kernel object, as eventfds and dma-bufs");
  EXPECT_STREQ(TypeName(S_IFLNK), "an object of unknown type");
}

TEST_F(BlockingDescriptorsTest, WhoSendsTooManyIsNotHeardUntilTheyAreClosed) {
  const OsHandle file = File();
  const std::vector<const OsHandle*> handles(kMaxHandles, &file);
  const absl::Time start = absl::Now();
  {
    const BlockingFile blocking(RawFd(file));
    const auto expect_unheard = [](const std::string& whose) {
      auto [peer, ours] = Must(Channel::Pair());
      Must(peer.Send(1, {}, {}, Late()));
      const absl::Status status = ours.Receive(Late()).status();
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(whose));
      EXPECT_TRUE(peer.WaitForHangUp(Late()).ok());
    };
    // Others of the same user are heard until all have sent four times as many.
    for (std::int64_t other = 1; other <= 3; ++other) {
      std::vector<OsHandle> copies;
      for (std::size_t i = 0; i < kMaxHandles; ++i) {
        copies.push_back(Must(Duplicate(file)));
      }
      CloseElsewhere(std::move(copies), CurrentUser(), -other);
    }
    {
      auto [peer, ours] = Must(Channel::Pair());
      Must(peer.Send(1, {}, {handles.data(), kMaxHandles - 1}, Late()));
      EXPECT_TRUE(absl::IsDataLoss(ours.Receive(Late()).status()));
    }
    {
      auto [peer, ours] = Must(Channel::Pair());
      Must(peer.Send(1, {}, {handles.data(), 1}, Late()));
      EXPECT_TRUE(absl::IsDataLoss(ours.Receive(Late()).status()));
    }
    expect_unheard(absl::StrCat("16 descriptors that process ", ::getpid()));
    EXPECT_LT(absl::Now() - start, kAtOnce);
  }
  EXPECT_TRUE(ComesTrue(&AllAreClosed));
  auto [peer, ours] = Must(Channel::Pair());
  Must(peer.Send(1, {}, {}, Late()));
  EXPECT_TRUE(ours.Receive(Late()).ok());
}

TEST_F(BlockingDescriptorsTest, OfAUserWhoSendsTooManyNobodyIsHeard) {
  const OsHandle file = File();
  {
    const BlockingFile blocking(RawFd(file));
    for (std::int64_t other = 1; other <= 64; ++other) {
      std::vector<OsHandle> copies;
      copies.push_back(Must(Duplicate(file)));
      CloseElsewhere(std::move(copies), CurrentUser(), -other);
    }
    auto [peer, ours] = Must(Channel::Pair());
    Must(peer.Send(1, {}, {}, Late()));
    const absl::Status status = ours.Receive(Late()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("64 descriptors that processes of user"));
  }
  EXPECT_TRUE(ComesTrue(&AllAreClosed));
}

TEST_F(BlockingDescriptorsTest, ChecksAskNoFileSystem) {
  OsHandle file = File();
  {
    const BlockingFile blocking(RawFd(file));
    const absl::Time start = absl::Now();
    for (const MemoryBacking backing :
         {MemoryBacking::kHostMemory, MemoryBacking::kNvidiaDriver}) {
      const absl::Status status = CheckMemoryHandle(file, backing, 4096);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("is a file"));
    }
    const absl::Status status =
        SharedMemory::Open(file, 4096, PeerAccess::kRead).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_LT(absl::Now() - start, kAtOnce);
  }
}

TEST_F(BlockingDescriptorsTest, OfNvidiasNodesOnlyTheControlNodeIsMemory) {
  constexpr char kDevices[] =
      "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n"
      "195 nvidiactl\n234 nvidia-caps\n\nBlock devices:\n  8 nvidia\n";
  EXPECT_TRUE(IsNvidiaMajor(195, kDevices));
  EXPECT_FALSE(IsNvidiaMajor(234, kDevices));
  EXPECT_FALSE(IsNvidiaMajor(1, kDevices));
  EXPECT_FALSE(IsNvidiaMajor(8, kDevices));
  for (const char* line :
       {"195 nvidia", "195 nvidiactl", "195 nvidia-frontend"}) {
    EXPECT_TRUE(IsNvidiaMajor(195, line)) << line;
    EXPECT_FALSE(IsNvidiaMajor(196, line)) << line;
  }
  for (const char* line : {"", "195", "195 nvidia-modeset", "195 nvidia 1",
                           "nvidia 195", "x195 nvidia"}) {
    EXPECT_FALSE(IsNvidiaMajor(195, line)) << line;
  }
  const OsHandle null =
      OsHandle::Adopt(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const absl::Status status =
      CheckMemoryHandle(null, MemoryBacking::kNvidiaDriver, 4096);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a character device 1:3; expected GPU memory"));
}

// Serves a FUSE mount of one file, /file, on `device`: it can be opened, and
// nothing that is asked of it then is answered.
class SilentServer {
 public:
  explicit SilentServer(int device) : device_(device) {}
  void Serve() {
    for (;;) {
      const ssize_t size = ::read(device_, request_, sizeof(request_));
      if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header header;
      std::memcpy(&header, request_, sizeof(header));
      Answer(header);
    }
  }

 private:
  template <typename Out>
  void Reply(const fuse_in_header& to, const Out& out) {
    struct {
      fuse_out_header header;
      Out body;
    } reply{{sizeof(fuse_out_header) + sizeof(Out), 0, to.unique}, out};
    static_cast<void>(!::write(device_, &reply, reply.header.len));
  }

  void Answer(const fuse_in_header& header) {
    constexpr std::uint64_t kFile = 2;
    if (header.opcode == FUSE_INIT) {
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = 31;
      out.max_write = 4096;
      Reply(header, out);
    } else if (header.opcode == FUSE_LOOKUP) {
      fuse_entry_out out{};
      out.nodeid = kFile;
      out.attr.mode = S_IFREG | 0644;
      out.attr.nlink = 1;
      Reply(header, out);
    } else if (header.opcode == FUSE_GETATTR && header.nodeid != kFile) {
      fuse_attr_out out{};
      out.attr.mode = S_IFDIR | 0755;
      out.attr.nlink = 2;
      Reply(header, out);
    } else if (header.opcode == FUSE_OPEN) {
      Reply(header, fuse_open_out{});
    }
  }

  const int device_;
  alignas(8) char request_[1 << 17] = {};
};

constexpr int kNoFuse = 77;

// Opens `path`, sends it to who listens at `address`, and waits for its end.
[[noreturn]] void SendFile(const std::string& address,
                           const std::string& path) {
  const OsHandle file =
      OsHandle::Adopt(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Check(file.has_value(), "cannot open the file that is served");
  Channel channel = Must(Channel::Connect(address, {}, Late()));
  const OsHandle* handles[] = {&file};
  Must(channel.Send(1, {}, handles, Late()));
  for (;;) ::pause();
}

// Mounts at args[1], and sends the file there to who listens at args[0].
int FusePeerMain(const std::vector<std::string>& args) {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNoFuse;
  for (const auto& [file, text] :
       {std::pair<const char*, std::string>{"/proc/self/setgroups", "deny"},
        {"/proc/self/uid_map", absl::StrCat(user, " ", user, " 1")},
        {"/proc/self/gid_map", absl::StrCat(group, " ", group, " 1")}}) {
    const OsHandle map = OsHandle::Adopt(::open(file, O_WRONLY | O_CLOEXEC));
    if (::write(RawFd(map), text.data(), text.size()) < 0) return kNoFuse;
  }
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return kNoFuse;
  const std::string options = absl::StrCat(
      "fd=", device, ",rootmode=40000,user_id=", user, ",group_id=", group);
  if (::mount("silent", args[1].c_str(), "fuse", MS_NODEV | MS_NOSUID,
              options.c_str()) != 0) {
    return kNoFuse;
  }
  // In two processes: one that serves a file which it has open cannot end.
  const pid_t sender = ::fork();
  if (sender == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(device);
    SendFile(args[0], absl::StrCat(args[1], "/file"));
  }
  if (sender > 0) std::make_unique<SilentServer>(device)->Serve();
  return 1;
}
const bool kFusePeer = RegisterChild("fuse_peer", &FusePeerMain);

TEST_F(BlockingDescriptorsTest, AFileOfAFuseMountThatDoesNotAnswerHoldsNobody) {
  const std::string mount = temp_.File("mount");
  Check(::mkdir(mount.c_str(), 0755) == 0, "mkdir() failed");
  std::optional<Listener> listener =
      Must(Listener::Bind({temp_.path(), ""}, {}));
  Child peer = Child::Start("fuse_peer", {listener->address(), mount});
  const Process process = Must(Process::Open(peer.pid()));
  std::optional<Channel> ours;
  while (!ours.has_value()) {
    absl::StatusOr<Channel> accepted = listener->Accept(In(20));
    if (accepted.ok()) ours = *std::move(accepted);
    if (Must(process.HasExited())) {
      ASSERT_EQ(peer.Wait(), kNoFuse);
      GTEST_SKIP() << "no FUSE mount can be had in a namespace here";
    }
  }
  const absl::Time start = absl::Now();
  const absl::Status status = ours->Receive(Late()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a file"));
  ours.reset();
  listener.reset();
  EXPECT_LT(absl::Now() - start, kAtOnce);
  EXPECT_EQ(NotYetClosed(CurrentUser()), 1u);
  // With the server its mount ends, and whatever waits for it.
  peer.Kill();
  EXPECT_EQ(peer.Wait(), Child::kKilled);
  EXPECT_TRUE(ComesTrue(&AllAreClosed));
}

}  // namespace
}  // namespace vmm::platform
