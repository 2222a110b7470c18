// Who is taken for the peer: who speaks, and not who made the socket.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/ipc/channel.h"
#include "platform/ipc/speaker_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/fork.h"
#include "tests/support/receive_raw_posix.h"

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::RegisterChild;
using testing::RunInFork;

const UserId kStrangerId(std::to_string(kStranger));

class SpeakerTest : public OsTest {
 protected:
  Listener Bind(PeerPolicy policy = {}) {
    return Must(Listener::Bind({temp_.path(), ""}, std::move(policy)));
  }
  TempDirectory temp_;
};

// Makes a pair, hands both ends to who listens at args[0], and ends.
int LauncherMain(const std::vector<std::string>& args) {
  auto [one, other] = Must(Channel::Pair());
  Channel to = Must(Channel::Connect(args[0], {}, Late()));
  const OsHandle* ends[] = {&one.handle(), &other.handle()};
  Must(to.Send(1, {}, ends, Late()));
  return Must(to.Receive(Late())).type;
}
const bool kLauncher = RegisterChild("launcher", &LauncherMain);

TEST_F(SpeakerTest, AChannelFromALauncherThatHasEndedIsToWhoSpeaks) {
  Listener listener = Bind();
  Child launcher = Child::Start("launcher", {listener.address()});
  const std::int64_t launcher_pid = launcher.pid();
  Channel link = Must(listener.Accept(Late()));
  std::vector<OsHandle> ends = testing::ReceiveRaw(link);
  Must(link.Send(7, {}, {}, Late()));
  ASSERT_EQ(launcher.Wait(), 7);
  Channel a = Must(Channel::Adopt(std::move(ends.at(0)), {}));
  Channel b = Must(Channel::Adopt(std::move(ends.at(1)), {}));

  EXPECT_EQ(b.peer().pid, launcher_pid);
  EXPECT_EQ(b.speakers(), 0u);
  const absl::Status unknown = b.OpenPeer().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unknown)) << unknown;

  Must(a.Send(1, {}, {}, Late()));
  Must(b.Receive(Late()));
  EXPECT_EQ(b.peer().pid, CurrentProcessId());
  EXPECT_EQ(b.speakers(), 1u);
  const Process peer = Must(b.OpenPeer());
  EXPECT_EQ(peer.pid(), CurrentProcessId());
  EXPECT_FALSE(Must(peer.HasExited()));
}

TEST_F(SpeakerTest, AForkedChildThatSpeaksIsAnotherPeer) {
  auto pair = Must(Channel::Pair());
  Channel& a = pair.first;
  Channel& b = pair.second;
  for (int i = 0; i < 2; ++i) {
    Must(a.Send(1, {}, {}, Late()));
    Must(b.Receive(Late()));
    EXPECT_EQ(b.speakers(), 1u);
  }
  const Process first = Must(b.OpenPeer());
  ASSERT_EQ(RunInFork([&a] { return a.Send(2, {}, {}, Late()).ok() ? 0 : 1; }),
            0);
  EXPECT_EQ(Must(b.Receive(Late())).type, 2);
  EXPECT_EQ(b.speakers(), 2u);
  EXPECT_NE(b.peer().pid, CurrentProcessId());
  // It was reaped: newer kernels refer to it all the same.
  absl::StatusOr<Process> second = b.OpenPeer();
  if (second.ok()) {
    EXPECT_TRUE(Must(second->HasExited()));
  } else {
    EXPECT_TRUE(absl::IsNotFound(second.status())) << second.status();
  }
  EXPECT_FALSE(Must(first.HasExited()));
  Must(a.Send(3, {}, {}, Late()));
  Must(b.Receive(Late()));
  EXPECT_EQ(b.speakers(), 3u);
  EXPECT_EQ(b.peer().pid, CurrentProcessId());
}

