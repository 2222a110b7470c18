// Descriptors whose close() and fstat() block: nobody waits for them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "platform/cuda/memory_handle.h"
#include "platform/cuda/nvidia_node_posix.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/peer_watch.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/close_elsewhere_posix.h"
#include "platform/os/descriptor_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/blocking_file_posix.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/lifeline_patience.h"

namespace vmm::platform {
namespace {

using testing::BlockingFile;
using testing::Child;
using ::testing::HasSubstr;
using testing::ProductsLifelinePatience;
using testing::RegisterChild;

// A blocked call lasts 30 s at least.
constexpr absl::Duration kAtOnce = absl::Seconds(10);

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

// Sends one byte and `fds` past all rules of Channel.
void SendRaw(const Channel& channel, absl::Span<const int> fds) {
  char byte = 0;
  iovec part = {&byte, 1};
  std::vector<std::uint64_t> control(CMSG_SPACE(fds.size() * sizeof(int)) / 8 +
                                     1);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  Check(::sendmsg(RawFd(channel.handle()), &message, MSG_NOSIGNAL) == 1,
        "sendmsg() failed");
}

// More than there is room for, so that some are dropped though descriptors are left.
TEST_F(BlockingDescriptorsTest, AReceiverOfTooManyWaitsForNoClose) {
  if (testing::IsEmulated())
    GTEST_SKIP() << "qemu-user: opens more than fit, and loses those";
  const OsHandle file = File();
  const OsHandle memory = MemoryWith("x");
  {
    const BlockingFile blocking(RawFd(file));
    const absl::Time start = absl::Now();
    {
      auto [peer, ours] = Must(Channel::Pair());
      std::array<int, 60> fds;
      fds.fill(RawFd(memory));
      fds.front() = RawFd(file);
      SendRaw(peer, fds);
      const absl::Status status = ours.Receive(Late()).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("more than 16"));
    }
    EXPECT_LT(absl::Now() - start, kAtOnce);
    EXPECT_EQ(NotYetClosed(CurrentUser()), 1u);
  }
  EXPECT_TRUE(ComesTrue([] {
    return NotYetClosed(Connections::kOfPeers) == 0 && AllAreClosed();
  }));
}

// A socket whose last close waits until its peer has read what it sent, which it
// does not, or has ended.
struct Lingering {
  OsHandle socket, peer;
};
std::optional<Lingering> MakeLingering() {
  const OsHandle listening =
      OsHandle::Adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(here);
  auto* const address = reinterpret_cast<sockaddr*>(&here);
  if (!listening.has_value() || ::bind(RawFd(listening), address, size) != 0 ||
      ::listen(RawFd(listening), 1) != 0 ||
      ::getsockname(RawFd(listening), address, &size) != 0) {
    return std::nullopt;
  }
  Lingering made;
  made.socket =
      OsHandle::Adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const linger long_enough = {1, 30};
  if (!made.socket.has_value() ||
      ::connect(RawFd(made.socket), address, size) != 0 ||
      ::setsockopt(RawFd(made.socket), SOL_SOCKET, SO_LINGER, &long_enough,
                   sizeof(long_enough)) != 0) {
    return std::nullopt;
  }
  made.peer = OsHandle::Adopt(
      ::accept4(RawFd(listening), nullptr, nullptr, SOCK_CLOEXEC));
  const std::vector<char> much(1 << 20);
  while (::send(RawFd(made.socket), much.data(), much.size(), MSG_DONTWAIT) >
         0) {
  }
  return made;
}

// The kernel closes what it finds no descriptor for, in the call that receives;
// and what has found one is the queue's as well.
TEST_F(BlockingDescriptorsTest, AtTheDescriptorLimitAReceiverWaitsForNoClose) {
  const OsHandle memory = MemoryWith("x");
  for (const int places : {0, 2}) {
    SCOPED_TRACE(places);
    std::optional<Lingering> lingering = MakeLingering();
    if (!lingering.has_value()) GTEST_SKIP() << "needs a loopback interface";
    const OsHandle* handles[] = {&lingering->socket, &memory, &memory, &memory};
    auto [peer, ours] = Must(Channel::Pair());
    Must(peer.Send(1, {}, handles, Late()));
    lingering->socket.Reset();
    absl::Status status;
    const absl::Time start = absl::Now();
    {
      const DescriptorLimit limit(places);
      status = ours.Receive(Late()).status();
      ours.Close();
    }
    EXPECT_LT(absl::Now() - start, kAtOnce);
    if (places == 0) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    } else {
      // Nothing is to be had of a message with such a descriptor, also later.
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("were dropped"));
    }
    EXPECT_GE(NotYetClosed(Connections::kOfPeers) + NotYetClosed(CurrentUser()),
              1u);
    lingering->peer.Reset();
    EXPECT_TRUE(ComesTrue([] {
      return NotYetClosed(Connections::kOfPeers) == 0 && AllAreClosed();
    }));
  }
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

