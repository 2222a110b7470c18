// Clients of the keeper that break its rules, and keepers that break theirs.
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/ipc/lifeline.h"
#include "platform/os/process.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/ipc/planted_handles.h"
#include "tests/support/fork.h"
#include "tests/support/open_handles.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using keeper::Request;
using platform::Channel;
using platform::Message;
using Bytes = std::vector<std::uint8_t>;
using ::testing::HasSubstr;

constexpr char kName[] = "wanted";

class HostileKeeperTest : public KeeperTest {
 protected:
  // A connection's first request that may gain a lock brings its lifeline.
  static absl::Status Ask(Channel& channel, const Request& request,
                          bool first = true) {
    Must(
        channel.Send(request.type, keeper::EncodeRequest(request), {}, Late()));
    if (first && keeper::MayGainLock(request.type)) {
      Must(platform::SendLifeline(channel, Late()));
    }
    const Message answer = Must(channel.Receive(Late()));
    if (answer.type == keeper::kOk) return absl::OkStatus();
    EXPECT_EQ(answer.type, keeper::kError);
    return protocol::DecodeError(answer.payload, "the keeper");
  }
  // A ticket of memory that the test has, as a client sends it.
  Request PutOf(const Allocation& memory) {
    return {.type = keeper::kPut,
            .name = kName,
            .ticket = Must(MakeTicket(memory.shareable(), kNativeKind))};
  }
  // The keeper announces memory and sends none: the client leaves it.
  void ExpectNothingCame(KeeperClient& client, bool until_sealed) {
    const absl::Status status =
        client
            .AttachOrCreate(
                kName, kGranule, driver(), {.until_sealed = until_sealed},
                [] { return absl::AbortedError("not asked for"); },
                absl::Now() + absl::Seconds(1))
            .status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_FALSE(client.is_open());
  }
  static void ExpectHangUp(Channel& channel) {
    for (;;) {
      const absl::Status status = channel.Receive(Late()).status();
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      return;
    }
  }
};

TEST_F(HostileKeeperTest, NonsenseEndsItsSendersConnectionAndNothingElse) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation memory = MakePattern(kGranule, 1);
  Must(client.Put(kName, memory.shareable(), Late()));
  const platform::CancelEvent some = Must(platform::CancelEvent::Create());
  const std::vector<std::uint8_t> good =
      keeper::EncodeRequest({.type = keeper::kDrop, .name = kName});
  for (int kind = 0; kind < 6; ++kind) {
    Channel hostile = Dial(keeper_address());
    std::vector<std::uint8_t> bytes = good;
    std::uint16_t type = keeper::kDrop;
    std::vector<const platform::OsHandle*> handles;
    if (kind == 0) type = 0xF1FF;
    if (kind == 1) bytes.pop_back();
    if (kind == 2) bytes[3] = 200;
    if (kind == 3) bytes[2] = 1;
    if (kind == 4) bytes.clear();
    if (kind == 5) handles = {&some.handle()};
    Must(hostile.Send(type, bytes, handles, Late()));
    const Message answer = Must(hostile.Receive(Late()));
    EXPECT_EQ(answer.type, keeper::kError);
    EXPECT_TRUE(absl::IsInvalidArgument(
        protocol::DecodeError(answer.payload, "the keeper")));
    ExpectHangUp(hostile);
  }
  EXPECT_EQ(Listed(client, kName)->state, KeptState::kLocked);
}

