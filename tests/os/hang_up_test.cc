// Connections with descriptors in their queues that nobody received and whose
// close() blocks: nobody waits for them, and the peer sees the end at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/ipc/channel.h"
#include "platform/os/close_elsewhere_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/fork.h"

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::MayFork;
using testing::RegisterChild;
using testing::RunInFork;

// A blocked call lasts kLinger.
constexpr int kLinger = 20;  // s
constexpr absl::Duration kAtOnce = absl::Seconds(5);

// A TCP socket whose last close() waits until the other end has taken what was
// written, for kLinger at most: SO_LINGER, which needs no privilege.
class LingeringSocket {
 public:
  LingeringSocket() {
    const OsHandle listening = Socket();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    Check(::bind(RawFd(listening), name, size) == 0 &&
              ::listen(RawFd(listening), 1) == 0 &&
              ::getsockname(RawFd(listening), name, &size) == 0,
          "there is no TCP on the loopback device");
    ours_ = Socket();
    Check(::connect(RawFd(ours_), name, size) == 0, "connect() failed");
    theirs_ = OsHandle::Adopt(
        ::accept4(RawFd(listening), nullptr, nullptr, SOCK_CLOEXEC));
    Check(theirs_.has_value(), "accept4() failed");
    const std::vector<char> much(1 << 16);
    while (::send(RawFd(ours_), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    SetLinger(ours_, kLinger);
  }
  LingeringSocket(const LingeringSocket&) = delete;
  LingeringSocket& operator=(const LingeringSocket&) = delete;
  ~LingeringSocket() { End(); }

  // What blocks when its last descriptor is closed.
  const OsHandle& get() const { return ours_; }
  // Whoever was sent it has the last one.
  void Forget() { ours_.Reset(); }
  // The connection is reset: nothing waits any more.
  void End() {
    SetLinger(theirs_, 0);
    theirs_.Reset();
  }

 private:
  static OsHandle Socket() {
    OsHandle socket =
        OsHandle::Adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Check(socket.has_value(), "socket(AF_INET) failed");
    return socket;
  }
  static void SetLinger(const OsHandle& socket, int seconds) {
    const linger how = {1, seconds};
    if (!socket.has_value()) return;
    Check(::setsockopt(RawFd(socket), SOL_SOCKET, SO_LINGER, &how,
                       sizeof(how)) == 0,
          "setsockopt(SO_LINGER) failed");
  }

  OsHandle ours_;
  OsHandle theirs_;
};

// Sends `handle` over `channel`'s socket in a packet of `bytes` bytes, as a peer
// does that is not ours.
void SendRaw(const OsHandle& socket, const OsHandle& handle,
             std::size_t bytes) {
  const int fd = RawFd(handle);
  char data = 'x';
  iovec part = {&data, bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::copy_n(reinterpret_cast<const char*>(&fd), sizeof(fd),
              CMSG_DATA(header));
  Check(::sendmsg(RawFd(socket), &message, 0) >= 0, "sendmsg() failed");
}

bool AllAreClosed() {
  return NotYetClosed(Connections::kOfPeers) == 0 &&
         NotYetClosed(Connections::kOfStrangers) == 0 &&
         NotYetClosed(CurrentUser()) == 0;
}

class HangUpTest : public OsTest {
 protected:
  // `lingering` comes to an end before the test's descriptors are counted.
  static void ExpectClosedAfter(LingeringSocket& lingering) {
    lingering.End();
    EXPECT_TRUE(ComesTrue(&AllAreClosed));
  }
  // Two ends of a connection, the second an accepted one.
  std::pair<Channel, Channel> Connected() {
    Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
    Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
    Channel accepted = Must(listener.Accept(Late()));
    return {std::move(client), std::move(accepted)};
  }
  TempDirectory temp_;
};

TEST_F(HangUpTest, WhatWasNotReceivedHoldsUpNoClose) {
  for (const bool is_pair : {false, true}) {
    for (const std::size_t bytes : {1, 0}) {
      LingeringSocket lingering;
      {
        auto [peer, ours] = is_pair ? Must(Channel::Pair()) : Connected();
        // Behind an empty packet, which reads like the end.
        Check(::send(RawFd(peer.handle()), "", 0, 0) == 0, "send() failed");
        SendRaw(peer.handle(), lingering.get(), bytes);
        lingering.Forget();
        const absl::Time start = absl::Now();
        ours.Close();
        if (!is_pair) {
          EXPECT_TRUE(peer.WaitForHangUp(Late()).ok());
        }
        EXPECT_LT(absl::Now() - start, kAtOnce);
        EXPECT_EQ(NotYetClosed(Connections::kOfPeers), 1u);
        EXPECT_FALSE(ours.is_open());
      }
      ExpectClosedAfter(lingering);
    }
  }
}

TEST_F(HangUpTest, NothingToWaitForIsClosedHere) {
  auto [peer, ours] = Connected();
  const OsHandle memory = MemoryWith("x");
  Must(peer.Send(1, {}, {}, Late()));
  ours.Close();
  EXPECT_TRUE(AllAreClosed());
  EXPECT_TRUE(peer.WaitForHangUp(absl::Now()).ok());
}

TEST_F(HangUpTest, WhatFollowsABadMessageHoldsUpNobody) {
  LingeringSocket lingering;
  {
    auto [peer, ours] = Connected();
    Check(::send(RawFd(peer.handle()), "x", 1, 0) == 1, "send() failed");
    SendRaw(peer.handle(), lingering.get(), 1);
    lingering.Forget();
    const absl::Time start = absl::Now();
    EXPECT_TRUE(absl::IsDataLoss(ours.Receive(Late()).status()));
    EXPECT_TRUE(peer.WaitForHangUp(Late()).ok());
    ours.Close();
    EXPECT_LT(absl::Now() - start, kAtOnce);
  }
  ExpectClosedAfter(lingering);
}

TEST_F(HangUpTest, ASocketIsNotReceivedForItsQueueMayHaveAnything) {
  LingeringSocket lingering;
  {
    auto [peer, ours] = Connected();
    {
      auto [queue, end] = Must(Channel::Pair());
      SendRaw(queue.handle(), lingering.get(), 1);
      const OsHandle* const handles[] = {&end.handle()};
      Must(peer.Send(1, {}, handles, Late()));
    }
    lingering.Forget();
    const absl::Time start = absl::Now();
    const absl::Status status = ours.Receive(Late()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is a socket"));
    ours.Close();
    EXPECT_LT(absl::Now() - start, kAtOnce);
    // Whichever of its two descriptors is the last waits.
    EXPECT_TRUE(ComesTrue([] {
      return NotYetClosed(CurrentUser()) +
                 NotYetClosed(Connections::kOfPeers) ==
             1;
    }));
  }
  ExpectClosedAfter(lingering);
}

TEST_F(HangUpTest, AListenersEndWaitsForNobodyWhoWaitsForIt) {
  LingeringSocket lingering;
  {
    std::optional<Listener> listener =
        Must(Listener::Bind({temp_.path(), ""}, {}));
    Channel first = Must(Channel::Connect(listener->address(), {}, Late()));
    Channel second = Must(Channel::Connect(listener->address(), {}, Late()));
    SendRaw(first.handle(), lingering.get(), 1);
    lingering.Forget();
    const absl::Time start = absl::Now();
    listener.reset();
    EXPECT_TRUE(first.WaitForHangUp(Late()).ok());
    EXPECT_TRUE(second.WaitForHangUp(Late()).ok());
    EXPECT_LT(absl::Now() - start, kAtOnce);
    EXPECT_EQ(NotYetClosed(Connections::kOfStrangers), 1u);
  }
  ExpectClosedAfter(lingering);
}

TEST_F(HangUpTest, AListenerThatHasNoDescriptorLeftEndsAllTheSame) {
  LingeringSocket lingering;
  {
    std::optional<Listener> listener =
        Must(Listener::Bind({temp_.path(), ""}, {}));
    Channel waiting = Must(Channel::Connect(listener->address(), {}, Late()));
    SendRaw(waiting.handle(), lingering.get(), 1);
    lingering.Forget();
    const absl::Time start = absl::Now();
    {
      const DescriptorLimit none(0);
      listener.reset();
    }
    EXPECT_LT(absl::Now() - start, kAtOnce);
    EXPECT_EQ(NotYetClosed(Connections::kOfStrangers), 1u);
  }
  ExpectClosedAfter(lingering);
}

TEST_F(HangUpTest, NobodyIsAcceptedWhileTooManyBlock) {
  constexpr std::size_t kMost = 256;
  std::array<LingeringSocket, 4> lingering;  // One for each thread.
  {
    Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
    Channel waiting = Must(Channel::Connect(listener.address(), {}, Late()));
    for (LingeringSocket& one : lingering) {
      auto [peer, ours] = Connected();
      SendRaw(peer.handle(), one.get(), 1);
      one.Forget();
    }
    const Pipe pipe = MakePipe();
    while (NotYetClosed(Connections::kOfPeers) < kMost) {
      CloseElsewhere(Must(Duplicate(pipe.read_end)), Connections::kOfPeers);
    }
    const absl::Status status = listener.Accept(Late()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("256 connections of peers (at most 256) and 0"));
    for (LingeringSocket& one : lingering) one.End();
    EXPECT_TRUE(ComesTrue(&AllAreClosed));
    EXPECT_TRUE(listener.Accept(Late()).ok());
  }
}

// As a stranger: sends what lingers to who listens at args[0], says so to who
// listens at args[1], and waits for the hang-up of both.
int SendAsStranger(const std::vector<std::string>& args) {
  BecomeStranger();
  Channel channel = Must(Channel::Connect(args[0], {{UserId("0")}}, Late()));
  LingeringSocket lingering;
  SendRaw(channel.handle(), lingering.get(), 1);
  lingering.Forget();
  Channel meeting = Must(Channel::Connect(args[1], {{UserId("0")}}, Late()));
  return channel.WaitForHangUp(Late()).ok() &&
                 meeting.WaitForHangUp(Late()).ok()
             ? 0
             : 1;
}
const bool kSendAsStranger = RegisterChild("send_as_stranger", &SendAsStranger);

TEST_F(HangUpTest, AStrangerHoldsUpNoAcceptor) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Check(::chmod(temp_.path().c_str(), 0755) == 0, "chmod() failed");
  Listener listener =
      Must(Listener::Bind({temp_.path(), ""}, {{UserId("65534")}}));
  Listener meeting = Must(Listener::Bind(
      {temp_.path(), ""}, {{UserId(std::to_string(kStranger))}}));
  Child stranger =
      Child::Start("send_as_stranger", {listener.address(), meeting.address()});
  std::optional<Channel> met = Must(meeting.Accept(Late()));
  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener.Accept(In(20)).status()));
  EXPECT_EQ(listener.refused(), 1u);
  Channel own = Must(Channel::Connect(listener.address(), {}, Late()));
  EXPECT_TRUE(listener.Accept(Late()).ok());
  EXPECT_LT(absl::Now() - start, kAtOnce);
  met.reset();
  EXPECT_EQ(stranger.Wait(), 0);
  EXPECT_TRUE(ComesTrue(&AllAreClosed));
}

TEST_F(HangUpTest, AForkedChildsCopyEndsNothing) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  auto [peer, ours] = Connected();
  EXPECT_EQ(RunInFork([&ours = ours] {
              ours.Close();
              return 0;
            }),
            0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(peer.WaitForHangUp(absl::Now())));
  Must(ours.Send(1, {}, {}, Late()));
  EXPECT_TRUE(peer.Receive(Late()).ok());
}

TEST_F(HangUpTest, AForkedChildMayGoOnAfterItsParent) {
  if (!MayFork()) GTEST_SKIP() << "no fork here";
  auto [peer, ours] = Connected();
  Pipe closed = MakePipe();
  testing::RunApart([&ours = ours, &closed] {
    closed.write_end.Reset();
    while (!WriteEndIsGone(closed)) absl::SleepFor(absl::Milliseconds(1));
    ours.Send(7, {}, {}, Late()).IgnoreError();
  });
  ours.Close();
  closed.write_end.Reset();
  const absl::StatusOr<Message> said = peer.Receive(Late());
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->type, 7);
  EXPECT_TRUE(absl::IsUnavailable(peer.Receive(Late()).status()));
}

}  // namespace
}  // namespace vmm::platform
