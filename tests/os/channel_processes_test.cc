// Channels between processes, some of which die, stand still, or belong to
// somebody else.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>

#include "platform/ipc/channel.h"
#include "platform/ipc/peer_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using ::testing::AllOf;
using testing::Child;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RegisterChild;

const UserId kStrangerId(std::to_string(kStranger));

class ChannelProcessesTest : public OsTest {
 protected:
  Listener Bind(PeerPolicy policy = {}) {
    return Must(Listener::Bind({temp_.path(), ""}, std::move(policy)));
  }
  // Others must get as far as the socket; what happens there is the test.
  void OpenDirectoryToAll() {
    Check(::chmod(temp_.path().c_str(), 0755) == 0, "chmod() failed");
  }
  TempDirectory temp_;
};

// Connects to args[0], sends memory, and returns what the answer says.
int SendMemory(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  OsHandle memory = MemoryWith("from " + std::to_string(::getpid()));
  const OsHandle* handles[] = {&memory};
  Must(channel.Send(1, Bytes("memory"), handles, Late()));
  return Must(channel.Receive(Late())).type;
}
// The same, and then it waits for its end.
int SendMemoryAndPause(const std::vector<std::string>& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  OsHandle memory = MemoryWith("from " + std::to_string(::getpid()));
  const OsHandle* handles[] = {&memory};
  Must(channel.Send(1, Bytes("memory"), handles, Late()));
  for (;;) ::pause();
}
const bool kSendMemory = RegisterChild("send_memory", &SendMemory);
const bool kSendMemoryAndPause =
    RegisterChild("send_memory_and_pause", &SendMemoryAndPause);