// As user args[1], which the keeper at args[0] has, makes connections, and speaks
// over them as nobody: as a process does that has inherited or was handed them.
int SpeakAsNobody(const std::vector<std::string>& args) {
  const Here here;
  const Allocation memory = Must(Allocation::Create(
      here.device, {.size = kGranule, .sharing = TestSharing()}));
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(memory.shareable()));
  {
    KeeperClient client =
        Must(KeeperClient::Connect({.address = args[0]}, Late()));
    Must(client.Put(kName, memory.shareable(), Late()));
    Must(client.Seal(kName, Late()));
  }
  platform::PeerPolicy keepers;
  keepers.also_allowed.emplace_back(args[1]);
  const auto dial = [&] {
    return Must(Channel::Connect(args[0], keepers, Late()));
  };
  const auto expect_refused = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("another user speaks over this connection"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(". Connect anew"));
  };
  const auto ask = [](Channel& channel, const Request& request) {
    Must(
        channel.Send(request.type, keeper::EncodeRequest(request), {}, Late()));
  };
  Channel drops = dial();
  Channel replaces = dial();
  Channel puts = dial();
  ask(puts, {.type = keeper::kPut, .name = "new", .ticket = outgoing.ticket});
  Must(platform::SendLifeline(puts, Late()));
  EXPECT_EQ(Must(puts.Receive(Late())).type, keeper::kOk);
  BecomeNobody();
  ask(drops, {.type = keeper::kDrop, .name = kName});
  ask(replaces, {.type = keeper::kReplace,
                 .name = kName,
                 .ticket = outgoing.ticket,
                 .replaces = outgoing.ticket.id});
  for (Channel* channel : {&drops, &replaces}) {
    const Message answer = Must(channel->Receive(Late()));
    EXPECT_EQ(answer.type, keeper::kError);
    if (answer.type != keeper::kError) continue;
    expect_refused(protocol::DecodeError(answer.payload, "the keeper"));
    EXPECT_TRUE(channel->WaitForHangUp(Late()).ok());
  }
  expect_refused(
      protocol::SendAll(puts, absl::MakeConstSpan(&outgoing, 1), Late()));
  EXPECT_TRUE(puts.WaitForHangUp(Late()).ok());
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kSpeakAsNobody =
    RegisterChild("keeper-speak-as-nobody", &SpeakAsNobody);

TEST_F(HostileKeeperTest,
       AnotherUserHasNothingOverAConnectionThatItDidNotMake) {
  if (!MayBecomeAnotherUser()) {
    GTEST_SKIP() << "this process cannot become another user";
  }
  keeper::ServerOptions options;
  options.peers.also_allowed.emplace_back("65534");
  options.first_request_timeout = absl::Minutes(1);  // It makes them early.
  const std::unique_ptr<keeper::Server> server = Start(options);
  EXPECT_EQ(Child::Start("keeper-speak-as-nobody",
                         {keeper_address(), platform::CurrentUser().text()})
                .Wait(),
            0);
  ExpectSoon([&] { return server->names() == 1; });
  KeeperClient client = Client();
  const std::optional<KeptMemory> kept = Listed(client, kName);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->state, KeptState::kSealed);
}

TEST_F(HostileKeeperTest, WhatIsNoMemoryOfTheStatedSizeIsNotKept) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation memory = MakePattern(kGranule, 1);
  const Request put = PutOf(memory);
  std::vector<Planted> planted = CarriedObjects();
  if (OnHostMemoryDriver()) {
    planted.push_back({"unsealed", PlantedMemory(kGranule, false)});
    planted.push_back({"small", PlantedMemory(kGranule / 2, true)});
  }
  for (const Planted& each : planted) {
    SCOPED_TRACE(each.name);
    Channel hostile = Dial(keeper_address());
    Must(Ask(hostile, put));
    const protocol::Outgoing outgoing{
        *put.ticket, [&](std::size_t) -> absl::StatusOr<ExportedHandle> {
          return Must(platform::Duplicate(each.handle));
        }};
    const absl::Status refused =
        protocol::SendAll(hostile, absl::MakeConstSpan(&outgoing, 1), Late());
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    // The name is free again, and the connection is of use.
    Must(Ask(hostile, put, false));
    hostile.Close();
    ExpectSoon([&] { return server->names() == 0; });
  }
}

TEST_F(HostileKeeperTest, OtherMemoryThanAnnouncedIsNotKept) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation announced = Make(kGranule);
  const Allocation sent = Make(4 * kGranule, kGranule);
  Channel hostile = Dial(keeper_address());
  Must(Ask(hostile, PutOf(announced)));
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(sent.shareable()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      protocol::SendAll(hostile, absl::MakeConstSpan(&outgoing, 1), Late())));
  EXPECT_EQ(server->names(), 0u);
}

