#include "platform/ipc/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <atomic>
#include <thread>

#include "tests/os/os_test.h"

namespace vmm::platform {
namespace {

using ::testing::HasSubstr;

class ChannelTest : public OsTest {
 protected:
  ChannelTest() {
    auto pair = Must(Channel::Pair());
    a_ = std::make_unique<Channel>(std::move(pair.first));
    b_ = std::make_unique<Channel>(std::move(pair.second));
  }
  Channel& a() { return *a_; }
  Channel& b() { return *b_; }

  // Sends until nothing more fits; answers how many messages did.
  int Fill() {
    const std::vector<std::uint8_t> payload(kMaxPayload, 1);
    for (int sent = 0;; ++sent) {
      const absl::Status status = a().Send(1, payload, {}, In(20));
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      return sent;
    }
  }

  std::unique_ptr<Channel> a_;
  std::unique_ptr<Channel> b_;
};

TEST_F(ChannelTest, CarriesPayloadsOfEverySizeClass) {
  for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 255u, 256u, 4079u,
                                 4080u, 4096u, 16384u, 32767u, 32768u}) {
    std::vector<std::uint8_t> payload(size);
    for (std::size_t i = 0; i < size; ++i) {
      payload[i] = static_cast<std::uint8_t>(i * 7 + size);
    }
    Must(a().Send(3, payload, {}, Late()));
    Message message = Must(b().Receive(Late()));
    EXPECT_EQ(message.type, 3);
    EXPECT_EQ(message.payload, payload) << size;
    EXPECT_TRUE(message.handles.empty());
  }
}

TEST_F(ChannelTest, CarriesEveryNumberOfHandlesAndTheirContent) {
  for (std::size_t count = 0; count <= kMaxHandles; ++count) {
    std::vector<OsHandle> owned;
    std::vector<const OsHandle*> handles;
    for (std::size_t i = 0; i < count; ++i) {
      owned.push_back(MemoryWith("memory " + std::to_string(i)));
    }
    for (const OsHandle& handle : owned) handles.push_back(&handle);
    Must(a().Send(4, Bytes("x"), handles, Late()));
    Message message = Must(b().Receive(Late()));
    ASSERT_EQ(message.handles.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(TextIn(message.handles[i]), "memory " + std::to_string(i));
    }
  }
}

TEST_F(ChannelTest, Pitfall10AHandleTravelsWithAnEmptyPayload) {
  OsHandle memory = MemoryWith("here");
  const OsHandle* handles[] = {&memory};
  Must(a().Send(9, {}, handles, Late()));
  Message message = Must(b().Receive(Late()));
  EXPECT_TRUE(message.payload.empty());
  ASSERT_EQ(message.handles.size(), 1u);
  EXPECT_EQ(TextIn(message.handles[0]), "here");
}

TEST_F(ChannelTest, Pitfall12ReceivedHandlesAreCloseOnExec) {
  // The sender's has no such flag, and the receiver's must have it anyhow.
  OsHandle inherited = OsHandle::Adopt(::memfd_create("test", 0));
  const OsHandle* handles[] = {&inherited, &inherited};
  Must(a().Send(9, {}, handles, Late()));
  Message message = Must(b().Receive(Late()));
  ASSERT_EQ(message.handles.size(), 2u);
  for (const OsHandle& handle : message.handles) {
    EXPECT_EQ(::fcntl(RawFd(handle), F_GETFD), FD_CLOEXEC);
  }
}

