// The fail-Nth sweep over platform/: sockets, processes and descriptors, with
// each of their system calls failed in turn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/imex.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"
#include "platform/os/surroundings.h"
#include "tests/support/kernel.h"
#include "tests/support/sweep.h"
#include "tests/support/syscall_faults.h"

namespace vmm::testing {
namespace {

using platform::Channel;
using platform::Listener;
using platform::OsHandle;
using platform::PeerPolicy;

// What is waited for is there already, unless a failure keeps it away.
absl::Time Soon() { return absl::Now() + absl::Seconds(1); }

// A private directory for one socket, removed at the end.
class SocketDirectory {
 public:
  SocketDirectory() {
    char name[] = "/tmp/vmmshare-sweep-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~SocketDirectory() {
    Clear();
    EXPECT_EQ(::rmdir(path_.c_str()), 0) << path_ << " is not empty";
  }

  absl::StatusOr<Listener> Bind() const {
    return Listener::Bind({.directory = path_, .name = "socket"}, PeerPolicy{});
  }
  // Removes what a run left behind.
  void Clear() const { ::unlink(File().c_str()); }
  // Whether the socket is there.
  Inventory Files() const {
    return {{"socket files", ::access(File().c_str(), F_OK) == 0 ? 1 : 0}};
  }

 private:
  std::string File() const { return path_ + "/socket"; }