TEST_F(HostileKeeperTest, APutOfMoreHandlesThanAnnouncedKeepsNone) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation announced = Make(kGranule);
  const Request put = PutOf(announced);
  Ticket larger = *put.ticket;
  constexpr std::size_t kChunks = 1024;
  larger.layout = {kChunks * kGranule, kGranule};
  larger.requested_size = larger.layout.size;
  const platform::CancelEvent some = Must(platform::CancelEvent::Create());
  const std::vector<const platform::OsHandle*> handles(platform::kMaxHandles,
                                                       &some.handle());
  Channel hostile = Dial(keeper_address());
  Must(Ask(hostile, put));
  const std::size_t before = OpenHandleCount();
  Must(hostile.Send(protocol::kBegin, Bytes{1, 0, 0, 0}, {}, Late()));
  Bytes part = {1, 0, 0, 0};
  const Bytes ticket = EncodeTicket(larger);
  part.insert(part.end(), ticket.begin(), ticket.end());
  for (std::size_t sent = 0; sent < kChunks / 2;
       sent += platform::kMaxHandles) {
    // It hangs up in between.
    if (!hostile.Send(protocol::kPart, part, handles, Late()).ok()) break;
    part = {0, 0, 0, 0};
    // Of the one part that it reads to see what comes.
    EXPECT_LE(OpenHandleCount(), before + 2 * platform::kMaxHandles);
  }
  const absl::StatusOr<Message> answer = hostile.Receive(Late());
  EXPECT_LE(OpenHandleCount(), before + 2 * platform::kMaxHandles);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->type, protocol::kRefused);
  const absl::Status refused =
      protocol::DecodeError(answer->payload, "the keeper");
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1024 chunks"));
  ExpectHangUp(hostile);
  ExpectSoon([&] { return server->names() == 0; });
}

TEST_F(HostileKeeperTest, ATicketOfAnotherMachineIsRefused) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation memory = Make(kGranule);
  Request put = PutOf(memory);
  put.ticket->boot_id.fill(0x55);
  Channel client = Dial(keeper_address());
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(client, put)));
  put = PutOf(memory);
  put.ticket->kind = kForeignKind;
  EXPECT_TRUE(absl::IsUnimplemented(Ask(client, put, false)));
  EXPECT_EQ(server->names(), 0u);
}

TEST_F(HostileKeeperTest, AClientThatLeavesInTheMiddleOfAPutLeavesNothing) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation memory = Make(40 * kGranule, kGranule);
  const protocol::Outgoing whole =
      Must(protocol::MakeOutgoing(memory.shareable()));
  const Request put = {
      .type = keeper::kPut, .name = kName, .ticket = whole.ticket};
  {
    Channel announces_only = Dial(keeper_address());
    Must(Ask(announces_only, put));
    EXPECT_EQ(server->names(), 1u);
  }
  ExpectSoon([&] { return server->names() == 0; });
  for (std::size_t chunks : {0u, 16u, 33u}) {
    Channel leaves = Dial(keeper_address());
    Must(Ask(leaves, put));
    const protocol::Outgoing half{
        whole.ticket, [&](std::size_t chunk) -> absl::StatusOr<ExportedHandle> {
          if (chunk < chunks) return whole.handle(chunk);
          leaves.Close();
          return absl::AbortedError("leaves");
        }};
    EXPECT_FALSE(
        protocol::SendAll(leaves, absl::MakeConstSpan(&half, 1), Late()).ok());
    ExpectSoon([&] { return server->names() == 0; });
  }
}

TEST_F(HostileKeeperTest, Pitfall13ASilentClientIsDroppedAndDelaysNobody) {
  keeper::ServerOptions options;
  options.first_request_timeout = absl::Seconds(2);
  options.transfer_timeout = absl::Seconds(2);
  const std::unique_ptr<keeper::Server> server = Start(options);
  const Allocation memory = Make(kGranule);
  const platform::Channel silent = Dial(keeper_address());
  Channel half = Dial(keeper_address());
  Must(Ask(half, PutOf(memory)));
  KeeperClient client = Client();
  Must(client.Put("another", memory.shareable(), Late()));
  // Its time to ask begins here.
  Channel never_takes = Dial(keeper_address());
  Must(never_takes.Send(
      keeper::kAttach,
      keeper::EncodeRequest({.type = keeper::kAttach, .name = "another"}), {},
      Late()));
  EXPECT_TRUE(silent.WaitForHangUp(Late()).ok());
  EXPECT_TRUE(half.WaitForHangUp(Late()).ok());
  EXPECT_TRUE(never_takes.WaitForHangUp(Late()).ok());
  ExpectSoon([&] { return server->names() == 1; });
  // One that has asked before may be quiet: it has the lock.
  EXPECT_EQ(Listed(client, "another")->state, KeptState::kLocked);
}