TEST_F(ChannelTest, ItsOwnDescriptorsAreCloseOnExec) {
  EXPECT_EQ(::fcntl(RawFd(a().handle()), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::fcntl(RawFd(b().handle()), F_GETFD), FD_CLOEXEC);
}

TEST_F(ChannelTest, TheSenderMayCloseItsHandlesAtOnce) {
  OsHandle memory = MemoryWith("still here");
  const OsHandle* handles[] = {&memory};
  Must(a().Send(1, {}, handles, Late()));
  memory.Reset();
  EXPECT_EQ(TextIn(Must(b().Receive(Late())).handles.at(0)), "still here");
}

TEST_F(ChannelTest, KeepsOrderAndBoundaries) {
  for (int i = 0; i < 40; ++i) {
    Must(a().Send(static_cast<std::uint16_t>(i),
                  std::vector<std::uint8_t>(i, static_cast<std::uint8_t>(i)),
                  {}, Late()));
  }
  for (int i = 0; i < 40; ++i) {
    Message message = Must(b().Receive(Late()));
    EXPECT_EQ(message.type, i);
    EXPECT_EQ(message.payload,
              std::vector<std::uint8_t>(i, static_cast<std::uint8_t>(i)));
  }
}

TEST_F(ChannelTest, EchoesEveryType) {
  for (const int type : {0, 1, 255, 256, 32768, 65535}) {
    Must(a().Send(static_cast<std::uint16_t>(type), {}, {}, Late()));
    EXPECT_EQ(Must(b().Receive(Late())).type, type);
  }
}

TEST_F(ChannelTest, RefusesToSendTooMuchAndStaysOpen) {
  const std::vector<std::uint8_t> payload(kMaxPayload + 1);
  absl::Status status = a().Send(1, payload, {}, Late());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("32769"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("32768"));

  OsHandle memory = MemoryWith("x");
  const std::vector<const OsHandle*> handles(kMaxHandles + 1, &memory);
  status = a().Send(1, {}, handles, Late());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("17"));

  Must(a().Send(5, Bytes("fits"), {}, Late()));
  EXPECT_EQ(Text(Must(b().Receive(Late())).payload), "fits");
}

TEST_F(ChannelTest, RefusesToSendHandlesThatOwnNothing) {
  OsHandle memory = MemoryWith("x");
  OsHandle empty;
  for (const OsHandle* nothing : {&empty, static_cast<OsHandle*>(nullptr)}) {
    const OsHandle* handles[] = {&memory, nothing};
    const absl::Status status = a().Send(1, {}, handles, Late());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("handle 1 of 2"));
  }
  EXPECT_TRUE(a().is_open());
}

TEST_F(ChannelTest, RefusesToSendAClosedDescriptorAndStaysOpen) {
  OsHandle never_open = OsHandle::Adopt(987654);
  const OsHandle* handles[] = {&never_open};
  const absl::Status status = a().Send(1, {}, handles, Late());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("EBADF"));
  EXPECT_EQ(std::move(never_open).Relinquish(), 987654);
  Must(a().Send(5, {}, {}, Late()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 5);
}

TEST_F(ChannelTest, Pitfall28ReceivingEndsAtTheDeadlineAndTheChannelLives) {
  const absl::Time start = absl::Now();
  const absl::Status status =
      b().Receive(start + absl::Milliseconds(50)).status();
  const absl::Duration elapsed = absl::Now() - start;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GE(elapsed, absl::Milliseconds(50));
  EXPECT_LT(elapsed, absl::Seconds(10));
  Must(a().Send(5, {}, {}, Late()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 5);
}

TEST_F(ChannelTest, APastDeadlineTakesWhatIsThereAndDoesNotWait) {
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(b().Receive(absl::InfinitePast()).status()));
  Must(a().Send(5, {}, {}, absl::InfinitePast()));
  EXPECT_EQ(Must(b().Receive(absl::InfinitePast())).type, 5);
}

TEST_F(ChannelTest, CancelWakesAReceiverThatHasNoDeadline) {
  CancelEvent cancel = Must(CancelEvent::Create());
  std::thread canceller([&cancel] { cancel.Notify(); });
  const absl::Status status =
      b().Receive(absl::InfiniteFuture(), &cancel).status();
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(b().is_open());
}

