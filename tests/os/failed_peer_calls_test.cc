// What a system call that fails, by its name, makes of a peer: one at the other
// end of a connection, a process that is watched, or the service manager.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/peer_posix.h"
#include "platform/ipc/socket_path_posix.h"
#include "platform/ipc/speaker_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/service_manager.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/failing_call.h"
#include "tests/support/host_instance.h"
#include "tests/support/open_handles.h"

namespace vmm::platform {
namespace {

using testing::Child;
using testing::FailingCall;
using ::testing::HasSubstr;

class FailedPeerCallTest : public OsTest {
 protected:
  TempDirectory temp_;
};

TEST_F(FailedPeerCallTest, AnEndThatTheKernelTellsDifferentlyIsAHangUp) {
  for (const char* call : {"sendmsg", "recvmsg"}) {
    auto ends = Must(Channel::Pair());
    Must(ends.second.Send(1, {}, {}, Late()));
    absl::Status status;
    {
      const FailingCall failing(call, ENOTCONN);
      status = *call == 's' ? ends.first.Send(1, {}, {}, Late())
                            : ends.first.Receive(Late()).status();
    }
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("hung up"));
  }
}

TEST_F(FailedPeerCallTest,
       APeerOfWhomNothingIsLearntIsTurnedAwayByTheDeadline) {
  Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
  const Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  absl::Status status;
  {
    const FailingCall failing("getsockopt", ENOPROTOOPT);
    status = listener.Accept(absl::InfinitePast()).status();
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("by an allowed peer"));
  EXPECT_EQ(listener.refused(), 1u);
  EXPECT_TRUE(client.WaitForHangUp(Late()).ok());
}

TEST_F(FailedPeerCallTest, ASocketOfOnesOwnThatMayNotBeReachedIsUnderARule) {
  Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
  absl::Status status;
  {
    const FailingCall failing("connect", EACCES);
    status = Channel::Connect(listener.address(), {}, Late()).status();
  }
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("SELinux"));
}

TEST_F(FailedPeerCallTest, WhoseUsersCannotBeReadNobodyIsTakenForUnknownUsers) {
  // The number under which the kernel shows who has none in this namespace.
  const UserId nobody("65534");
  for (const char* call : {"open", "read"}) {
    {
      const FailingCall failing(call, EACCES);
      EXPECT_THAT(OwnerText(65534), HasSubstr("stands for everybody whom"));
    }
    const FailingCall failing(call, EACCES);
    const absl::Status status = CheckPeer({nobody, 1}, {{nobody}});
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("nobody can tell"));
  }
  EXPECT_EQ(OwnerText(1000), "user 1000");
}

TEST_F(FailedPeerCallTest, APeerOfWhomTheStartIsUnknownIsNotTakenForItself) {
  Speaker speaker;
  speaker.credentials = {CurrentUser(), CurrentProcessId()};
  speaker.sent = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(OpenSpeaker(speaker).ok());
  for (const int hidden : {EACCES, ENOENT}) {
    const FailingCall failing("open", hidden);
    const absl::Status status = OpenSpeaker(speaker).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be told"));
  }
}

// It could be told, and is not served unwatched.
TEST_F(FailedPeerCallTest, APeerThatCannotBeLookedAtNowIsNoPeerThatNobodyCan) {
  Speaker speaker;
  speaker.credentials = {CurrentUser(), CurrentProcessId()};
  speaker.sent = std::numeric_limits<std::uint64_t>::max();
  for (const int full : {EMFILE, ENFILE, ENOMEM}) {
    const FailingCall failing("open", full);
    const absl::Status status = OpenSpeaker(speaker).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
}

TEST_F(FailedPeerCallTest, ANotificationThatIsInterruptedIsMadeAllTheSame) {
  const CancelEvent cancel = Must(CancelEvent::Create());
  {
    const FailingCall failing("eventfd_write", EINTR, 0, 3);
    cancel.Notify();
  }
  const auto ends = Must(Channel::Pair());
  EXPECT_TRUE(absl::IsCancelled(ends.first.WaitForHangUp(Late(), &cancel)));
}

// The number of this process's lifeline, or -1.
int LifelineNumber() {
  for (const auto& [number, what] : testing::OpenHandles()) {
    if (absl::StrContains(what, "vmmshare-lifeline")) return number;
  }
  return -1;
}

// In a process whose lifeline was closed, as by one that closes all that it does
// not know: how often it fails to make another.
int MakesItsLifelineAgain(const std::vector<std::string>&) {
  auto ends = Must(Channel::Pair());
  ::close(LifelineNumber());
  const std::size_t open = testing::OpenHandleCount();
  struct Row {
    const char* call;
    int error;
    std::uint64_t nth;
  };
  for (const Row& row :
       {Row{"memfd_create", EMFILE, 0}, Row{"memfd_create", EPERM, 0},
        Row{"ftruncate", EFBIG, 0}, Row{"fstat", ENOMEM, 0},
        Row{"fstat", ENOMEM, 1}, Row{"mmap", ENOMEM, 0}}) {
    absl::Status status;
    {
      const FailingCall failing(row.call, row.error, row.nth);
      status = SendLifeline(ends.first, Late());
    }
    EXPECT_EQ(status.code(), OsError(row.error, "").code()) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(row.call, "(vmmshare-lifeline)")));
    EXPECT_EQ(absl::StrContains(status.message(), "seccomp"),
              row.error == EPERM);
    EXPECT_EQ(testing::OpenHandleCount(), open);
    EXPECT_EQ(LifelineNumber(), -1);
  }
  // A kernel that does not know the flag for memory that is never executed.
  {
    const FailingCall failing("memfd_create", EINVAL);
    Must(SendLifeline(ends.first, Late()));
  }
  Must(ReceiveLifeline(ends.second, Late()));
  ::close(LifelineNumber());
  Must(SendLifeline(ends.first, Late()));
  {
    constexpr unsigned kNoExecSeal = 0x8;  // MFD_NOEXEC_SEAL
    constexpr int kSealExec = 0x20;        // F_SEAL_EXEC
    const OsHandle probe =
        OsHandle::Adopt(::memfd_create("probe", MFD_CLOEXEC | kNoExecSeal));
    const OsHandle lifeline = Must(ReceiveLifeline(ends.second, Late()));
    EXPECT_EQ(::fcntl(RawFd(lifeline), F_GET_SEALS) & kSealExec,
              probe.has_value() ? kSealExec : 0)
        << "with vm.memfd_noexec=2 there would be none";
  }
  // Its number becomes another file's, which is not ours to close.
  const int number = LifelineNumber();
  const OsHandle other = MemoryWith("another's");
  Check(::dup2(RawFd(other), number) == number, "dup2() failed");
  Must(SendLifeline(ends.first, Late()));
  const OsHandle lifeline = Must(ReceiveLifeline(ends.second, Late()));
  EXPECT_EQ(TextIn(OsHandle::Adopt(number)), "another's");
  EXPECT_NE(LifelineNumber(), -1);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kLifeline =
    testing::RegisterChild("makes_its_lifeline_again", &MakesItsLifelineAgain);