TEST_F(HostileKeeperTest, MoreConnectionsThanAllowedAreToldSo) {
  for (std::size_t keeper::ServerOptions::*limit :
       {&keeper::ServerOptions::max_sessions,
        &keeper::ServerOptions::max_user_sessions,
        &keeper::ServerOptions::max_process_sessions}) {
    keeper::ServerOptions options;
    options.max_process_sessions = 8;
    options.*limit = 2;
    const std::unique_ptr<keeper::Server> server = Start(options);
    KeeperClient first = Client();
    Must(first.List(Late()));
    {
      KeeperClient second = Client();
      Must(second.List(Late()));
      for (int i = 0; i < 20; ++i) {
        KeeperClient third = Client();
        const absl::Status refused =
            third.List(absl::InfiniteFuture()).status();
        ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
        EXPECT_THAT(std::string(refused.message()), HasSubstr("2 connections"));
      }
    }
    ExpectSoon([&] {
      KeeperClient again = Client();
      return again.List(Late()).ok();
    });
  }
}

TEST_F(HostileKeeperTest, AWaiterThatHasGoneTakesNothing) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation memory = Make(kGranule);
  Must(client.Put(kName, memory.shareable(), Late()));
  {
    Channel waits = Dial(keeper_address());
    const Request lock = {
        .type = keeper::kLock, .name = kName, .wait = absl::Hours(1)};
    Must(waits.Send(lock.type, keeper::EncodeRequest(lock), {}, Late()));
    Must(platform::SendLifeline(waits, Late()));
    Must(waits.Send(keeper::kGoodbye, {}, {}, Late()));
  }
  Must(client.Unlock(kName, Late()));
  // If the one that has gone got it, it is given back at once.
  ExpectSoon(
      [&] { return Listed(client, kName)->state == KeptState::kWritable; });
  Must(client.Lock(kName, Late()));
}

// An attacker's, or an unlucky program's, hundredth connection finds room, and
// its process takes over what others of its connections had locked.
TEST_F(HostileKeeperTest, HangUpsWithALockTakeOneSessionOfAProcess) {
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation memory = Make(kGranule);
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(memory.shareable()));
  for (std::size_t i = 0; i < 100; ++i) {
    Channel leaves = Dial(keeper_address());
    Request put = PutOf(memory);
    put.name = absl::StrCat(kName, i);
    Must(Ask(leaves, put));
    Must(protocol::SendAll(leaves, absl::MakeConstSpan(&outgoing, 1), Late()));
    // As long as it counts, the next one may be turned away.
    KeeperClient client = Client();
    EXPECT_EQ(Must(client.List(Late())).memory.size(), i + 1);
  }
  KeeperClient client = Client();
  for (const KeptMemory& kept : Must(client.List(Late())).memory) {
    EXPECT_EQ(kept.state, KeptState::kLocked);
    Must(client.Lock(kept.name, Late()));
  }
}

TEST_F(HostileKeeperTest, WhoAsksForALockWithoutALifelineGetsNone) {
  if (!MayFork()) GTEST_SKIP() << "nothing is sent on this system";
  const std::unique_ptr<keeper::Server> server = Start();
  const Allocation memory = Make(kGranule);
  for (const std::uint16_t type :
       {std::uint16_t{keeper::kList}, platform::kLifelineMessage}) {
    Channel hostile = Dial(keeper_address());
    const Request put = PutOf(memory);
    Must(hostile.Send(put.type, keeper::EncodeRequest(put), {}, Late()));
    Must(hostile.Send(type, {}, {}, Late()));
    EXPECT_EQ(Must(hostile.Receive(Late())).type, keeper::kError);
    ExpectHangUp(hostile);
    EXPECT_EQ(server->names(), 0u);
  }
}

