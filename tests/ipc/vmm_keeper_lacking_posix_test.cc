// A keeper that lacks something: descriptors, limits, a directory; and what
// those who wait learn when it stops.
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "platform/base/check.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/process.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/support/failing_call.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/keeper/internal/store.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/session_server.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class LackingKeeperTest : public KeeperTest {
 protected:
  // One that starts, and may say something while it does.
  absl::StatusOr<std::unique_ptr<keeper::Server>> Logging() {
    keeper::ServerOptions options;
    options.address = keeper_address();
    options.log = [this](const std::string& line) { log_.push_back(line); };
    return keeper::Server::Start(std::move(options), absl::NotFoundError(""),
                                 {});
  }

  std::vector<std::string> log_;
};

TEST_F(LackingKeeperTest, LimitsThatCannotBeReadOrRaisedAreSaid) {
  {
    const FailingCall failing("setrlimit", EPERM);
    Must(Logging());
  }
  EXPECT_THAT(std::exchange(log_, {}),
              ElementsAre(HasSubstr("setrlimit(RLIMIT_NOFILE")));
  const FailingCall failing("getrlimit", EPERM, 0, 2);
  const absl::Status status = Logging().status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::exchange(log_, {}),
              ElementsAre(HasSubstr("getrlimit(RLIMIT_NOFILE")));
}

// Whoever comes for a lock that is taken waits on an event of its own.
TEST_F(LackingKeeperTest, AWaitForWhichThereIsNoDescriptorIsRefused) {
  const auto server = Start();
  KeeperClient writer = Client();
  KeeperClient other = Client();
  Must(writer.Put("name", Make(kGranule).shareable(), Late()));
  Must(other.List(Late()));
  ArmSyscallFault({.point = {.times = FaultPoint::kForEver},
                   .only_error = EMFILE,
                   .only_call = "eventfd"});
  const absl::Status refused = other.Lock("name", Late());
  Must(writer.Unlock("name", Late()));
  const absl::Status taken = other.Lock("name", Late());
  DisarmSyscallFault();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("eventfd"));
  Must(taken);
}

// Waits until a session of the keeper has made the event that it waits on.
// Before that no fault may be armed.
class WaitBegins {
 public:
  WaitBegins() : before_(Count()) {
    // None ever fails: what is made is counted while one may.
    ArmSyscallFault({.point = {.nth = FaultPoint::kForEver},
                     .only_error = EMFILE,
                     .only_call = "eventfd"});
  }
  ~WaitBegins() { DisarmSyscallFault(); }
  void Expect() const {
    ExpectSoon([this] { return Count() > before_; });
  }

 private:
  static std::uint64_t Count() { return SyscallsByName()["eventfd"]; }
  const std::uint64_t before_;
};

TEST_F(LackingKeeperTest, AKeeperThatStopsSendsAwayWhoWaits) {
  auto server = Start();
  KeeperClient writer = Client();
  KeeperClient other = Client();
  Must(writer.Put("name", Make(kGranule).shareable(), Late()));
  const Allocation memory = Make(kGranule);
  const keeper::Request put = {
      .type = keeper::kPut,
      .name = "half",
      .ticket = Must(MakeTicket(memory.shareable(), kNativeKind))};
  platform::Channel half = Dial(keeper_address());
  Must(half.Send(put.type, keeper::EncodeRequest(put), {}, Late()));
  Must(platform::SendLifeline(half, Late()));
  EXPECT_EQ(Must(half.Receive(Late())).type, keeper::kOk);
  const WaitBegins begins;
  absl::Status waited;
  std::thread waits(
      [&] { waited = other.Lock("name", absl::InfiniteFuture()); });
  begins.Expect();
  server.reset();
  waits.join();
  EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
  EXPECT_FALSE(other.is_open());
  Must(half.WaitForHangUp(Late()));
}

// Bytes of messages that wait for who has this end.
int Unread(const platform::Channel& channel) {
  int bytes = 0;
  platform::Check(
      ::ioctl(static_cast<int>(channel.handle().get()), FIONREAD, &bytes) == 0,
      "ioctl(FIONREAD) of a socket");
  return bytes;
}