TEST_F(SpeakerTest, AClosedChannelStillSaysWhoSpokeLast) {
  auto pair = Must(Channel::Pair());
  ASSERT_EQ(RunInFork([&pair] {
              return pair.first.Send(2, {}, {}, Late()).ok() ? 0 : 1;
            }),
            0);
  Must(pair.second.Receive(Late()));
  const PeerCredentials speaker = pair.second.peer();
  EXPECT_NE(speaker.pid, CurrentProcessId());
  pair.second.Close();
  EXPECT_EQ(pair.second.peer().pid, speaker.pid);
  EXPECT_EQ(pair.second.peer().user, speaker.user);
  EXPECT_EQ(pair.second.speakers(), 0u);
}

// Sends `bytes` as a stranger over `channel`. Allocates little: see RunInFork().
int SendAsStranger(const Channel& channel, const std::string& bytes) {
  if (::setgroups(0, nullptr) != 0 || ::setgid(kStranger) != 0 ||
      ::setuid(kStranger) != 0) {
    return 2;
  }
  return ::send(RawFd(channel.handle()), bytes.data(), bytes.size(), 0) ==
                 static_cast<ssize_t>(bytes.size())
             ? 0
             : 1;
}

TEST_F(SpeakerTest, AStrangerWhoCameToHoldTheSocketIsRefusedUnread) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  auto pair = Must(Channel::Pair());
  ASSERT_EQ(RunInFork([&] { return SendAsStranger(pair.first, "garbage"); }),
            0);
  const absl::Status status = pair.second.Receive(Late()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of user " + kStrangerId.text()));
  EXPECT_FALSE(pair.second.is_open());
  EXPECT_TRUE(pair.first.WaitForHangUp(Late()).ok());
}

TEST_F(SpeakerTest, AStrangerWhoIsNamedMaySpeak) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  auto pair = Must(Channel::Pair({{kStrangerId}}));
  ASSERT_EQ(RunInFork([&] { return SendAsStranger(pair.first, "garbage"); }),
            0);
  EXPECT_TRUE(absl::IsDataLoss(pair.second.Receive(Late()).status()));
  EXPECT_EQ(pair.second.peer().user, kStrangerId);
}

TEST_F(SpeakerTest, TheEffectiveUserOfASpeakerCounts) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  auto pair = Must(Channel::Pair());
  ASSERT_EQ(RunInFork([&pair] {
              if (::setresuid(kStranger, 0, 0) != 0) return 2;
              return pair.first.Send(5, {}, {}, Late()).ok() ? 0 : 1;
            }),
            0);
  EXPECT_EQ(Must(pair.second.Receive(Late())).type, 5);
  EXPECT_EQ(pair.second.peer().user, CurrentUser());
}

TEST_F(SpeakerTest, WhatWasSentBeforeTheAcceptHasASender) {
  Listener listener = Bind();
  Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  Must(client.Send(4, {}, {}, Late()));
  Channel server = Must(listener.Accept(Late()));
  Must(server.Receive(Late()));
  EXPECT_EQ(Must(server.OpenPeer()).pid(), CurrentProcessId());
  EXPECT_EQ(server.speakers(), 1u);
}

TEST_F(SpeakerTest, ControlDataOfOtherKindsAndSizesNamesNobody) {
  constexpr int kScmPidfd = 4;
  struct Row {
    int level, type;
    std::size_t size;
  };
  for (const Row& row : {Row{SOL_SOCKET + 1, SCM_CREDENTIALS, sizeof(ucred)},
                         Row{SOL_SOCKET, SCM_CREDENTIALS, sizeof(ucred) - 1},
                         Row{SOL_SOCKET, SCM_CREDENTIALS, sizeof(ucred) + 1},
                         Row{SOL_SOCKET, kScmPidfd, sizeof(int) - 1},
                         Row{SOL_SOCKET, kScmPidfd, 2 * sizeof(int)},
                         Row{SOL_SOCKET, SCM_TIMESTAMP, sizeof(timeval) - 1},
                         Row{SOL_SOCKET, SCM_RIGHTS, sizeof(int)}}) {
    alignas(cmsghdr) std::uint8_t bytes[CMSG_SPACE(64)] = {};
    auto* const control = reinterpret_cast<cmsghdr*>(bytes);
    control->cmsg_level = row.level;
    control->cmsg_type = row.type;
    control->cmsg_len = CMSG_LEN(row.size);
    Speaker speaker;
    EXPECT_FALSE(TakeSpeaker(*control, speaker))
        << row.level << " " << row.type << " " << row.size;
    EXPECT_FALSE(speaker.is_known());
    EXPECT_EQ(speaker.process, nullptr);
    EXPECT_FALSE(speaker.sent.has_value());
  }
}