// Answers one request of one client in its own way.
void AnswerOnce(platform::Listener& listener,
                const std::function<void(Channel&)>& answer) {
  Channel channel = Must(listener.Accept(Late()));
  Must(channel.Receive(Late()));
  answer(channel);
  // What the client says afterwards is of no account.
  channel.WaitForHangUp(Late()).IgnoreError();
}

TEST_F(HostileKeeperTest, AKeeperThatBreaksTheProtocolIsHungUpOn) {
  const Allocation memory = MakePattern(kGranule, 1);
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(memory.shareable()));
  const platform::CancelEvent some = Must(platform::CancelEvent::Create());
  const std::vector<std::function<void(Channel&)>> answers = {
      [](Channel& c) { Must(c.Send(1, {}, {}, Late())); },
      [](Channel& c) { Must(c.Send(keeper::kOk, {}, {}, Late())); },
      [](Channel& c) { Must(c.Send(keeper::kAttached, Bytes{9}, {}, Late())); },
      [&](Channel& c) {
        Must(c.Send(keeper::kAttached, Bytes{0}, {&some.handle()}, Late()));
      },
      // Sealed, though it is to be mapped for writing.
      [](Channel& c) { Must(c.Send(keeper::kAttached, Bytes{1}, {}, Late())); },
      // Another size.
      [&](Channel& c) {
        Must(c.Send(keeper::kAttached, Bytes{0}, {}, Late()));
        EXPECT_FALSE(
            protocol::SendAll(c, absl::MakeConstSpan(&outgoing, 1), Late())
                .ok());
        c.Close();
      }};
  for (std::size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(i);
    std::thread keeper([&] { AnswerOnce(listener(), answers[i]); });
    {
      KeeperClient client = ClientOf(address());
      const absl::Status status =
          client
              .Attach(kName, driver(),
                      {.import = {.access = Access::kReadWrite},
                       .expected_size = 12345},
                      Late())
              .status();
      EXPECT_TRUE(absl::IsDataLoss(status) ||
                  absl::IsFailedPrecondition(status))
          << status;
      // The last one kept the exchange's own rules.
      EXPECT_EQ(client.is_open(), i + 1 == answers.size());
    }
    keeper.join();
  }
}

// As each call meets them.
TEST_F(HostileKeeperTest, WhateverAKeeperAnswersNoCallTakesItForWhatItIsNot) {
  using Ask = std::function<absl::Status(KeeperClient&)>;
  const auto send = [](std::uint16_t type, Bytes payload) {
    return [type, payload](Channel& c) {
      Must(c.Send(type, payload, {}, Late()));
    };
  };
  const auto listed = [&](const std::vector<std::string>& names) {
    keeper::Page page;
    for (const std::string& name : names) {
      page.memory.emplace_back().name = name;
    }
    return send(keeper::kListed, keeper::EncodePage(page));
  };
  const Ask list = [](KeeperClient& client) {
    return client.List(Late()).status();
  };
  const Ask unlock = [](KeeperClient& client) {
    return client.Unlock(kName, Late());
  };
  // What it would create is never asked for.
  const auto attach_or_create = [this](Access access) -> Ask {
    return [this, access](KeeperClient& client) {
      return client
          .AttachOrCreate(
              kName, kGranule, driver(), {.import = {.access = access}},
              []() -> absl::StatusOr<Allocation> {
                ADD_FAILURE() << "it was asked to create";
                return absl::AbortedError("");
              },
              Late())
          .status();
    };
  };
  struct Row {
    Ask ask;
    std::function<void(Channel&)> answer;
    absl::StatusCode code = absl::StatusCode::kDataLoss;
  };
  const Row rows[] = {
      {list, [](Channel& c) { c.Close(); }, absl::StatusCode::kUnavailable},
      {list, send(keeper::kOk, {})},
      {list, send(keeper::kListed, {1, 2, 3})},
      // A list that does not go on, but back.
      {list, listed({"b", "a"})},
      {list, listed({"a", "a"})},
      {unlock, send(keeper::kOk, {1})},
      {unlock, send(keeper::kCreate, {})},
      {attach_or_create(Access::kRead), send(keeper::kCreate, {1})},
      {attach_or_create(Access::kRead), send(keeper::kAttached, {9})},
      {attach_or_create(Access::kReadWrite), send(keeper::kAttached, {1}),
       absl::StatusCode::kFailedPrecondition}};
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    SCOPED_TRACE(i);
    std::thread keeper([&] { AnswerOnce(listener(), rows[i].answer); });
    {
      KeeperClient client = ClientOf(address());
      const absl::Status status = rows[i].ask(client);
      EXPECT_EQ(status.code(), rows[i].code) << status;
      EXPECT_FALSE(client.is_open());
      const absl::Status closed = rows[i].ask(client);
      EXPECT_TRUE(absl::IsUnavailable(closed)) << closed;
    }
    keeper.join();
  }
}