// Or systemd, which has asked it to end, waits for as long as the client may
// take to read.
TEST_F(LackingKeeperTest, AKeeperStopsThoughAClientReadsNoErrors) {
  auto server = Start();
  platform::Channel hostile = Dial(keeper_address());
  const std::vector<std::uint8_t> drop =
      keeper::EncodeRequest({.type = keeper::kDrop, .name = "none"});
  // Until an error has no room. Were the keeper only slow, it would be asked to
  // stop before that, and had to all the same.
  int answers = 0;
  for (bool answered = true; answered;) {
    const int unread = Unread(hostile);
    Must(hostile.Send(keeper::kDrop, drop, {}, Late()));
    const absl::Time patience =
        absl::Now() + absl::Seconds(answers == 0 ? 60 : 2);
    do {
      absl::SleepFor(absl::Microseconds(100));
      answered = Unread(hostile) > unread;
    } while (!answered && absl::Now() < patience);
    answers += answered ? 1 : 0;
  }
  EXPECT_GT(answers, 0);
  const absl::Time start = absl::Now();
  server.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

// Who hangs up before it is asked anything may be too busy, or has ended: who
// waits without a deadline looks once more.
TEST_F(LackingKeeperTest, WithoutADeadlineAKeeperThatHangsUpIsAskedOnceMore) {
  const auto server = Start();
  KeeperClient client = Client();
  {
    const FailingCall failing("sendmsg", EPIPE);
    Must(client.List(absl::InfiniteFuture()));
  }
  KeeperClient another = Client();
  const FailingCall failing("sendmsg", EPIPE, 0, FaultPoint::kForEver);
  const absl::Status status = another.List(absl::InfiniteFuture()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("hung up before it was asked"),
                    Not(HasSubstr("deadline"))));
}