TEST_F(ChannelProcessesTest, Pitfall08AHandleMovesWithoutPtraceRights) {
  Listener listener = Bind();
  Child child = Child::Start("send_memory", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  EXPECT_EQ(channel.peer().pid, child.pid());
  EXPECT_EQ(channel.peer().user, CurrentUser());
  Message message = Must(channel.Receive(Late()));
  EXPECT_EQ(TextIn(message.handles.at(0)),
            "from " + std::to_string(child.pid()));
  Process peer = Must(channel.OpenPeer());
  EXPECT_EQ(peer.pid(), child.pid());
  EXPECT_FALSE(Must(peer.HasExited()));
  Must(channel.Send(33, {}, {}, Late()));
  EXPECT_TRUE(peer.WaitForExit(Late()).ok());
  EXPECT_EQ(child.Wait(), 33);
  // What came outlives the process it came from.
  EXPECT_EQ(TextIn(message.handles.at(0)),
            "from " + std::to_string(peer.pid()));
}

TEST_F(ChannelProcessesTest, AKilledPeerIsAHangUpAfterItsLastMessage) {
  Listener listener = Bind();
  Child child = Child::Start("send_memory_and_pause", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  const Message message = Must(channel.Receive(Late()));
  Process peer = Must(channel.OpenPeer());
  child.Kill();
  EXPECT_TRUE(peer.WaitForExit(Late()).ok());
  EXPECT_EQ(TextIn(message.handles.at(0)),
            "from " + std::to_string(child.pid()));
  const absl::Status end = channel.Receive(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_EQ(child.Wait(), 128 + SIGKILL);
}

TEST_F(ChannelProcessesTest, AKilledPeerEndsASendThatHasNoDeadline) {
  Listener listener = Bind();
  Child child = Child::Start("send_memory_and_pause", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  Must(channel.Receive(Late()));
  const std::vector<std::uint8_t> payload(kMaxPayload, 1);
  absl::Status status;
  bool killed = false;
  for (int sent = 0; status.ok(); ++sent) {
    if (sent == 4 && !std::exchange(killed, true)) child.Kill();
    status = channel.Send(1, payload, {}, absl::InfiniteFuture());
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(ChannelProcessesTest, APeerThatWasReapedIsNotOpenedAsAnother) {
  Listener listener = Bind();
  Child child = Child::Start("send_memory_and_pause", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  child.Kill();
  child.Wait();
  if (const absl::Status end = channel.Receive(Late()).status(); !end.ok()) {
    EXPECT_TRUE(absl::IsUnavailable(end)) << end;  // It had not yet sent.
    return;
  }
  absl::StatusOr<Process> peer = channel.OpenPeer();
  // Newer kernels answer a reference to the dead process; others none.
  if (peer.ok()) {
    EXPECT_TRUE(Must(peer->HasExited()));
  } else {
    EXPECT_TRUE(absl::IsNotFound(peer.status()) ||
                absl::IsUnavailable(peer.status()))
        << peer.status();
  }
}

TEST_F(ChannelProcessesTest, Pitfall28AStoppedPeerIsADeadlineAndThenGoesOn) {
  Listener listener = Bind();
  Child child = Child::Start("send_memory", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  Must(channel.Receive(Late()));
  child.Stop();
  Must(channel.Send(21, {}, {}, Late()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(channel.WaitForHangUp(In(50))));
  child.Continue();
  EXPECT_TRUE(channel.WaitForHangUp(Late()).ok());
  EXPECT_EQ(child.Wait(), 21);
}

// Counts the sockets and memory files that came with the start. One lifeline is
// its own, where the program has that part of the library.
int CountInherited(const std::vector<std::string>&) {
  int count = 0;
  int lifelines = 0;
  for (const auto& [fd, target] : testing::OpenHandles()) {
    if (target.find("memfd:vmmshare-lifeline") != std::string::npos) {
      ++lifelines;
    } else if (fd > 2 && (target.find("socket:") == 0 ||
                          target.find("memfd:") != std::string::npos ||
                          target.find("anon_inode:") == 0)) {
      ++count;
    }
  }
  return count + std::max(lifelines - 1, 0);
}
const bool kCountInherited = RegisterChild("count_inherited", &CountInherited);

TEST_F(ChannelProcessesTest, Pitfall12AChildInheritsNoneOfIt) {
  Listener listener = Bind();
  Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  Channel server = Must(listener.Accept(Late()));
  CancelEvent cancel = Must(CancelEvent::Create());
  OsHandle memory = MemoryWith("x");
  const OsHandle* handles[] = {&memory};
  Must(client.Send(1, {}, handles, Late()));
  Message message = Must(server.Receive(Late()));
  Process peer = Must(server.OpenPeer());
  EXPECT_EQ(Child::Start("count_inherited", {}).Wait(), 0);
}

// As a stranger: connects to args[0] and expects to be turned away, or served
// if args[1] is "served". args[2], if any, is in what it is told.
int ConnectAsStranger(const std::vector<std::string>& args) {
  BecomeStranger();
  absl::StatusOr<Channel> channel =
      Channel::Connect(args[0], {{UserId("0")}}, Late());
  if (!channel.ok()) {
    if (args.size() > 2) {
      EXPECT_THAT(std::string(channel.status().message()), HasSubstr(args[2]));
    }
    return ::testing::Test::HasFailure()
               ? 1
               : static_cast<int>(channel.status().code());
  }
  const absl::StatusOr<Message> message = channel->Receive(Late());
  EXPECT_EQ(message.ok(), args[1] == "served") << message.status();
  return message.ok() ? 0 : static_cast<int>(message.status().code());
}
const bool kConnectAsStranger =
    RegisterChild("connect_as_stranger", &ConnectAsStranger);

constexpr int kDenied = static_cast<int>(absl::StatusCode::kPermissionDenied);
constexpr int kHungUp = static_cast<int>(absl::StatusCode::kUnavailable);

TEST_F(ChannelProcessesTest, Pitfall11AnotherUserCannotReachTheDirectory) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Listener listener = Bind();  // In a directory of mode 0700.
  EXPECT_EQ(Child::Start("connect_as_stranger",
                         {listener.address(), "", "may not enter a directory"})
                .Wait(),
            kDenied);
}

TEST_F(ChannelProcessesTest, Pitfall11AnotherUserCannotReachTheSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  OpenDirectoryToAll();
  Listener listener = Bind();  // A socket of mode 0600.
  EXPECT_EQ(Child::Start("connect_as_stranger",
                         {listener.address(), "", "Run both sides as one user"})
                .Wait(),
            kDenied);
}

TEST_F(ChannelProcessesTest, AnotherUserIsTurnedAwayUnreadAndCounted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  OpenDirectoryToAll();
  Listener listener = Bind();
  ASSERT_EQ(::chmod(listener.address().c_str(), 0666), 0);  // Somebody's slip.
  Child stranger =
      Child::Start("connect_as_stranger", {listener.address(), ""});
  while (listener.refused() == 0) {
    // Turns the stranger away and goes on waiting, until its deadline.
    const absl::Status status = listener.Accept(In(20)).status();
    ASSERT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  EXPECT_EQ(stranger.Wait(), kHungUp);
  EXPECT_EQ(listener.refused(), 1u);
  Channel own = Must(Channel::Connect(listener.address(), {}, Late()));
  EXPECT_TRUE(listener.Accept(Late()).ok());
  EXPECT_EQ(listener.refused(), 1u);
}

TEST_F(ChannelProcessesTest, AnotherUserIsServedWhenNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  OpenDirectoryToAll();
  Listener listener = Bind({{kStrangerId}});
  Child stranger =
      Child::Start("connect_as_stranger", {listener.address(), "served"});
  Channel channel = Must(listener.Accept(Late()));
  EXPECT_EQ(channel.peer().user, kStrangerId);
  EXPECT_EQ(channel.peer().pid, stranger.pid());
  Must(channel.Send(1, {}, {}, Late()));
  EXPECT_EQ(stranger.Wait(), 0);
}

// As a stranger: listens in args[1] and tells args[0] where. Answers how many
// were turned away; args[2] is the user whom it serves besides its own.
int ListenAsStranger(const std::vector<std::string>& args) {
  BecomeStranger();
  PeerPolicy policy;
  if (!args[2].empty()) policy.also_allowed.push_back(UserId(args[2]));
  Listener listener = Must(Listener::Bind({args[1], ""}, policy));
  Check(::chmod(listener.address().c_str(), 0666) == 0, "chmod() failed");
  Channel parent = Must(Channel::Connect(args[0], {{UserId("0")}}, Late()));
  Must(parent.Send(1, Bytes(listener.address()), {}, Late()));
  absl::StatusOr<Channel> client = absl::UnknownError("");
  while (!client.ok() && listener.refused() == 0) {
    client = listener.Accept(In(100));
    if (parent.WaitForHangUp(absl::InfinitePast()).ok()) break;
  }
  // The client may have left already: some tests only connect.
  if (client.ok()) {
    client->Send(2, Bytes("served"), {}, Late()).IgnoreError();
  }
  return static_cast<int>(listener.refused());
}
const bool kListenAsStranger =
    RegisterChild("listen_as_stranger", &ListenAsStranger);

class StrangersServerTest : public ChannelProcessesTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    OpenDirectoryToAll();
    theirs_ = temp_.File("theirs");
    Check(::mkdir(theirs_.c_str(), 0755) == 0, "mkdir() failed");
    Check(::chown(theirs_.c_str(), kStranger, kStranger) == 0,
          "chown() failed");
  }
  std::string theirs_;
};

TEST_F(StrangersServerTest, RootIsNoExceptionWhenAServerChecksItsPeers) {
  Listener meeting = Bind({{kStrangerId}});
  Child child =
      Child::Start("listen_as_stranger", {meeting.address(), theirs_, ""});
  Channel channel = Must(meeting.Accept(Late()));
  const std::string address = Text(Must(channel.Receive(Late())).payload);
  Channel client = Must(Channel::Connect(address, {{kStrangerId}}, Late()));
  const absl::Status status = client.Receive(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("hung up before anything came from it"),
            HasSubstr("may not allow user 0"), HasSubstr("--allow-user=0"),
            HasSubstr("PeerPolicy::also_allowed")));
  EXPECT_EQ(child.Wait(), 1);
}

TEST_F(StrangersServerTest, RootIsServedWhenNamed) {
  Listener meeting = Bind({{kStrangerId}});
  Child child =
      Child::Start("listen_as_stranger", {meeting.address(), theirs_, "0"});
  Channel channel = Must(meeting.Accept(Late()));
  const std::string address = Text(Must(channel.Receive(Late())).payload);
  Channel client = Must(Channel::Connect(address, {{kStrangerId}}, Late()));
  EXPECT_EQ(client.peer().user, kStrangerId);
  EXPECT_EQ(Text(Must(client.Receive(Late())).payload), "served");
  // What has spoken allows this user.
  const absl::Status status = client.Receive(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              Not(HasSubstr("before anything came")));
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(StrangersServerTest, AClientDoesNotTalkToAServerItDidNotName) {
  Listener meeting = Bind({{kStrangerId}});
  Child child =
      Child::Start("listen_as_stranger", {meeting.address(), theirs_, "0"});
  Channel channel = Must(meeting.Accept(Late()));
  const std::string address = Text(Must(channel.Receive(Late())).payload);
  // In a directory that is theirs; then in one and with a file that are ours,
  // where only the credentials tell.
  EXPECT_TRUE(
      absl::IsPermissionDenied(Channel::Connect(address, {}, Late()).status()));
  ASSERT_EQ(::chown(theirs_.c_str(), 0, 0), 0);
  EXPECT_TRUE(
      absl::IsPermissionDenied(Channel::Connect(address, {}, Late()).status()));
  ASSERT_EQ(::chown(address.c_str(), 0, 0), 0);
  const absl::Status status = Channel::Connect(address, {}, Late()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("also_allowed"));
  channel.Close();
  child.Wait();
}

// In a user namespace in which this user has no number.
int AdoptWithoutANumber(const std::vector<std::string>&) {
  if (::unshare(CLONE_NEWUSER) != 0) return 77;
  auto pair = Must(Channel::Pair());
  EXPECT_EQ(pair.first.peer().user.text(), "65534");
  EXPECT_EQ(CurrentUser().text(), "65534");
  OsHandle socket = Must(Duplicate(pair.first.handle()));
  const absl::Status status =
      Channel::Adopt(std::move(socket), {{UserId("65534")}}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("run it as another user than 65534."));
  EXPECT_TRUE(CurrentUserIsUnknown());
  // On a machine where kernel.overflowuid is another.
  EXPECT_TRUE(StandsForUnknownUsers(UserId("1234"), 1234));
  EXPECT_TRUE(StandsForUnknownUsers(UserId("65534"), 1234));
  EXPECT_FALSE(StandsForUnknownUsers(UserId("1000"), 1234));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kAdoptWithoutANumber =
    RegisterChild("adopt_without_a_number", &AdoptWithoutANumber);

TEST_F(ChannelProcessesTest, TheNumberOfUnmappedUsersIsReadFromTheSystem) {
  const std::string path = temp_.File("overflowuid");
  EXPECT_TRUE(absl::IsNotFound(ReadOverflowUser(path).status()));
  std::ofstream(path) << "1234\n";
  EXPECT_EQ(Must(ReadOverflowUser(path)), 1234u);
  std::ofstream(path) << "nobody\n";
  EXPECT_TRUE(absl::IsInvalidArgument(ReadOverflowUser(path).status()));
}

TEST_F(ChannelProcessesTest, TheNumberOfUnmappedUsersIsNobodysIdentity) {
  const int status = Child::Start("adopt_without_a_number", {}).Wait();
  if (status == 77) GTEST_SKIP() << "this system gives no user namespaces";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace vmm::platform