// Of this process.
std::set<std::string> Threads() {
  std::set<std::string> ids;
  for (const auto& one :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(one.path().filename().string());
  }
  return ids;
}

// The signals that this thread of this process blocks, as bits from SIGHUP on;
// nothing where the system does not say.
std::optional<std::uint64_t> BlockedSignals(const std::string& thread) {
  std::ifstream status(absl::StrCat("/proc/self/task/", thread, "/status"));
  for (std::string word; status >> word;) {
    std::uint64_t signals = 0;
    if (word != "SigBlk:") continue;
    return status >> std::hex >> signals ? std::optional(signals)
                                         : std::nullopt;
  }
  return std::nullopt;
}

TEST_F(BlockingDescriptorsTest, AThreadThatIsHeldIsSentNoSignal) {
  if (testing::IsEmulated())
    GTEST_SKIP() << "qemu-user: has signals of its own";
  const OsHandle file = File();
  const OsHandle* handles[] = {&file};
  const std::set<std::string> before = Threads();
  bool is_said = true;
  {
    const BlockingFile blocking(RawFd(file));
    auto [peer, ours] = Must(Channel::Pair());
    Must(peer.Send(1, {}, handles, Late()));
    EXPECT_TRUE(absl::IsDataLoss(ours.Receive(Late()).status()));
    EXPECT_EQ(NotYetClosed(CurrentUser()), 1u);
    std::size_t held = 0;
    for (const std::string& thread : Threads()) {
      if (before.contains(thread)) continue;
      ++held;
      const std::optional<std::uint64_t> blocked = BlockedSignals(thread);
      is_said = is_said && blocked.has_value();
      for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGALRM, SIGUSR1}) {
        EXPECT_NE(blocked.value_or(~std::uint64_t{0}) >> (signal - 1) & 1, 0u)
            << signal;
      }
    }
    EXPECT_GE(held, 1u);
  }
  EXPECT_TRUE(ComesTrue(&AllAreClosed));
  // Who started it is sent them as before.
  sigset_t own;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &own), 0);
  EXPECT_EQ(::sigismember(&own, SIGTERM), 0);
  if (!is_said) GTEST_SKIP() << "the system does not say what a thread blocks";
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

// --- Lifelines ---------------------------------------------------------------

// args: where to dial. Sends its lifeline twice, and waits for its end.
int SendsLifelines(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  Must(SendLifeline(channel, Late()));
  Must(SendLifeline(channel, Late()));
  for (;;) ::pause();
}
const bool kSendsLifelines = RegisterChild("sends_lifelines", &SendsLifelines);

// Far longer than anybody waits, far shorter than a blocked call lasts, and than
// all the questions of a test take if each waits.
constexpr absl::Duration kNoWait = absl::Seconds(5);