TEST_F(SpeakerTest, AProcessIsToldFromAnotherByItsNumberItsUserAndItsFile) {
  Speaker a;
  a.credentials = {kStrangerId, 7};
  a.process_file = 5;
  Speaker b = a;
  EXPECT_TRUE(IsSameProcess(a, b));
  b.process_file = 6;
  EXPECT_FALSE(IsSameProcess(a, b));
  // Of one of them the kernel attached no pidfd.
  b.process_file = 0;
  EXPECT_TRUE(IsSameProcess(a, b));
  EXPECT_TRUE(IsSameProcess(b, a));
  b = a;
  b.credentials.pid = 8;
  EXPECT_FALSE(IsSameProcess(a, b));
  b = a;
  b.credentials.user = CurrentUser();
  EXPECT_FALSE(IsSameProcess(a, b));
}

TEST_F(SpeakerTest, WhyTheKernelGaveNoReferenceDecidesWhatIsSaid) {
  Speaker speaker;
  speaker.credentials = {CurrentUser(), CurrentProcessId()};
  for (const int code : {ESRCH, EINVAL}) {
    speaker.no_process = code;
    const absl::Status status = OpenSpeaker(speaker).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has ended"));
  }
  speaker.no_process = EMFILE;
  const absl::Status status = OpenSpeaker(speaker).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(SpeakerTest, WhoHasOpenedThePeerCostsOneDescriptorHoweverOftenItSpeaks) {
  auto pair = Must(Channel::Pair());
  Must(pair.first.Send(1, {}, {}, Late()));
  Must(pair.second.Receive(Late()));
  const Process peer = Must(pair.second.OpenPeer());
  const std::size_t before = testing::OpenHandleCount();
  for (int i = 0; i < 3; ++i) {
    Must(pair.first.Send(1, {}, {}, Late()));
    Must(pair.second.Receive(Late()));
    EXPECT_EQ(testing::OpenHandleCount(), before);
  }
  EXPECT_EQ(Must(pair.second.OpenPeer()).pid(), peer.pid());
}

// Without a descriptor left for the reference, in a process of its own.
int ReceiveWithoutRoom(const std::vector<std::string>&) {
  auto pair = Must(Channel::Pair());
  Must(pair.first.Send(1, {}, {}, Late()));
  absl::Status received, opened;
  {
    DescriptorLimit limit(0);
    received = pair.second.Receive(Late()).status();
    opened = pair.second.OpenPeer().status();
  }
  EXPECT_TRUE(received.ok()) << received;
  EXPECT_TRUE(absl::IsResourceExhausted(opened)) << opened;
  // The next message brings it.
  Must(pair.first.Send(1, {}, {}, Late()));
  Must(pair.second.Receive(Late()));
  EXPECT_EQ(Must(pair.second.OpenPeer()).pid(), CurrentProcessId());
  EXPECT_EQ(pair.second.speakers(), 1u);
  return 0;
}
const bool kReceiveWithoutRoom =
    RegisterChild("receive_without_room", &ReceiveWithoutRoom);

TEST_F(SpeakerTest, ThePeerIsNotTakenForDeadWhereDescriptorsRunOut) {
  EXPECT_EQ(Child::Start("receive_without_room", {}).Wait(), 0);
}

// Whether the kernel refers to the sender of a message.
bool RefersToSenders() {
  constexpr int kSoPassPidfd = 76;
  const OsHandle socket =
      OsHandle::Adopt(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const int on = 1;
  return ::setsockopt(RawFd(socket), SOL_SOCKET, kSoPassPidfd, &on,
                      sizeof(on)) == 0;
}

// The peer, and a child that it forked, which keeps its socket, speaks when a byte
// comes over `lifetime`, and ends with that: the test has its writing end.
[[noreturn]] void SpeakTwiceAndLeaveAChild(Channel& channel, int lifetime) {
  if (::fork() == 0) {
    char byte;
    while (::read(lifetime, &byte, 1) == 1) {
      if (!channel.Send(3, {}, {}, Late()).ok()) ::_exit(1);
    }
    ::_exit(0);
  }
  const bool sent = channel.Send(1, {}, {}, Late()).ok() &&
                    channel.Send(2, {}, {}, Late()).ok();
  if (!sent) ::_exit(1);
  for (;;) ::pause();
}

// For a process of its own: the other end of such a peer.
class OfTwoSpeakers {
 public:
  OfTwoSpeakers() : ends_(Must(Channel::Pair())) {
    Must(ours().EndWithItsProcess());
    int lifetime[2];
    Check(::pipe2(lifetime, O_CLOEXEC) == 0, "pipe2() failed");
    peer_ = ::fork();
    if (peer_ == 0) {
      ::close(lifetime[1]);
      SpeakTwiceAndLeaveAChild(ends_.first, lifetime[0]);
    }
    ::close(lifetime[0]);
    lifetime_ = lifetime[1];
    ends_.first.Close();
  }
  ~OfTwoSpeakers() { ::close(lifetime_); }

  Channel& ours() { return ends_.second; }
  void HaveTheChildSpeak() {
    Check(::write(lifetime_, "", 1) == 1, "write() failed");
  }
  void KillPeer() {
    Check(::kill(peer_, SIGKILL) == 0, "kill() failed");
    Check(::waitpid(peer_, nullptr, 0) == peer_, "waitpid() failed");
  }

 private:
  std::pair<Channel, Channel> ends_;
  pid_t peer_ = 0;
  int lifetime_ = -1;
};

// Of whose peer the second message brings no reference.
int SeesTheEndWithoutRoom(const std::vector<std::string>&) {
  OfTwoSpeakers two;
  Channel& ours = two.ours();
  Must(ours.Receive(Late()));
  absl::StatusOr<Message> second = absl::UnknownError("");
  {
    DescriptorLimit limit(0);
    second = ours.Receive(Late());
  }
  EXPECT_EQ(Must(std::move(second)).type, 2);
  EXPECT_FALSE(ours.OpenPeer().ok()) << "there was room for a reference";
  two.KillPeer();
  const absl::Status status = ours.Receive(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  return 0;
}
const bool kSeesTheEndWithoutRoom =
    RegisterChild("sees_the_end_without_room", &SeesTheEndWithoutRoom);

TEST_F(SpeakerTest, TheEndOfAPeerIsSeenWhoseReferenceDidNotComeAgain) {
  if (!RefersToSenders()) GTEST_SKIP() << "needs SO_PASSPIDFD (Linux 6.5)";
  EXPECT_EQ(Child::Start("sees_the_end_without_room", {}).Wait(), 0);
}

// Neither the second message nor another speaker's brings a reference.
int OutlivesWhoSpokeBefore(const std::vector<std::string>&) {
  OfTwoSpeakers two;
  Channel& ours = two.ours();
  Must(ours.Receive(Late()));
  absl::StatusOr<Message> second = absl::UnknownError("");
  absl::StatusOr<Message> third = absl::UnknownError("");
  {
    DescriptorLimit limit(0);
    second = ours.Receive(Late());
    two.HaveTheChildSpeak();
    third = ours.Receive(Late());
  }
  EXPECT_EQ(Must(std::move(second)).type, 2);
  EXPECT_EQ(Must(std::move(third)).type, 3);
  EXPECT_EQ(ours.speakers(), 2u);
  EXPECT_FALSE(ours.OpenPeer().ok()) << "there was room for a reference";
  two.KillPeer();
  const absl::Status status =
      ours.Receive(absl::Now() + absl::Milliseconds(50)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(ours.is_open());
  two.HaveTheChildSpeak();
  EXPECT_EQ(Must(ours.Receive(Late())).type, 3);
  return 0;
}
const bool kOutlivesWhoSpokeBefore =
    RegisterChild("outlives_who_spoke_before", &OutlivesWhoSpokeBefore);

TEST_F(SpeakerTest, TheEndOfWhoSpokeBeforeIsNotThatOfWhoSpeaks) {
  if (!RefersToSenders()) GTEST_SKIP() << "needs SO_PASSPIDFD (Linux 6.5)";
  EXPECT_EQ(Child::Start("outlives_who_spoke_before", {}).Wait(), 0);
}

// How kernels without SCM_PIDFD are served: by the number, and by when the
// message was sent.
class NumberedSpeakerTest : public SpeakerTest {
 protected:
  // What the kernel says of a message that this process sends now.
  static Speaker SpeakNow() {
    int fds[2];
    Check(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0,
          "socketpair() failed");
    const OsHandle a = OsHandle::Adopt(fds[0]), b = OsHandle::Adopt(fds[1]);
    const int on = 1;
    for (const int option : {SO_PASSCRED, SO_TIMESTAMP}) {
      Check(::setsockopt(RawFd(b), SOL_SOCKET, option, &on, sizeof(on)) == 0,
            "setsockopt() failed");
    }
    Check(::send(RawFd(a), "x", 1, 0) == 1, "send() failed");
    char byte;
    iovec part = {&byte, 1};
    alignas(cmsghdr) std::uint8_t control[kSpeakerSpace];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    Check(::recvmsg(RawFd(b), &message, 0) == 1, "recvmsg() failed");
    Speaker speaker;
    for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr;
         one = CMSG_NXTHDR(&message, one)) {
      EXPECT_TRUE(TakeSpeaker(*one, speaker));
    }
    return speaker;
  }
};

int PauseMain(const std::vector<std::string>&) {
  for (;;) ::pause();
}
const bool kPause = RegisterChild("pause", &PauseMain);

TEST_F(NumberedSpeakerTest, AProcessOlderThanItsMessageIsThePeer) {
  const Speaker self = SpeakNow();
  ASSERT_TRUE(self.is_known());
  EXPECT_EQ(self.process, nullptr);
  const Process peer = Must(OpenSpeaker(self));
  EXPECT_EQ(peer.pid(), CurrentProcessId());
  EXPECT_FALSE(Must(peer.HasExited()));
}

TEST_F(NumberedSpeakerTest, AProcessYoungerThanTheMessageIsAnother) {
  Speaker speaker = SpeakNow();
  // Longer than the clock's tick, so that the child is younger for sure.
  absl::SleepFor(absl::Milliseconds(30));
  const Child child = Child::Start("pause", {});
  speaker.credentials.pid = child.pid();
  const absl::Status status = OpenSpeaker(speaker).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has ended"));
}

TEST_F(NumberedSpeakerTest, AProcessThatEndedIsNotFound) {
  Child child = Child::Start("pause", {});
  absl::SleepFor(absl::Milliseconds(30));
  Speaker speaker = SpeakNow();
  speaker.credentials.pid = child.pid();
  EXPECT_EQ(Must(OpenSpeaker(speaker)).pid(), child.pid());
  child.Kill();
  child.Wait();
  EXPECT_TRUE(absl::IsNotFound(OpenSpeaker(speaker).status()));
}

TEST_F(NumberedSpeakerTest, AProcessThatNobodyHasReapedYetHasEnded) {
  Child child = Child::Start("pause", {});
  const Process process = Must(Process::Open(child.pid()));
  Speaker speaker = SpeakNow();
  speaker.credentials.pid = child.pid();
  child.Kill();
  Must(process.WaitForExit(Late()));
  const absl::Status status = OpenSpeaker(speaker).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has ended"));
}

TEST_F(NumberedSpeakerTest, WithoutNumberOrTimeNothingIsKnown) {
  Speaker speaker = SpeakNow();
  speaker.sent.reset();
  EXPECT_TRUE(absl::IsUnimplemented(OpenSpeaker(speaker).status()));
  speaker = SpeakNow();
  speaker.credentials.pid = 0;
  EXPECT_TRUE(absl::IsUnimplemented(OpenSpeaker(speaker).status()));
}

}  // namespace
}  // namespace vmm::platform