TEST_F(ChannelTest, ACancelledReceiverIsNotDrownedByABusyPeer) {
  CancelEvent cancel = Must(CancelEvent::Create());
  Must(a().Send(5, {}, {}, Late()));
  cancel.Notify();
  cancel.Notify();
  EXPECT_TRUE(absl::IsCancelled(b().Receive(Late(), &cancel).status()));
  EXPECT_TRUE(absl::IsCancelled(b().Receive(Late(), &cancel).status()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 5);
}

// Each of the two wakes, the child can be used again, and says which it was.
TEST_F(ChannelTest, ACancelEventThatIsFullIsNotifiedAlready) {
  const CancelEvent cancel = Must(CancelEvent::Create());
  const int fd = RawFd(cancel.handle());
  ASSERT_EQ(::eventfd_write(fd, std::uint64_t{0} - 2),
            0);  // Its highest value.
  cancel.Notify();
  EXPECT_TRUE(absl::IsCancelled(a().Receive(Late(), &cancel).status()));
  cancel.Reset();
  cancel.Reset();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      a().Receive(absl::InfinitePast(), &cancel).status()));
}

TEST_F(ChannelTest, ACancelEventUnderAnotherIsWokenByEither) {
  const CancelEvent parent = Must(CancelEvent::Create());
  const CancelEvent child = Must(CancelEvent::CreateUnder(parent));
  const auto received = [&] {
    return b().Receive(absl::InfinitePast(), &child).status();
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(received()));
    EXPECT_FALSE(child.IsNotified());
    child.Notify();
    child.Notify();
    EXPECT_TRUE(child.IsNotified());
    EXPECT_FALSE(parent.IsNotified());
    EXPECT_TRUE(absl::IsCancelled(received()));
    child.Reset();
  }
  child.Reset();  // Of one that is not notified.
  std::thread canceller([&parent] { parent.Notify(); });
  EXPECT_TRUE(
      absl::IsCancelled(b().Receive(absl::InfiniteFuture(), &child).status()));
  canceller.join();
  child.Reset();
  EXPECT_FALSE(child.IsNotified());
  EXPECT_TRUE(parent.IsNotified());
  EXPECT_TRUE(absl::IsCancelled(received()));
  Must(a().Send(5, {}, {}, Late()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 5);
}

TEST_F(ChannelTest, AHangUpIsUnavailableAndStaysSo) {
  a().Close();
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = b().Receive(Late()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_FALSE(b().is_open());
  }
  EXPECT_TRUE(absl::IsUnavailable(b().Send(1, {}, {}, Late())));
}

TEST_F(ChannelTest, AHangUpWakesAWaitingReceiver) {
  std::thread closer([this] { a().Close(); });
  EXPECT_TRUE(
      absl::IsUnavailable(b().Receive(absl::InfiniteFuture()).status()));
  closer.join();
}

TEST_F(ChannelTest, WhatWasSentBeforeAHangUpStillArrives) {
  OsHandle memory = MemoryWith("last words");
  const OsHandle* handles[] = {&memory};
  Must(b().Send(1, Bytes("never read"), {}, Late()));
  Must(a().Send(2, {}, handles, Late()));
  a().Close();  // With a message unread, which the system reports to b first.
  EXPECT_EQ(TextIn(Must(b().Receive(Late())).handles.at(0)), "last words");
  EXPECT_TRUE(absl::IsUnavailable(b().Receive(Late()).status()));
}

TEST_F(ChannelTest, SendingAfterAHangUpIsUnavailableAndNoSignal) {
  b().Close();
  const absl::Status status = a().Send(1, Bytes("x"), {}, Late());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("hung up"));
}

TEST_F(ChannelTest, WhatAPeerSaidLastIsReceivedAfterASendThatFailed) {
  Must(a().Send(1, Bytes("not read"), {}, Late()));
  Must(b().Send(2, Bytes("bye"), {}, Late()));
  b().Close();
  const absl::Status status = a().Send(1, Bytes("x"), {}, Late());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(Must(a().Receive(Late())).type, 2);
  EXPECT_TRUE(absl::IsUnavailable(a().Receive(Late()).status()));
  EXPECT_FALSE(a().is_open());
}