  std::string path_;
};

TEST(PlatformSweep, EveryErrorThatIsInjectedHasACodeOfItsOwn) {
  for (const SyscallRow& row : SyscallTable()) {
    for (int error : row.errors) {
      EXPECT_NE(platform::OsError(error, row.name).code(),
                absl::StatusCode::kUnknown)
          << ErrnoName(error) << " of " << row.name;
    }
  }
}

TEST(PlatformSweep, DuplicateAHandle) {
  const auto event = platform::CancelEvent::Create();
  ASSERT_TRUE(event.ok());
  ExpectSwept({.name = "duplicate", .run = [&event] {
                 return platform::Duplicate(event->handle()).status();
               }});
}

TEST(PlatformSweep, OpenAProcessAndAskWhetherItLives) {
  ExpectSwept({.name = "process", .run = []() -> absl::Status {
                 absl::StatusOr<platform::Process> self =
                     platform::Process::Open(platform::CurrentProcessId());
                 if (!self.ok()) return self.status();
                 return self->HasExited().status();
               }});
}

// A machine made of files, with an IMEX channel that leads to /dev/null.
class MachineOfFiles {
 public:
  MachineOfFiles() {
    char name[] = "/tmp/vmmshare-sweep-XXXXXX";
    path_ = ::mkdtemp(name);
    const std::filesystem::path root = path_;
    const auto channels = root / "dev/nvidia-caps-imex-channels";
    std::filesystem::create_directories(channels);
    std::filesystem::create_directories(root / "dev/shm");
    std::filesystem::create_directories(root / "proc/7");
    std::filesystem::create_directories(root / "proc/self");
    std::filesystem::create_directories(root / "proc/sys/kernel/yama");
    std::filesystem::create_symlink("/dev/null", channels / "channel0");
    std::ofstream(root / "proc/7/comm") << "nvidia-imex\n";
    std::ofstream(root / "proc/self/cgroup") << "0::/\n";
    std::ofstream(root / "proc/devices") << "242 nvidia-caps-imex-channels\n";
    std::ofstream(root / "proc/sys/kernel/osrelease") << "6.1.0\n";
    std::ofstream(root / "proc/sys/kernel/yama/ptrace_scope") << "1\n";
  }
  ~MachineOfFiles() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(PlatformSweep, ListImexChannels) {
  const MachineOfFiles machine;
  SweepPlan plan;
  plan.name = "IMEX channels";
  plan.run = [&]() -> absl::Status {
    const auto channels = platform::ImexChannels(machine.path());
    if (!channels.ok()) return channels.status();
    // Of one that cannot be opened the reason is told beside the others.
    if (channels->size() == 1 && !channels->front().usable) {
      return channels->front().reason;
    }
    return platform::ImexChannelMajor(machine.path()).status();
  };
  // Without a folder there are no channels.
  plan.may_fail_silently = {"opendir:ENOENT", "readdir:ENOENT"};
  ExpectSwept(plan);
}

TEST(PlatformSweep, LookForTheImexDaemon) {
  const MachineOfFiles machine;
  SweepPlan plan;
  plan.name = "IMEX daemon";
  plan.run = [&] { return platform::ImexDaemonSeen(machine.path()).status(); };
  // A process that cannot be looked at may just have ended.
  plan.may_fail_silently = {"open", "read"};
  ExpectSwept(plan);
}

TEST(PlatformSweep, LookAround) {
  const MachineOfFiles machine;
  SweepPlan plan;
  plan.name = "surroundings";
  plan.run = [&]() -> absl::Status {
    const std::string& root = machine.path();
    for (const absl::Status& status :
         {platform::SharedMemorySpace(root).status(),
          platform::ContainerMark(root).status(),
          platform::IsWsl2(root).status(), platform::PtraceScope(root).status(),
          platform::HasNvidiaControlNode(root).status(),
          platform::FolderOfProgram().status()}) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  };
  // What is not there is an answer: no mark, no node, no Yama.
  plan.may_fail_silently = {"stat:ENOENT", "open:ENOENT"};
  ExpectSwept(plan);
}

// The control of vmmshare_test_on_an_older_kernel().
TEST(PlatformSweep, AnOlderKernelNamesNoSender) {
  if (std::getenv("VMMSHARE_TEST_OLDER_KERNEL") == nullptr) {
    GTEST_SKIP() << "this run is on the machine's own kernel";
  }
  EXPECT_FALSE(KernelNamesSenders());
}

// Older kernels attach no pidfds to messages, and are served without.
constexpr char kNoPidfds[] = "setsockopt:ENOPROTOOPT";

TEST(PlatformSweep, Listen) {
  const SocketDirectory directory;
  SweepPlan plan;
  plan.name = "listen";
  plan.setup = [&] { directory.Clear(); };
  plan.run = [&] { return directory.Bind().status(); };
  plan.inventory = [&] { return directory.Files(); };
  // A name that is not there is free to take. A listener that goes removes its
  // file even if it cannot look at it. And what cannot be swept away stays. Who
  // waits at its end cannot be told.
  plan.may_fail_silently = {"lstat",   "opendir",     "readdir",
                            "accept4", "std::thread", kNoPidfds};
  ExpectSwept(plan);
}

// Whatever fails of it, the listener is there.
TEST(PlatformSweep, SweepAwayAStaleSocket) {
  char name[] = "/dev/shm/vmmshare-sweep-XXXXXX";
  const std::string path = ::mkdtemp(name);
  const std::string stale = path + "/" + std::string(32, 'a');
  SweepPlan plan;
  plan.name = "sweep away a stale socket";
  plan.setup = [&] {
    std::filesystem::remove_all(path);
    ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(::mknod(stale.c_str(), S_IFSOCK | 0600, 0), 0);
    const timespec long_ago[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, stale.c_str(), long_ago, 0), 0);
  };
  plan.run = [&]() -> absl::Status {
    return Listener::Bind({.directory = path}, PeerPolicy{}).status();
  };
  plan.may_fail_silently = {"lstat",   "opendir",     "readdir", "open",
                            "fstat",   "fstatfs",     "socket",  "connect",
                            "accept4", "std::thread", kNoPidfds};
  ExpectSwept(plan);
  plan.setup();
  EXPECT_TRUE(plan.run().ok());
  EXPECT_FALSE(std::filesystem::exists(stale));
  std::filesystem::remove_all(path);
}

TEST(PlatformSweep, ConnectAndAccept) {
  const SocketDirectory directory;
  std::optional<Listener> listener;
  SweepPlan plan;
  plan.name = "connect and accept";
  plan.setup = [&] {
    listener.reset();
    absl::StatusOr<Listener> bound = directory.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status();
    listener = *std::move(bound);
  };
  plan.run = [&]() -> absl::Status {
    absl::StatusOr<Channel> client =
        Channel::Connect(listener->address(), PeerPolicy{}, Soon());
    if (!client.ok()) return client.status();
    return listener->Accept(Soon()).status();
  };
  // A client that gave up is no reason to stop accepting.
  plan.may_fail_silently = {"accept4:ECONNABORTED", kNoPidfds};
  // A peer of whom nothing can be learnt is turned away, and the wait goes on.
  // A socket that is not connected is the caller's mistake.
  plan.told_in_words = {"getsockopt", "getpeername:ENOTCONN"};
  ExpectSwept(plan);
}

TEST(PlatformSweep, SendAMessageWithAHandle) {
  const auto event = platform::CancelEvent::Create();
  ASSERT_TRUE(event.ok());
  const OsHandle* const handles[] = {&event->handle()};
  const std::uint8_t payload[] = {1, 2, 3};
  SweepPlan plan;
  plan.name = "send and receive";
  plan.run = [&]() -> absl::Status {
    auto ends = Channel::Pair();
    if (!ends.ok()) return ends.status();
    const absl::Status sent = ends->first.Send(7, payload, handles, Soon());
    if (!sent.ok()) return sent;
    auto message = ends->second.Receive(Soon());
    if (!message.ok()) return message.status();
    EXPECT_EQ(message->handles.size(), 1u);
    return absl::OkStatus();
  };
  // Said once by a peer that left messages of ours unread: what it sent before
  // can still be read.
  // What has no seals is looked at further. Handles that the kernel has no room
  // for are sent again.
  plan.may_fail_silently = {"recvmsg:ECONNRESET", "recv:ECONNRESET", kNoPidfds,
                            "fcntl", "sendmsg:ETOOMANYREFS"};
  // The peer hung up.
  plan.told_in_words = {"sendmsg:EPIPE", "sendmsg:ECONNRESET",
                        "recvmsg:ECONNRESET"};
  ExpectSwept(plan);
}

TEST(PlatformSweep, MakeSharedMemory) {
  for (const auto access :
       {platform::PeerAccess::kRead, platform::PeerAccess::kReadWrite}) {
    SweepPlan plan;
    plan.name = "make shared memory";
    plan.run = [access] {
      return platform::SharedMemory::Create(8192, access).status();
    };
    ExpectSwept(plan);
  }
}

TEST(PlatformSweep, OpenSharedMemory) {
  const auto memory =
      platform::SharedMemory::Create(8192, platform::PeerAccess::kReadWrite);
  ASSERT_TRUE(memory.ok()) << memory.status();
  SweepPlan plan;
  plan.name = "open shared memory";
  plan.run = [&memory] {
    return platform::SharedMemory::Open(memory->handle(), 8192,
                                        platform::PeerAccess::kReadWrite)
        .status();
  };
  // Says that a file has no seals.
  plan.told_in_words = {"fcntl:EINVAL"};
  ExpectSwept(plan);
}

}  // namespace
}  // namespace vmm::testing