// The next one may be able to open it: its lock is not kept.
TEST_F(HostileKeeperTest, WhatATakenOverMemoryFailsToOpenIsUnlockedAgain) {
  const Allocation memory = MakePattern(kGranule, 1);
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(memory.shareable()));
  for (const bool taken_over : {false, true}) {
    std::uint16_t next = 0;
    std::thread keeper([&] {
      AnswerOnce(listener(), [&](Channel& c) {
        Must(platform::ReceiveLifeline(c, Late()));
        Must(c.Send(keeper::kAttached,
                    keeper::EncodeAttached({.taken_over = taken_over}), {},
                    Late()));
        // Of another size than was asked for.
        EXPECT_FALSE(
            protocol::SendAll(c, absl::MakeConstSpan(&outgoing, 1), Late())
                .ok());
        next = Must(c.Receive(Late())).type;
        if (taken_over) Must(c.Send(keeper::kOk, {}, {}, Late()));
      });
    });
    {
      KeeperClient client = ClientOf(address());
      const absl::Status status =
          client
              .AttachOrCreate(
                  kName, 2 * kGranule, driver(), {.until_sealed = true},
                  [] { return absl::AbortedError("not asked for"); }, Late())
              .status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_TRUE(client.is_open());
    }
    keeper.join();
    EXPECT_EQ(next, taken_over ? keeper::kUnlock : keeper::kGoodbye);
  }
}

TEST_F(HostileKeeperTest, AKeeperThatAnnouncesMemoryAndSendsNoneIsLeft) {
  std::thread keeper([&] {
    AnswerOnce(listener(), [](Channel& c) {
      Must(c.Send(keeper::kAttached,
                  keeper::EncodeAttached({.taken_over = true}), {}, Late()));
    });
  });
  {
    KeeperClient client = ClientOf(address());
    ExpectNothingCame(client, /*until_sealed=*/true);
  }
  keeper.join();
}

// It may write under it still: the connection stays until the client ends it.
TEST_F(HostileKeeperTest, WhoLeavesAKeeperForgetsNoLockThatItHadBefore) {
  for (const bool taken_over : {false, true}) {
    SCOPED_TRACE(taken_over);
    std::uint16_t next = 0;
    std::thread keeper([&] {
      AnswerOnce(listener(), [&](Channel& c) {
        Must(platform::ReceiveLifeline(c, Late()));
        Must(c.Send(keeper::kOk, {}, {}, Late()));
        EXPECT_EQ(Must(c.Receive(Late())).type, keeper::kAttachOrCreate);
        Must(c.Send(keeper::kAttached,
                    keeper::EncodeAttached({.taken_over = taken_over}), {},
                    Late()));
        next = Must(c.Receive(Late())).type;
      });
    });
    {
      KeeperClient client = ClientOf(address());
      Must(client.Lock(kName, Late()));
      ExpectNothingCame(client, /*until_sealed=*/taken_over);
    }
    keeper.join();
    EXPECT_EQ(next, protocol::kRefused);
  }
}