TEST_F(ChannelTest, AClosedChannelIsUnavailable) {
  a().Close();
  a().Close();
  EXPECT_FALSE(a().is_open());
  EXPECT_TRUE(absl::IsUnavailable(a().Send(1, {}, {}, Late())));
  EXPECT_TRUE(absl::IsUnavailable(a().Receive(Late()).status()));
  EXPECT_TRUE(absl::IsUnavailable(a().WaitForHangUp(Late())));
  EXPECT_TRUE(absl::IsUnavailable(a().WaitUntilReceived(Late())));
  EXPECT_TRUE(absl::IsUnavailable(a().OpenPeer().status()));
}

TEST_F(ChannelTest, Pitfall28SendingToAPeerThatDoesNotReadEndsAtTheDeadline) {
  const int sent = Fill();
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, 10000);
  EXPECT_FALSE(a().is_open());
  // Whole messages only, then the end.
  for (int i = 0; i < sent; ++i) {
    EXPECT_EQ(Must(b().Receive(Late())).payload.size(), kMaxPayload);
  }
  EXPECT_TRUE(absl::IsUnavailable(b().Receive(Late()).status()));
}

TEST_F(ChannelTest, ASenderWaitsUntilThePeerReads) {
  const int kCount = 200;
  std::thread reader([this] {
    for (int i = 0; i < kCount; ++i) {
      EXPECT_EQ(Must(b().Receive(Late())).type, i);
    }
  });
  const std::vector<std::uint8_t> payload(kMaxPayload, 7);
  for (int i = 0; i < kCount; ++i) {
    Must(a().Send(static_cast<std::uint16_t>(i), payload, {}, Late()));
  }
  reader.join();
}