TEST_F(LackingKeeperTest, WithoutADeadlineAKeeperThatHasEndedIsSaidToHave) {
  auto server = Start();
  KeeperClient client = Client();
  // As a client that is connected when the keeper ends, and asks then.
  server.reset();
  const absl::Status status = client.List(absl::InfiniteFuture()).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(LackingKeeperTest, WithoutADeadlineAnOwnerThatHangsUpIsAskedOnceMore) {
  EndpointOptions options;
  options.listener.directory = listener_directory();
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const auto open = [&] {
    return OpenTicket(driver(), share.ticket(), {}, absl::InfiniteFuture());
  };
  {
    const FailingCall failing("sendmsg", EPIPE);
    const ImportedAllocation opened = Must(open());
    ExpectPattern(opened.address(), kGranule, 4);
  }
  const FailingCall failing("sendmsg", EPIPE, 0, FaultPoint::kForEver);
  const absl::Status status = open().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(LackingKeeperTest, WhoIsTurnedAwayByTheLastDescriptorIsNamedToo) {
  std::vector<std::int64_t> named;
  const std::unique_ptr<SessionServer> server = Must(SessionServer::Bind(
      {.listener = {.directory = listener_directory()},
       .owner = "the owner",
       .failed = [](const absl::Status&) {},
       .turned_away =
           [&named](const platform::PeerCredentials& peer,
                    const absl::Status& why) {
             EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
             named.push_back(peer.pid);
           },
       .tidy = [] { return false; }}));
  // It waits there before anybody is accepted.
  platform::Channel client = Dial(server->address());
  ArmSyscallFault({.only_error = EMFILE, .only_call = "accept4"});
  Must(server->Start([](SessionServer::Session&) {}));
  const absl::StatusOr<platform::Message> told = client.Receive(Late());
  server->Stop();
  EXPECT_EQ(DisarmSyscallFault().fired, 1u);
  EXPECT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(named, ElementsAre(platform::CurrentProcessId()));
}

TEST_F(LackingKeeperTest, WhoHangsUpWhileItWaitsGetsNothing) {
  const auto server = Start();
  KeeperClient writer = Client();
  Must(writer.Put("name", Make(kGranule).shareable(), Late()));
  for (const keeper::Request& request :
       {keeper::Request{
            .type = keeper::kLock, .name = "name", .wait = absl::Hours(1)},
        keeper::Request{.type = keeper::kAttachOrCreate,
        .name = "name",
        .until_sealed = true,
        .size = kGranule,
        .wait = absl::Hours(1)}}) {
    {
      platform::Channel waits = Dial(keeper_address());
      const WaitBegins begins;
      Must(
          waits.Send(request.type, keeper::EncodeRequest(request), {}, Late()));
      Must(platform::SendLifeline(waits, Late()));
      begins.Expect();
    }
    Must(writer.Unlock("name", Late()));
    ExpectSoon(
        [&] { return Listed(writer, "name")->state == KeptState::kWritable; });
    Must(writer.Lock("name", Late()));
    EXPECT_EQ(Listed(writer, "name")->attached, 0u);
  }
}

TEST_F(LackingKeeperTest, AnAnswerThatCannotBeSentEndsThatConnectionAlone) {
  const auto server = Start();
  KeeperClient writer = Client();
  KeeperClient reader = Client();
  Must(writer.Put("name", MakePattern(kGranule, 1).shareable(), Late()));
  Must(reader.List(Late()));
  // After the request, which is the first.
  ArmSyscallFault(
      {.point = {.nth = 1}, .only_error = ENOBUFS, .only_call = "sendmsg"});
  const absl::Status unanswered =
      reader.Attach("name", driver(), {}, Late()).status();
  EXPECT_EQ(DisarmSyscallFault().fired, 1u);
  EXPECT_TRUE(absl::IsUnavailable(unanswered)) << unanswered;
  EXPECT_FALSE(reader.is_open());
  EXPECT_EQ(Listed(writer, "name")->attached, 0u);
  const ImportedAllocation kept =
      Must(Client().Attach("name", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 1);
}

// A container that hides from which boot of which machine it is.
int TicketWithoutBoot(const std::vector<std::string>&) {
  Ticket ticket = SampleTicket();
  ticket.kind = kNativeKind;
  const FailingCall failing("open", ENOENT);
  const absl::Status status = keeper::CheckTicketIsOfHere(ticket);
  if (!absl::IsNotFound(status)) return 1;
  return absl::StrContains(status.message(), "mount /proc") ? 0 : 2;
}
const bool kWithoutBoot =
    RegisterChild("keeper-ticket-without-boot", &TicketWithoutBoot);

TEST_F(LackingKeeperTest, WhereTheMachineIsUnknownNoTicketIsTakenForItsOwn) {
  EXPECT_EQ(Child::Start("keeper-ticket-without-boot", {}).Wait(), 0);
}

TEST_F(LackingKeeperTest, WithoutADirectoryThereIsNoDefaultAddress) {
  const char* const before = std::getenv("NVIDIA_DRA_LOCAL_IPC_DIR");
  const std::string saved = before != nullptr ? before : "";
  ::setenv("NVIDIA_DRA_LOCAL_IPC_DIR", "relative", 1);
  const absl::Status served =
      keeper::Server::Start({}, absl::NotFoundError(""), {}).status();
  const absl::Status asked = KeeperClient::Connect({}, Late()).status();
  ::setenv("NVIDIA_DRA_LOCAL_IPC_DIR", saved.c_str(), 1);
  for (const absl::Status& status : {served, asked}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("NVIDIA_DRA_LOCAL_IPC_DIR is \"relative\""));
  }
}

TEST_F(LackingKeeperTest, AKeeperInADirectoryOfEverybodysIsNotAsked) {
  ASSERT_EQ(::chmod(directory().c_str(), 0777), 0);
  const absl::Status status =
      KeeperClient::Connect({.address = keeper_address()}, Late()).status();
  ASSERT_EQ(::chmod(directory().c_str(), 0700), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("no keeper can be asked"), HasSubstr("--allow-user")));
}

}  // namespace
}  // namespace vmm::testing