TEST_F(HostileKeeperTest, AKeeperThatRefusesWhatItAskedForKeepsNothing) {
  std::uint16_t last = 0;
  std::thread keeper([&] {
    AnswerOnce(listener(), [&](Channel& c) {
      Must(platform::ReceiveLifeline(c, Late()));
      Must(c.Send(keeper::kOk, {}, {}, Late()));
      EXPECT_FALSE(protocol::ReceiveAll(
                       c,
                       [](protocol::Incoming) {
                         return absl::ResourceExhaustedError("no room");
                       },
                       Late())
                       .ok());
      last = Must(c.Receive(Late())).type;
    });
  });
  {
    KeeperClient client = ClientOf(address());
    const absl::Status status =
        client.Put(kName, Make(kGranule).shareable(), Late());
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no room"));
    EXPECT_TRUE(client.is_open());
  }
  keeper.join();
  EXPECT_EQ(last, keeper::kGoodbye);
}

// A keeper waits for a day at most.
TEST_F(HostileKeeperTest, AKeeperThatHasWaitedForADayIsAskedAgain) {
  const auto says_late = [](Channel& c) {
    return protocol::SendError(
        c, static_cast<protocol::MessageType>(keeper::kError),
        absl::DeadlineExceededError("waited for a day"), Late());
  };
  std::thread keeper([&] {
    AnswerOnce(listener(), [&](Channel& c) {
      Must(platform::ReceiveLifeline(c, Late()));
      Must(says_late(c));
      EXPECT_EQ(Must(c.Receive(Late())).type, keeper::kLock);
      Must(c.Send(keeper::kOk, {}, {}, Late()));
      EXPECT_EQ(Must(c.Receive(Late())).type, keeper::kAttachOrCreate);
      Must(says_late(c));
      EXPECT_EQ(Must(c.Receive(Late())).type, keeper::kAttachOrCreate);
      Must(protocol::SendError(
          c, static_cast<protocol::MessageType>(keeper::kError),
          absl::NotFoundError("nothing"), Late()));
      // Nor is anybody asked again who has said that it is too late.
      EXPECT_EQ(Must(c.Receive(Late())).type, keeper::kLock);
      Must(says_late(c));
    });
  });
  {
    KeeperClient client = ClientOf(address());
    Must(client.Lock(kName, absl::InfiniteFuture()));
    const absl::Status status =
        client
            .AttachOrCreate(
                "other", kGranule, driver(), {.until_sealed = true},
                [] { return absl::AbortedError("not asked for"); },
                absl::InfiniteFuture())
            .status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_TRUE(absl::IsDeadlineExceeded(client.Lock("other", Late())));
  }
  keeper.join();
}

// Says so, and hangs up later, when nothing of it uses the memory any more.
TEST_F(HostileKeeperTest, WhoGivesUpGivesItsReservationBackAtOnce) {
  const std::unique_ptr<keeper::Server> server = Start();
  const platform::CancelEvent some = Must(platform::CancelEvent::Create());
  const Request reserve = {
      .type = keeper::kAttachOrCreate, .name = kName, .size = kGranule};
  const auto reserved = [&] {
    Channel channel = Dial(keeper_address());
    Must(
        channel.Send(reserve.type, keeper::EncodeRequest(reserve), {}, Late()));
    Must(platform::SendLifeline(channel, Late()));
    EXPECT_EQ(Must(channel.Receive(Late())).type, keeper::kCreate);
    EXPECT_EQ(server->names(), 1u);
    return channel;
  };
  {
    Channel gives_up = reserved();
    Must(gives_up.Send(protocol::kAbort, {}, {}, Late()));
    ExpectSoon([&] { return server->names() == 0; });
    // What else it says is not heard.
    Must(gives_up.Send(keeper::kList, keeper::EncodeRequest({}), {}, Late()));
    ExpectHangUp(gives_up);
  }
  // With a handle it is no such word, but a broken rule.
  Channel hostile = reserved();
  Must(hostile.Send(protocol::kAbort, {}, {&some.handle()}, Late()));
  const Message answer = Must(hostile.Receive(Late()));
  EXPECT_EQ(answer.type, keeper::kError);
  ExpectHangUp(hostile);
  ExpectSoon([&] { return server->names() == 0; });
}

}  // namespace
}  // namespace vmm::testing