TEST_F(FailedPeerCallTest, ALifelineThatCannotBeMadeIsMadeTheNextTime) {
  EXPECT_EQ(Child::Start("makes_its_lifeline_again", {}).Wait(), 0);
}

TEST_F(FailedPeerCallTest, ALifelineForWhichThereIsNoDescriptorIsNotSent) {
  auto ends = Must(Channel::Pair());
  Must(SendLifeline(ends.first, Late()));
  {
    // The first one asks for its seals.
    const FailingCall failing("fcntl", EMFILE, 1);
    const absl::Status status = SendLifeline(ends.first, Late());
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("F_DUPFD_CLOEXEC"));
  }
  Must(SendLifeline(ends.first, Late()));
}

TEST_F(FailedPeerCallTest, ALifelineThatCannotBeReadIsAnError) {
  const OsHandle memory = OsHandle::Adopt(
      ::memfd_create("lifeline", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const FailingCall failing("pread", EIO);
  const absl::Status status = ReadLifeline(memory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pread(lifeline)"));
}

TEST_F(FailedPeerCallTest, AProcessWhoseFileSystemIsNotSaidHasNoIdentity) {
  const Process self = Must(Process::Open(CurrentProcessId()));
  const std::uint64_t identity = self.Identity();
  {
    const FailingCall failing("fstatfs", EINTR, 0, 3);
    EXPECT_EQ(self.Identity(), identity);
  }
  const FailingCall failing("fstatfs", ENOSYS);
  EXPECT_EQ(self.Identity(), 0u);
}

// --- The service manager -----------------------------------------------------

// A socket that takes what a service says.
class Systemd {
 public:
  Systemd()
      : socket_(
            OsHandle::Adopt(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0))) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string path =
        absl::StrCat("@vmmshare-", testing::HostInstanceName("failed"));
    path.copy(name.sun_path, path.size());
    name.sun_path[0] = 0;
    Check(::bind(RawFd(socket_), reinterpret_cast<sockaddr*>(&name),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                        path.size())) == 0,
          "bind() failed");
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Systemd() { ::unsetenv("NOTIFY_SOCKET"); }
  std::string Read() const {
    char text[64];
    const ssize_t size =
        ::recv(RawFd(socket_), text, sizeof text, MSG_DONTWAIT);
    return size < 0 ? "nothing" : std::string(text, size);
  }

 private:
  OsHandle socket_;
};

TEST_F(FailedPeerCallTest, WhatIsToldToSystemdIsToldOnceOrItIsAnError) {
  const Systemd systemd;
  {
    const FailingCall failing("socket", EMFILE);
    EXPECT_TRUE(absl::IsResourceExhausted(ServiceManager::Find().status()));
  }
  ServiceManager manager = Must(ServiceManager::Find());
  {
    const FailingCall failing("sendmsg", EINTR, 0, 3);
    Must(manager.Ready(Late()));
  }
  EXPECT_EQ(systemd.Read(), "READY=1");
  EXPECT_EQ(systemd.Read(), "nothing");
  {
    const FailingCall failing("pipe2", EMFILE);
    const absl::Status status = manager.Barrier(Late());
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
  {
    const FailingCall failing("sendmsg", ECONNREFUSED);
    const absl::Status status = manager.Barrier(Late());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("BARRIER=1"));
  }
  EXPECT_EQ(systemd.Read(), "nothing");
}

TEST_F(FailedPeerCallTest, DescriptorsThatWereStatedAndAreNotThereAreSaid) {
  ::setenv("LISTEN_PID", absl::StrCat(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", "2", 1);
  StoredHandles taken;
  {
    const FailingCall failing("fcntl", EBADF);
    taken = TakeStoredHandles();
  }
  ::unsetenv("LISTEN_PID");
  ::unsetenv("LISTEN_FDS");
  EXPECT_THAT(taken.handles, ::testing::IsEmpty());
  EXPECT_THAT(taken.problems,
              ::testing::ElementsAre(::testing::AllOf(
                  HasSubstr("LISTEN_FDS states 2 descriptors"),
                  HasSubstr("fcntl(3, F_SETFD) failed with EBADF"))));
}

}  // namespace
}  // namespace vmm::platform