TEST_F(ChannelTest, CancelWakesASenderThatHasNoDeadline) {
  CancelEvent cancel = Must(CancelEvent::Create());
  std::thread canceller([&cancel] { cancel.Notify(); });
  const std::vector<std::uint8_t> payload(kMaxPayload, 7);
  absl::Status status;
  while (status.ok()) {
    status = a().Send(1, payload, {}, absl::InfiniteFuture(), &cancel);
  }
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(ChannelTest, WaitForHangUpIgnoresMessagesAndSeesTheEnd) {
  Must(a().Send(1, Bytes("unread"), {}, Late()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(b().WaitForHangUp(In(20))));
  CancelEvent cancel = Must(CancelEvent::Create());
  cancel.Notify();
  EXPECT_TRUE(absl::IsCancelled(b().WaitForHangUp(Late(), &cancel)));
  std::thread closer([this] { a().Close(); });
  EXPECT_TRUE(b().WaitForHangUp(absl::InfiniteFuture()).ok());
  closer.join();
  EXPECT_EQ(Text(Must(b().Receive(Late())).payload), "unread");
}

TEST_F(ChannelTest, MovingLeavesTheSourceClosed) {
  Channel moved = std::move(a());
  EXPECT_FALSE(a().is_open());
  EXPECT_TRUE(absl::IsUnavailable(a().Send(1, {}, {}, Late())));
  Must(moved.Send(6, {}, {}, Late()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 6);
}

TEST_F(ChannelTest, MoveAssignmentHangsUpTheOldConnection) {
  auto second = Must(Channel::Pair());
  a() = std::move(second.first);
  EXPECT_TRUE(absl::IsUnavailable(b().Receive(Late()).status()));
  Must(a().Send(6, {}, {}, Late()));
  EXPECT_EQ(Must(second.second.Receive(Late())).type, 6);
}

TEST_F(ChannelTest, MoveAssignmentToItselfKeepsTheConnection) {
  Channel& same = a();
  a() = std::move(same);
  Must(a().Send(6, {}, {}, Late()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 6);
}

TEST_F(ChannelTest, OneThreadSendsWhileAnotherReceives) {
  const int kCount = 500;
  OsHandle memory = MemoryWith("both ways");
  const auto send = [&](Channel& channel) {
    const OsHandle* handles[] = {&memory};
    for (int i = 0; i < kCount; ++i) {
      Must(channel.Send(static_cast<std::uint16_t>(i), Bytes("both"), handles,
                        Late()));
    }
  };
  const auto receive = [&](Channel& channel) {
    for (int i = 0; i < kCount; ++i) {
      Message message = Must(channel.Receive(Late()));
      EXPECT_EQ(message.type, i);
      EXPECT_EQ(message.handles.size(), 1u);
    }
  };
  std::thread threads[] = {std::thread([&] { send(a()); }),
                           std::thread([&] { send(b()); }),
                           std::thread([&] { receive(a()); })};
  receive(b());
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ChannelTest, AFailedSenderWakesTheReceiverOfItsChannel) {
  std::thread receiver([this] {
    EXPECT_TRUE(
        absl::IsUnavailable(a().Receive(absl::InfiniteFuture()).status()));
  });
  Fill();  // Ends with the deadline, which closes the channel.
  receiver.join();
}

TEST_F(ChannelTest, KnowsWhoMadeThePair) {
  EXPECT_EQ(a().peer().user, CurrentUser());
  EXPECT_EQ(a().peer().pid, CurrentProcessId());
  const absl::Status unknown = a().OpenPeer().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unknown)) << unknown;
  Must(b().Send(1, {}, {}, Late()));
  Must(a().Receive(Late()));
  Process peer = Must(a().OpenPeer());
  EXPECT_EQ(peer.pid(), CurrentProcessId());
  EXPECT_FALSE(Must(peer.HasExited()));
  EXPECT_EQ(::fcntl(RawFd(peer.handle()), F_GETFD), FD_CLOEXEC);
}

TEST_F(ChannelTest, Pitfall13UnreadHandlesAreClosedWithTheChannel) {
  Pipe pipe = MakePipe();
  const OsHandle* handles[] = {&pipe.write_end};
  Must(a().Send(1, {}, handles, Late()));
  pipe.write_end.Reset();
  EXPECT_FALSE(WriteEndIsGone(pipe));  // Alive in the socket's queue.
  b().Close();
  EXPECT_TRUE(ComesTrue([&pipe] { return WriteEndIsGone(pipe); }));
}

TEST_F(ChannelTest, Pitfall13UnreadHandlesAreClosedWhenAMessageIsRefused) {
  Pipe pipe = MakePipe();
  const OsHandle* handles[] = {&pipe.write_end};
  ASSERT_EQ(::send(RawFd(a().handle()), "garbage", 7, 0), 7);
  ASSERT_EQ(::send(RawFd(a().handle()), "", 0, 0), 0);  // Reads like the end.
  Must(a().Send(1, {}, handles, Late()));
  pipe.write_end.Reset();
  EXPECT_TRUE(absl::IsDataLoss(b().Receive(Late()).status()));
  // While b still exists.
  EXPECT_TRUE(ComesTrue([&pipe] { return WriteEndIsGone(pipe); }));
}

TEST_F(ChannelTest, AMessageWhoseSenderTheKernelDoesNotNameIsRefused) {
  const int off = 0;
  ASSERT_EQ(::setsockopt(RawFd(b().handle()), SOL_SOCKET, SO_PASSCRED, &off,
                         sizeof(off)),
            0);
  Must(a().Send(1, {}, {}, Late()));
  const absl::Status status = b().Receive(Late()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not say who sent"));
  EXPECT_FALSE(b().is_open());
  EXPECT_EQ(b().speakers(), 0u);
  EXPECT_TRUE(a().WaitForHangUp(Late()).ok());
}

TEST_F(ChannelTest, AdoptsASocketThatItMade) {
  OsHandle inherited = OsHandle::Adopt(::dup(RawFd(a().handle())));
  ASSERT_EQ(::fcntl(RawFd(inherited), F_GETFD), 0);
  a().Close();
  Channel adopted = Must(Channel::Adopt(std::move(inherited), {}));
  EXPECT_EQ(::fcntl(RawFd(adopted.handle()), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(adopted.peer().user, CurrentUser());
  Must(adopted.Send(6, {}, {}, Late()));
  EXPECT_EQ(Must(b().Receive(Late())).type, 6);
}

TEST_F(ChannelTest, AdoptsNothingElse) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  OsHandle stream = OsHandle::Adopt(fds[0]);
  OsHandle stream_peer = OsHandle::Adopt(fds[1]);
  OsHandle unconnected =
      OsHandle::Adopt(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  OsHandle internet =
      OsHandle::Adopt(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  OsHandle memory = MemoryWith("x");
  OsHandle empty;
  for (OsHandle* handle :
       {&stream, &stream_peer, &unconnected, &internet, &memory, &empty}) {
    const absl::Status status = Channel::Adopt(std::move(*handle), {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST_F(ChannelTest, CarriesEventsAndPipes) {
  OsHandle event = OsHandle::Adopt(::eventfd(5, EFD_CLOEXEC | EFD_NONBLOCK));
  Pipe pipe = MakePipe();
  const OsHandle* handles[] = {&event, &pipe.write_end};
  Must(a().Send(1, {}, handles, Late()));
  pipe.write_end.Reset();
  Message message = Must(b().Receive(Late()));
  ASSERT_EQ(message.handles.size(), 2u);
  std::uint64_t value = 0;
  ASSERT_EQ(::read(RawFd(message.handles[0]), &value, sizeof(value)), 8);
  EXPECT_EQ(value, 5u);
  EXPECT_FALSE(WriteEndIsGone(pipe));
  message.handles.clear();
  EXPECT_TRUE(WriteEndIsGone(pipe));
}

// While it lives, a signal interrupts this process about every 100 us.
class SignalStorm {
 public:
  SignalStorm() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++count; };  // Without SA_RESTART.
    Check(::sigaction(SIGALRM, &action, &before_) == 0, "sigaction() failed");
    const itimerval often = {{0, 100}, {0, 100}};
    Check(::setitimer(ITIMER_REAL, &often, nullptr) == 0, "setitimer() failed");
  }
  ~SignalStorm() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &before_, nullptr);
  }
  static inline std::atomic<int> count = 0;

 private:
  struct sigaction before_;
};

TEST_F(ChannelTest, ASignalStormDoesNotProlongADeadline) {
  SignalStorm storm;
  const absl::Time start = absl::Now();
  const absl::Status status =
      b().Receive(start + absl::Milliseconds(100)).status();
  const absl::Duration elapsed = absl::Now() - start;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GE(elapsed, absl::Milliseconds(100));
  EXPECT_LT(elapsed, absl::Seconds(10));
  EXPECT_GT(SignalStorm::count, 10);
}

TEST_F(ChannelTest, ASignalStormLosesNothing) {
  SignalStorm storm;
  const int kCount = 2000;
  OsHandle memory = MemoryWith("x");
  std::thread sender([&] {
    const OsHandle* handles[] = {&memory};
    for (int i = 0; i < kCount; ++i) {
      Must(
          a().Send(static_cast<std::uint16_t>(i), Bytes("x"), handles, Late()));
    }
  });
  for (int i = 0; i < kCount; ++i) {
    Message message = Must(b().Receive(Late()));
    ASSERT_EQ(message.type, i);
    ASSERT_EQ(message.handles.size(), 1u);
  }
  sender.join();
}

}  // namespace
}  // namespace vmm::platform