class BlockingLifelineTest : public OsTest {
 protected:
  // As a lifeline that nobody maps.
  static std::shared_ptr<const OsHandle> Page() {
    OsHandle page = OsHandle::Adopt(
        ::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    Check(::ftruncate(RawFd(page), 4096) == 0, "ftruncate() failed");
    return std::make_shared<const OsHandle>(std::move(page));
  }
  static bool IsAnswered(const std::shared_ptr<const OsHandle>& page,
                         const PeerCredentials& sender) {
    return ComesTrue([&] { return AskLifeline(page, sender).ok(); });
  }
  // It has the same page.
  static std::shared_ptr<const OsHandle> Again(const OsHandle& page) {
    return std::make_shared<const OsHandle>(
        OsHandle::Adopt(::fcntl(RawFd(page), F_DUPFD_CLOEXEC, 0)));
  }

  // A process, and what is known of it; with its lifeline.
  struct Peer {
    Child child;
    Channel channel;
    OsHandle lifeline;
    PeerWatch watch;
  };
  static Peer Start() {
    const TempDirectory temp;
    Listener listener = Must(Listener::Bind({temp.path(), ""}, {}));
    Child child = Child::Start("sends_lifelines", {listener.address()});
    Channel channel = Must(listener.Accept(Late()));
    OsHandle lifeline = Must(ReceiveLifeline(channel, Late()));
    PeerWatch watch = Must(PeerWatch::Receive(channel, Late()));
    return {std::move(child), std::move(channel), std::move(lifeline),
            std::move(watch)};
  }
  static void Kill(Peer& peer) {
    peer.child.Kill();
    EXPECT_EQ(peer.child.Wait(), Child::kKilled);
  }

 private:
  const ProductsLifelinePatience patience_;
};

TEST_F(BlockingLifelineTest, WhoLooksWaitsForNoLifeline) {
  Peer hostile = Start();
  Peer honest = Start();
  {
    const BlockingFile blocking(RawFd(hostile.lifeline));
    Kill(hostile);
    const absl::Time start = absl::Now();
    EXPECT_EQ(hostile.watch.Look(), PeerEnd::kUnproven);
    EXPECT_THAT(std::string(hostile.watch.why()), HasSubstr("not said yet"));
    PeerWatch copy = hostile.watch;
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(hostile.watch.Look(), PeerEnd::kUnproven);
      EXPECT_EQ(copy.Look(), PeerEnd::kUnproven);
    }
    EXPECT_LT(absl::Now() - start, kNoWait);
    const absl::Status status = hostile.watch.WaitForEnd(In(5));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    Kill(honest);
    Must(honest.watch.WaitForEnd(Late()));
    EXPECT_EQ(hostile.watch.Look(), PeerEnd::kUnproven);
  }
  Must(hostile.watch.WaitForEnd(Late()));
}

TEST_F(BlockingLifelineTest, OneThatNobodyWatchesAnyMoreIsClosed) {
  std::optional<Peer> peer = Start();
  const auto descriptors_of = [](const struct stat& page) {
    int found = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      struct stat info {};
      const bool is_open = ::syscall(SYS_fstat, fd, &info) == 0;
      if (is_open && info.st_ino == page.st_ino && info.st_dev == page.st_dev) {
        ++found;
      }
    }
    return found;
  };
  const OsHandle lifeline = std::move(peer->lifeline);
  struct stat page {};
  ASSERT_EQ(::fstat(RawFd(lifeline), &page), 0);
  {
    const BlockingFile blocking(RawFd(lifeline));
    Kill(*peer);
    EXPECT_EQ(peer->watch.Look(), PeerEnd::kUnproven);
    peer.reset();
    EXPECT_EQ(descriptors_of(page), 2) << "it is being asked";
  }
  EXPECT_TRUE(ComesTrue([&] { return descriptors_of(page) == 1; }));
}

TEST_F(BlockingLifelineTest, OneUserHoldsUpItselfAlone) {
  constexpr int kMostOfUser = 8;
  const PeerCredentials other{UserId("54322"), 1};
  const std::shared_ptr<const OsHandle> page = Page();
  std::vector<std::shared_ptr<const OsHandle>> asked;
  {
    const BlockingFile blocking(RawFd(*page));
    const absl::Time start = absl::Now();
    for (int pid = 1; pid <= 20 * kMostOfUser; ++pid) {
      asked.push_back(Again(*page));
      const PeerCredentials hostile{UserId("54321"), pid};
      EXPECT_TRUE(
          absl::IsUnavailable(AskLifeline(asked.back(), hostile).status()));
    }
    EXPECT_LT(absl::Now() - start, kNoWait);
    EXPECT_TRUE(IsAnswered(Page(), other));
    const PeerCredentials its_own{UserId("54321"), 1000};
    EXPECT_TRUE(absl::IsUnavailable(AskLifeline(Page(), its_own).status()));
  }
  EXPECT_TRUE(IsAnswered(Page(), {UserId("54321"), 1000}));
  // And of a process one is asked.
  {
    const BlockingFile blocking(RawFd(*page));
    const PeerCredentials hostile{UserId("54321"), 1};
    EXPECT_TRUE(absl::IsUnavailable(AskLifeline(page, hostile).status()));
    EXPECT_TRUE(absl::IsUnavailable(AskLifeline(Page(), hostile).status()));
    EXPECT_TRUE(IsAnswered(Page(), {UserId("54321"), 2}));
    // Of a hidden namespace one process is not told from another.
    const PeerCredentials hidden{UserId("54321"), 0};
    asked.push_back(Again(*page));
    EXPECT_TRUE(
        absl::IsUnavailable(AskLifeline(asked.back(), hidden).status()));
    EXPECT_TRUE(IsAnswered(Page(), hidden));
  }
  // Those that were asked are closed.
  asked.push_back(page);
  EXPECT_TRUE(ComesTrue([&] {
    return std::all_of(asked.begin(), asked.end(), [&](const auto& one) {
      return one.use_count() == (one == page ? 2 : 1);
    });
  }));
}

// In a process of its own: what it was forked from has threads that ask.
int AsksInAForkedChild(const std::vector<std::string>&) {
  const ProductsLifelinePatience patience;
  const auto page = [] {
    OsHandle memory = OsHandle::Adopt(
        ::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    Check(::ftruncate(RawFd(memory), 4096) == 0, "ftruncate() failed");
    return std::make_shared<const OsHandle>(std::move(memory));
  };
  const PeerCredentials sender{CurrentUser(), 1};
  const std::shared_ptr<const OsHandle> blocked = page();
  const BlockingFile blocking(RawFd(*blocked));
  Check(!AskLifeline(blocked, sender).ok(), "it did not block");
  const pid_t child = ::fork();
  if (child == 0) {
    const auto other = page();
    ::_exit(ComesTrue([&] { return AskLifeline(other, sender).ok(); }) ? 0 : 1);
  }
  int status = 0;
  Check(::waitpid(child, &status, 0) == child, "waitpid() failed");
  // At its end a thread of it still asks.
  return status == 0 ? 0 : 1;
}
const bool kAsksInAForkedChild =
    RegisterChild("asks_in_a_forked_child", &AsksInAForkedChild);

TEST_F(BlockingLifelineTest, AForkedChildAsksOnItsOwn) {
  EXPECT_EQ(Child::Start("asks_in_a_forked_child", {}).Wait(), 0);
}

// Memory that is there once somebody says so.
class LateMemory {
 public:
  LateMemory()
      : faults_(OsHandle::Adopt(
            static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)))) {
    uffdio_api api{};
    api.api = UFFD_API;
    if (!faults_.has_value() ||
        ::ioctl(RawFd(faults_), UFFDIO_API, &api) != 0) {
      return;
    }
    void* const data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Check(data != MAP_FAILED, "mmap() failed");
    data_ = data;
    uffdio_register range{};
    range.range = {reinterpret_cast<std::uintptr_t>(data_), kBytes};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    Check(::ioctl(RawFd(faults_), UFFDIO_REGISTER, &range) == 0,
          "UFFDIO_REGISTER failed");
  }
  ~LateMemory() {
    if (data_ != nullptr) ::munmap(data_, kBytes);
  }
  // Null where the system lets nobody have such memory.
  const void* data() const { return data_; }
  void WaitUntilItIsRead() {
    uffd_msg message;
    Check(::read(RawFd(faults_), &message, sizeof(message)) == sizeof(message),
          "nobody reads it");
  }
  void BeThere() {
    uffdio_zeropage range{};
    range.range = {reinterpret_cast<std::uintptr_t>(data_), kBytes};
    Check(::ioctl(RawFd(faults_), UFFDIO_ZEROPAGE, &range) == 0,
          "UFFDIO_ZEROPAGE failed");
  }

 private:
  static constexpr std::size_t kBytes = 4096;
  OsHandle faults_;
  void* data_ = nullptr;
};

// The kernel's own wait, which no signal ends: with the lock of its inode held.
TEST_F(BlockingLifelineTest, NobodyWaitsForOneThatSomebodyWritesTo) {
  LateMemory late;
  if (late.data() == nullptr) {
    GTEST_SKIP() << "no userfaultfd can be had here that faults of the kernel "
                    "wait for";
  }
  const std::shared_ptr<const OsHandle> page = Page();
  std::thread writer([&] {
    EXPECT_EQ(::syscall(SYS_write, RawFd(*page), late.data(), 1), 1);
  });
  late.WaitUntilItIsRead();
  const PeerCredentials sender{CurrentUser(), 1};
  std::atomic<bool> is_over = false;
  // Lest the test hangs where they do.
  std::thread rescue([&] {
    const absl::Time until = absl::Now() + 2 * kNoWait;
    while (!is_over && absl::Now() < until)
      absl::SleepFor(absl::Milliseconds(1));
    late.BeThere();
  });
  const absl::Time start = absl::Now();
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(AskLifeline(page, sender).status()));
  }
  EXPECT_LT(absl::Now() - start, kNoWait);
  is_over = true;
  rescue.join();
  writer.join();
  EXPECT_TRUE(IsAnswered(page, sender));
}

}  // namespace
}  // namespace vmm::platform
