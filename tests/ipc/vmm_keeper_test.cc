// The keeper and its clients, in several processes.
#include <gmock/gmock.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "platform/base/check.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/ipc/planted_handles.h"
#include "tests/support/fork.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Args = std::vector<std::string>;

constexpr char kName[] = "model/tp-0";
constexpr std::uint64_t kSize = 3 * kGranule - 100;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

Allocation MakeHere(const Device& device, std::uint64_t size,
                    std::uint64_t seed, std::uint64_t max_chunk = 0) {
  Allocation memory = Must(
      Allocation::Create(device, {.size = size, .max_chunk_size = max_chunk}));
  WritePattern(memory.address(), memory.requested_size(), seed);
  return memory;
}

// Puts pattern 1 in three chunks and ends: ADDRESS, and what to do then:
// "seal", "return" or "die".
int PutAndEnd(const Args& args) {
  const Here here;
  KeeperClient keeper =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  const Allocation memory = MakeHere(here.device, kSize, 1, kGranule);
  Must(keeper.Put(kName, memory.shareable(), Late()));
  if (args[1] == "seal") Must(keeper.Seal(kName, Late()));
  if (args[1] == "die") KillThisProcess();
  return 0;
}
const bool kPutAndEnd = RegisterChild("keeper-put-and-end", &PutAndEnd);

TEST_F(KeeperTest, MemoryOutlivesTheProcessThatMadeIt) {
  const std::unique_ptr<keeper::Server> server = Start();
  Child creator =
      Child::Start("keeper-put-and-end", {keeper_address(), "seal"});
  const std::int64_t pid = creator.pid();
  EXPECT_EQ(creator.Wait(), 0);
  KeeperClient client = Client();
  const ImportedAllocation memory =
      Must(client.Attach(kName, driver(), {.expected_size = kSize}, Late()));
  ExpectPattern(memory.address(), kSize, 1);
  ExpectReadOnly(memory.address());
  // The keeper counts when it has heard that the import worked.
  ExpectSoon([&] { return Listed(client, kName)->attached == 1; });
  const KeptMemory listed = *Listed(client, kName);
  EXPECT_EQ(listed.state, KeptState::kSealed);
  EXPECT_EQ(listed.size, kSize);
  EXPECT_EQ(listed.allocated_size, 3 * kGranule);
  EXPECT_EQ(listed.chunks, 3u);
  EXPECT_EQ(listed.pid, pid);
  EXPECT_EQ(listed.user, platform::CurrentUser());
  EXPECT_EQ(listed.device, device.uuid());
  EXPECT_EQ(listed.kind, kNativeKind);
  EXPECT_TRUE(listed.outlives_creator());
  EXPECT_FALSE(listed.survives_restart);
  EXPECT_LT(absl::Now() - listed.since, absl::Minutes(1));
  EXPECT_THAT(Must(client.List(Late())).restart_note,
              HasSubstr("none in this test"));
}

TEST_F(KeeperTest, Pitfall26MemoryOfAKilledProcessIsKeptAndItsLockIsFree) {
  const std::unique_ptr<keeper::Server> server = Start();
  EXPECT_EQ(
      Child::Start("keeper-put-and-end", {keeper_address(), "die"}).Wait(),
      Child::kKilled);
  KeeperClient client = Client();
  // Waits until the keeper has noticed.
  Must(client.Lock(kName, Late()));
  const ImportedAllocation memory = Must(client.Attach(
      kName, driver(), {.import = {.access = Access::kReadWrite}}, Late()));
  ExpectPattern(memory.address(), kSize, 1);
  WritePattern(memory.address(), kSize, 2);
  Must(client.Seal(kName, Late()));
  const ImportedAllocation again =
      Must(Client().Attach(kName, driver(), {}, Late()));
  ExpectPattern(again.address(), kSize, 2);
}

TEST_F(KeeperTest, ATakenNameIsRefusedAndSaysByWhom) {
  const std::unique_ptr<keeper::Server> server = Start();
  Child creator =
      Child::Start("keeper-put-and-end", {keeper_address(), "return"});
  const std::int64_t pid = creator.pid();
  EXPECT_EQ(creator.Wait(), 0);
  const Allocation memory = MakePattern(kGranule, 2);
  KeeperClient client = Client();
  const absl::Status taken = client.Put(kName, memory.shareable(), Late());
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(
      Text(taken),
      AllOf(HasSubstr(kName), HasSubstr(absl::StrCat("process ", pid, " "))));
  Must(client.Put("another", memory.shareable(), Late()));
  const ImportedAllocation first =
      Must(client.Attach(kName, driver(), {}, Late()));
  ExpectPattern(first.address(), kSize, 1);
}

TEST_F(KeeperTest, AFullKeeperAndAUsedQuotaSayTheFigures) {
  const Allocation memory = Make(2 * kGranule, kGranule);
  const std::string two = absl::StrCat(2 * kGranule);
  struct Case {
    keeper::Limits limits;
    std::string says;
  };
  const Case cases[] = {
      {{.names = 1}, "full: it has 1 names; 1 more pass the limit of 1"},
      {{.bytes = 3 * kGranule},
       absl::StrCat("full: it has ", two, " bytes; ", two,
                    " more pass the limit of ", 3 * kGranule)},
      {{.handles = 3}, "full: it has 2 handles; 2 more pass the limit of 3"},
      {{.user_names = 1}, " has 1 names; 1 more pass the limit of 1"},
      {{.user_bytes = 3 * kGranule},
       absl::StrCat("the quota is used: user ", platform::CurrentUser().text(),
                    " has ", two, " bytes")},
      {{.user_handles = 3}, " has 2 handles; 2 more pass the limit of 3"}};
  for (const Case& each : cases) {
    const std::unique_ptr<keeper::Server> server =
        Start({.limits = each.limits});
    KeeperClient client = Client();
    Must(client.Put("first", memory.shareable(), Late()));
    const absl::Status full = client.Put("second", memory.shareable(), Late());
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_THAT(Text(full), HasSubstr(each.says));
    // What is dropped makes room.
    Must(client.Drop("first", Late()));
    Must(client.Put("second", memory.shareable(), Late()));
  }
}

TEST_F(KeeperTest, PrivateMemoryAndBadNamesAreRefusedBeforeAnythingIsSent) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation hidden = Must(Allocation::Create(
      device, {.size = kGranule, .sharing = SharePolicy::Private()}));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      client.Put(kName, hidden.shareable(), Late())));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      client.Replace(kName, hidden.shareable(), std::nullopt, Late())));
  const Allocation memory = Make(kGranule);
  for (const std::string& name :
       {std::string(), std::string(129, 'a'), std::string("a b"),
        std::string("caf\xc3\xa9")}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(client.Put(name, memory.shareable(), Late())));
    EXPECT_TRUE(absl::IsInvalidArgument(
        client.Attach(name, driver(), {}, Late()).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(client.Lock(name, Late())));
    EXPECT_TRUE(absl::IsInvalidArgument(client.Drop(name, Late())));
  }
  EXPECT_TRUE(client.is_open());
  EXPECT_EQ(server->names(), 0u);
  Must(client.Put(std::string(128, '-'), memory.shareable(), Late()));
}

// Puts, says so to LISTENER, and keeps the writer lock: KEEPER LISTENER.
int PutAndHold(const Args& args) {
  const Here here;
  KeeperClient keeper =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  const Allocation memory = MakeHere(here.device, kSize, 5);
  Must(keeper.Put(kName, memory.shareable(), Late()));
  platform::Channel test = Dial(args[1]);
  Tell(test);
  while (Hear(test) == "seal") {
    Must(keeper.Seal(kName, Late()));
    Tell(test);
  }
  return 0;
}
const bool kPutAndHold = RegisterChild("keeper-put-and-hold", &PutAndHold);

TEST_F(KeeperTest, ALockThatIsFreeIsTakenAtALook) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation memory = MakePattern(kSize, 1);
  Must(client.Put(kName, memory.shareable(), Late()));
  Must(client.Unlock(kName, Late()));
  Must(client.Lock(kName, absl::InfinitePast()));
  Must(client.Unlock(kName, Late()));
}

TEST_F(KeeperTest, ASecondWriterWaitsAndLearnsForWhom) {
  const std::unique_ptr<keeper::Server> server = Start();
  Child writer =
      Child::Start("keeper-put-and-hold", {keeper_address(), address()});
  platform::Channel told = Accept();
  Hear(told);
  KeeperClient client = Client();
  const absl::Status waited =
      client.Lock(kName, absl::Now() + absl::Seconds(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
  EXPECT_THAT(Text(waited),
              HasSubstr(absl::StrCat("process ", writer.pid(), " of user ",
                                     platform::CurrentUser().text())));
  EXPECT_TRUE(client.is_open());
  // Nor does a look, which does not wait, cost the connection.
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(client.Lock(kName, absl::InfinitePast())));
  EXPECT_TRUE(client.is_open());
  EXPECT_TRUE(absl::IsFailedPrecondition(client.Unlock(kName, Late())));
  EXPECT_TRUE(absl::IsFailedPrecondition(client.Seal(kName, Late())));
  const KeptMemory listed = *Listed(client, kName);
  EXPECT_EQ(listed.state, KeptState::kLocked);
  EXPECT_EQ(listed.holder_pid, writer.pid());
  EXPECT_EQ(listed.holder, platform::CurrentUser());
  // The lock goes with the process.
  writer.Kill();
  Must(client.Lock(kName, Late()));
  Must(client.Lock(kName, Late()));
  EXPECT_EQ(writer.Wait(), Child::kKilled);
  Must(client.Unlock(kName, Late()));
  EXPECT_TRUE(absl::IsFailedPrecondition(client.Unlock(kName, Late())));
}

// Puts, has its connection fail, and says so to LISTENER; then does as it is
// told: lets go of it, or forks a child that stays: KEEPER LISTENER.
int PutAndFail(const Args& args) {
  const Here here;
  std::optional<KeeperClient> failed =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  const Allocation memory = MakeHere(here.device, kSize, 5);
  const std::string name = args.size() > 2 ? args[2] : kName;
  Must(failed->Put(name, memory.shareable(), Late()));
  // Until an answer is late.
  ExpectSoon([&] {
    failed->List(absl::InfinitePast()).IgnoreError();
    return !failed->is_open();
  });
  platform::Channel test = Dial(args[1]);
  for (;;) {
    Tell(test);
    const std::string order = Hear(test);
    if (order == "let go") {
      failed.reset();
    } else if (order == "fork") {
      RunApart([&] {
        failed.reset();
        test.WaitForHangUp(absl::InfiniteFuture()).IgnoreError();
      });
    } else {
      return 0;
    }
  }
}
const bool kPutAndFail = RegisterChild("keeper-put-and-fail", &PutAndFail);

// What the keeper says to who waits for the lock in vain. A busy machine may
// answer late, which costs the connection: then another one asks.
std::string RefusedLock(const std::string& keeper) {
  for (int tries = 10;; --tries) {
    KeeperClient client =
        Must(KeeperClient::Connect({.address = keeper}, Late()));
    const absl::Status waited =
        client.Lock(kName, absl::Now() + absl::Milliseconds(400));
    EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
    if (client.is_open() || tries == 0) return Text(waited);
  }
}

// An error does not tell that its GPU has done writing.
TEST_F(KeeperTest, ALockStaysWithAConnectionThatFailsUntilItIsDestroyed) {
  const std::unique_ptr<keeper::Server> server = Start();
  Child writer =
      Child::Start("keeper-put-and-fail", {keeper_address(), address()});
  platform::Channel told = Accept();
  Hear(told);
  KeeperClient client = Client();
  EXPECT_THAT(RefusedLock(keeper_address()),
              HasSubstr(absl::StrCat("process ", writer.pid())));
  Tell(told, "let go");
  Hear(told);
  Must(client.Lock(kName, Late()));
}

// Has a lock, makes a call that a stopped keeper does not answer, and lets go
// when it is told to: ADDRESS LISTENER CALL.
int GiveUp(const Args& args) {
  const Here here;
  std::optional<KeeperClient> client =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  const Allocation memory = MakeHere(here.device, kSize, 5);
  Must(client->Put(kName, memory.shareable(), Late()));
  platform::Channel test = Dial(args[1]);
  Tell(test);
  Hear(test);  // The keeper is stopped.
  const absl::Time deadline = absl::Now() + absl::Milliseconds(100);
  const platform::Driver& driver = here.device.driver();
  absl::Status done;
  if (args[2] == "put") {
    done = client->Put("other", memory.shareable(), deadline);
  } else if (args[2] == "attach") {
    done = client->Attach(kName, driver, {}, deadline).status();
  } else if (args[2] == "lock") {
    done = client->Lock("locked", deadline);
  } else {
    done = client
               ->AttachOrCreate(
                   "other", kSize, driver, {},
                   []() -> absl::StatusOr<Allocation> {
                     return absl::InternalError("it is not to be created");
                   },
                   deadline)
               .status();
  }
  Tell(test, std::string(absl::StatusCodeToString(done.code())));
  if (Hear(test) == "let go later") {
    // Another thread of this process is another writer.
    KeeperClient another =
        Must(KeeperClient::Connect({.address = args[0]}, Late()));
    const absl::Status waited =
        another.Lock(kName, absl::Now() + absl::Milliseconds(100));
    platform::Check(absl::IsDeadlineExceeded(waited), waited.ToString());
  }
  client.reset();
  Tell(test);
  Hear(test);  // It lives on: its end frees nothing.
  return 0;
}
const bool kGiveUp = RegisterChild("keeper-give-up", &GiveUp);

class GivingUp : public KeeperTest,
                 public ::testing::WithParamInterface<const char*> {};

TEST_P(GivingUp, KeepsItsLocksUntilItLetsGo) {
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early ? "it lets go before the keeper goes on" : "later");
    Child keeper = Child::Start("keeper-alone", {keeper_address(), address()});
    platform::Channel ready = Accept();
    Hear(ready);
    KeeperClient other = Client();
    const Here here;
    const Allocation memory = MakeHere(here.device, kSize, 5);
    Must(other.Put("locked", memory.shareable(), Late()));
    Must(other.Unlock("locked", Late()));
    Child writer = Child::Start("keeper-give-up",
                                {keeper_address(), address(), GetParam()});
    platform::Channel told = Accept();
    Hear(told);
    keeper.Stop();
    Tell(told);
    EXPECT_EQ(Hear(told), "DEADLINE_EXCEEDED");
    if (early) {
      Tell(told, "let go");
      Hear(told);
    }
    keeper.Continue();
    if (!early) RefusedLock(keeper_address());
    // What nobody answered for is reserved for nobody.
    ExpectSoon([&] {
      const KeeperListing listed = Must(other.List(Late()));
      return std::none_of(
          listed.memory.begin(), listed.memory.end(),
          [](const KeptMemory& m) { return m.state == KeptState::kReserved; });
    });
    if (!early) {
      Tell(told, "let go later");
      Hear(told);
    }
    for (const char* name : {kName, "locked"}) Must(other.Lock(name, Late()));
    Tell(told, "end");
    EXPECT_EQ(writer.Wait(), 0);
    keeper.Kill();
    EXPECT_EQ(keeper.Wait(), Child::kKilled);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, GivingUp,
                         ::testing::Values("put", "attach", "lock", "create"),
                         [](const auto& call) { return call.param; });

TEST_F(KeeperTest, ALockOfAKilledProcessIsFreeOnceWhatItForkedHasEnded) {
  const std::unique_ptr<keeper::Server> server = Start();
  for (const bool forks : {false, true}) {
    if (forks && !MayFork()) break;
    Child writer =
        Child::Start("keeper-put-and-fail", {keeper_address(), address()});
    std::optional<platform::Channel> told = Accept();
    Hear(*told);
    if (forks) {
      Tell(*told, "fork");
      Hear(*told);
    }
    writer.Kill();
    EXPECT_EQ(writer.Wait(), Child::kKilled);
    KeeperClient client = Client();
    if (forks) {
      EXPECT_THAT(RefusedLock(keeper_address()),
                  HasSubstr("which has ended with the writer lock, but a "
                            "process that it forked"));
    }
    told.reset();
    Must(client.Lock(kName, Late()));
    Must(client.Drop(kName, Late()));
  }
}

TEST_F(KeeperTest, AForkedChildGetsNoLockOverItsParentsConnection) {
  if (!MayFork()) GTEST_SKIP() << "no process forks here";
  const std::unique_ptr<keeper::Server> server = Start();
  Child parent =
      Child::Start("keeper-lock-in-a-child", {keeper_address(), address()});
  platform::Channel told = Accept();
  EXPECT_EQ(Hear(told), "FAILED_PRECONDITION");
  Tell(told);
  EXPECT_EQ(parent.Wait(), 0);
}

// Tells what a child that it forks is answered: ADDRESS LISTENER.
int LockInAChild(const Args& args) {
  const Here here;
  KeeperClient client =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  const Allocation memory = MakeHere(here.device, kSize, 5);
  Must(client.Put(kName, memory.shareable(), Late()));
  Must(client.Unlock(kName, Late()));
  platform::Channel test = Dial(args[1]);
  RunApart([&] {
    const absl::Status locked = client.Lock(kName, Late());
    Tell(test, std::string(absl::StatusCodeToString(locked.code())));
  });
  Hear(test);
  return 0;
}
const bool kLockInAChild =
    RegisterChild("keeper-lock-in-a-child", &LockInAChild);

TEST_F(KeeperTest, ProcessesThatDiedWithLocksHoldNoConnection) {
  if (!MayFork()) GTEST_SKIP() << "no process is outlived here";
  const std::unique_ptr<keeper::Server> server = Start({.max_sessions = 4});
  constexpr int kWriters = 10;
  std::vector<platform::Channel> told;
  for (int i = 0; i < kWriters; ++i) {
    Child writer =
        Child::Start("keeper-put-and-fail",
                     {keeper_address(), address(), absl::StrCat("lock-", i)});
    told.push_back(Accept());
    Hear(told.back());
    Tell(told.back(), "fork");
    Hear(told.back());
    writer.Kill();
    EXPECT_EQ(writer.Wait(), Child::kKilled);
  }
  KeeperClient client = Client();
  const KeeperListing listed = Must(client.List(Late()));
  EXPECT_EQ(listed.memory.size(), std::size_t{kWriters});
  for (const KeptMemory& memory : listed.memory) {
    EXPECT_EQ(memory.state, KeptState::kLocked) << memory.name;
  }
  told.clear();
  for (int i = 0; i < kWriters; ++i) {
    Must(client.Lock(absl::StrCat("lock-", i), Late()));
  }
}

TEST_F(KeeperTest, AnotherSizeThanExpectedIsRefusedAndSaysBoth) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation memory = MakePattern(kGranule, 1);
  Must(client.Put(kName, memory.shareable(), Late()));
  const absl::Status wrong =
      client.Attach(kName, driver(), {.expected_size = 77}, Late()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(wrong)) << wrong;
  EXPECT_THAT(Text(wrong),
              AllOf(HasSubstr(absl::StrCat("has ", kGranule, " bytes")),
                    HasSubstr("expected 77")));
  const absl::Status also_wrong =
      client
          .AttachOrCreate(
              kName, 78, driver(), {},
              [] { return absl::InternalError("must not be called"); }, Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(also_wrong)) << also_wrong;
  EXPECT_TRUE(absl::IsNotFound(
      client.Attach("unknown", driver(), {}, Late()).status()));
  ExpectPattern(Must(client.Attach(kName, driver(), {}, Late())).address(),
                kGranule, 1);
}

TEST_F(KeeperTest, WhatCannotBeCreatedIsRefusedBeforeAnythingIsSent) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const auto attach_or_create = [&](std::uint64_t size,
                                    const AttachOrCreateOptions& options) {
    return client
        .AttachOrCreate(
            kName, size, driver(), options,
            [] { return absl::InternalError("must not be called"); }, Late())
        .status();
  };
  const absl::Status nothing = attach_or_create(0, {});
  EXPECT_TRUE(absl::IsInvalidArgument(nothing)) << nothing;
  EXPECT_THAT(Text(nothing), HasSubstr("size 0"));
  const absl::Status sealed = attach_or_create(
      kGranule,
      {.import = {.access = Access::kReadWrite}, .until_sealed = true});
  EXPECT_TRUE(absl::IsInvalidArgument(sealed)) << sealed;
  EXPECT_THAT(Text(sealed), HasSubstr("ask for reading only"));
  EXPECT_THAT(Must(client.List(Late())).memory, IsEmpty());
}

TEST_F(KeeperTest, SealedMemoryIsReadOnlyForEverybodyWhoComesLater) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient writer = Client();
  KeeperClient reader = Client();
  const Allocation memory = MakePattern(kGranule, 1);
  Must(writer.Put(kName, memory.shareable(), Late()));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader.Seal(kName, Late())));
  Must(writer.Seal(kName, Late()));
  for (KeeperClient* client : {&writer, &reader}) {
    const absl::Status write =
        client
            ->Attach(kName, driver(),
                     {.import = {.access = Access::kReadWrite}}, Late())
            .status();
    EXPECT_TRUE(absl::IsFailedPrecondition(write)) << write;
    EXPECT_TRUE(absl::IsFailedPrecondition(client->Lock(kName, Late())));
    EXPECT_TRUE(absl::IsFailedPrecondition(client->Unlock(kName, Late())));
    EXPECT_TRUE(absl::IsFailedPrecondition(client->Seal(kName, Late())));
    const ImportedAllocation sealed =
        Must(client->Attach(kName, driver(), {}, Late()));
    ExpectPattern(sealed.address(), kGranule, 1);
    ExpectReadOnly(sealed.address());
  }
  const absl::Status by_grant =
      reader
          .Attach(kName, driver(),
                  {.import = {.grants = {{Location::On(device),
                                          Access::kReadWrite}}}},
                  Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(by_grant)) << by_grant;
}

TEST_F(KeeperTest, WhoHasDroppedMemoryAttachedKeepsIt) {
  const std::unique_ptr<keeper::Server> server = Start();
  EXPECT_EQ(
      Child::Start("keeper-put-and-end", {keeper_address(), "seal"}).Wait(), 0);
  KeeperClient client = Client();
  const ImportedAllocation memory =
      Must(client.Attach(kName, driver(), {}, Late()));
  Must(client.Drop(kName, Late()));
  EXPECT_TRUE(absl::IsNotFound(client.Drop(kName, Late())));
  EXPECT_TRUE(
      absl::IsNotFound(client.Attach(kName, driver(), {}, Late()).status()));
  EXPECT_THAT(Must(client.List(Late())).memory, IsEmpty());
  ExpectPattern(memory.address(), kSize, 1);
}

TEST_F(KeeperTest, AListOfManyNamesComesWhole) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const Allocation memory = Make(kGranule);
  // More than fit into a message.
  constexpr int kMany = 300;
  for (int i = 0; i < kMany; ++i) {
    Must(client.Put(absl::StrCat(std::string(100, 'n'), i), memory.shareable(),
                    Late()));
  }
  const KeeperListing listing = Must(client.List(Late()));
  ASSERT_EQ(listing.memory.size(), std::size_t{kMany});
  EXPECT_TRUE(std::is_sorted(listing.memory.begin(), listing.memory.end(),
                             [](const KeptMemory& a, const KeptMemory& b) {
                               return a.name < b.name;
                             }));
}

// How a child of AttachOrCreate ends.
constexpr int kIsCreator = 10;
constexpr int kIsAttached = 11;
constexpr int kIsTakenOver = 12;

// ADDRESS, FATE: "fill" what it creates, or "die" in the middle of it, or
// "half": once it is put, before it is sealed.
int CreateOrAttach(const Args& args) {
  const Here here;
  KeeperClient keeper =
      Must(KeeperClient::Connect({.address = args[0]}, Late()));
  const bool until_sealed = args[2] == "sealed";
  const AttachedOrCreated memory = Must(keeper.AttachOrCreate(
      kName, kSize, TestDriver(), {.until_sealed = until_sealed},
      [&]() -> absl::StatusOr<Allocation> {
        if (args[1] == "die") KillThisProcess();
        if (until_sealed) {
          return Allocation::Create(here.device, {.size = kSize});
        }
        return MakeHere(here.device, kSize, 5);
      },
      Late()));
  if (memory.outcome != KeptMemoryFrom::kAttached && until_sealed) {
    if (args[1] == "half") KillThisProcess();
    WritePattern(memory.address(), kSize, 5);
    Must(keeper.Seal(kName, Late()));
  }
  ExpectPattern(memory.address(), kSize, 5);
  switch (memory.outcome) {
    case KeptMemoryFrom::kCreated:
      return kIsCreator;
    case KeptMemoryFrom::kTakenOver:
      return kIsTakenOver;
    case KeptMemoryFrom::kAttached:
      break;
  }
  ExpectReadOnly(memory.address());
  return kIsAttached;
}
const bool kCreateOrAttach =
    RegisterChild("keeper-create-or-attach", &CreateOrAttach);

// How many of the children ended with each status.
std::map<int, int> RunAll(const std::string& address, const Args& fates,
                          const std::string& until) {
  std::vector<Child> children;
  children.reserve(fates.size());
  for (const std::string& fate : fates) {
    children.push_back(
        Child::Start("keeper-create-or-attach", {address, fate, until}));
  }
  std::map<int, int> ends;
  for (Child& child : children) ++ends[child.Wait()];
  return ends;
}

using Ends = std::map<int, int>;

TEST_F(KeeperTest, ExactlyOneOfEightProcessesCreates) {
  const std::unique_ptr<keeper::Server> server = Start();
  EXPECT_EQ(RunAll(keeper_address(), Args(8, "fill"), "put"),
            (Ends{{kIsCreator, 1}, {kIsAttached, 7}}));
}

TEST_F(KeeperTest, ExactlyOneOfEightProcessesSealsAndTheOthersSeeItComplete) {
  const std::unique_ptr<keeper::Server> server = Start();
  EXPECT_EQ(RunAll(keeper_address(), Args(8, "fill"), "sealed"),
            (Ends{{kIsCreator, 1}, {kIsAttached, 7}}));
}

TEST_F(KeeperTest, AReservationGoesWithItsCreatorAndTheNextOneCreates) {
  const std::unique_ptr<keeper::Server> server = Start();
  // The first that die do it one by one, each holding the reservation.
  EXPECT_EQ(RunAll(keeper_address(), Args(4, "die"), "put"),
            (Ends{{Child::kKilled, 4}}));
  ExpectSoon([&] { return server->names() == 0; });
  Args mixed = Args(4, "die");
  mixed.insert(mixed.end(), 4, "fill");
  const Ends ends = RunAll(keeper_address(), mixed, "put");
  const auto count = [&](int end) {
    const auto found = ends.find(end);
    return found == ends.end() ? 0 : found->second;
  };
  EXPECT_EQ(count(kIsCreator), 1);
  EXPECT_EQ(count(kIsCreator) + count(kIsAttached) + count(Child::kKilled), 8);
}

TEST_F(KeeperTest, AWriterThatDiesBeforeItSealsIsFollowedByOneThatFinishes) {
  const std::unique_ptr<keeper::Server> server = Start();
  EXPECT_EQ(RunAll(keeper_address(), Args(1, "half"), "sealed"),
            (Ends{{Child::kKilled, 1}}));
  EXPECT_EQ(server->names(), 1u);
  EXPECT_EQ(RunAll(keeper_address(), Args(6, "fill"), "sealed"),
            (Ends{{kIsTakenOver, 1}, {kIsAttached, 5}}));
}

TEST_F(KeeperTest, AFailedCreationLetsTheNextOneCreate) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  const absl::Status failed =
      client
          .AttachOrCreate(
              kName, kSize, driver(), {},
              [] { return absl::AbortedError("no weights on this disk"); },
              Late())
          .status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kAborted) << failed;
  const absl::Status of_another_size =
      client
          .AttachOrCreate(
              kName, kSize, driver(), {},
              [&]() -> absl::StatusOr<Allocation> { return Make(kGranule); },
              Late())
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(of_another_size)) << of_another_size;
  EXPECT_EQ(server->names(), 0u);
  const AttachedOrCreated created = Must(Client().AttachOrCreate(
      kName, kSize, driver(), {},
      [&]() -> absl::StatusOr<Allocation> { return Make(kSize); }, Late()));
  EXPECT_EQ(created.outcome, KeptMemoryFrom::kCreated);
  EXPECT_EQ(created.requested_size(), kSize);
}

TEST_F(KeeperTest, WhatIsTakenOverIsWritableForWhoeverItIsGrantedTo) {
  const std::unique_ptr<keeper::Server> server = Start();
  {
    KeeperClient writer = Client();
    Must(writer.Put(kName, Make(kSize - 1).shareable(), Late()));
    Must(writer.Unlock(kName, Late()));
  }
  KeeperClient client = Client();
  AttachOrCreateOptions options = {.until_sealed = true};
  options.import.grants = {{Location::On(device), Access::kRead}};
  const AttachedOrCreated memory = Must(client.AttachOrCreate(
      kName, kSize - 1, driver(), options,
      [] { return absl::AbortedError("it is there"); }, Late()));
  EXPECT_EQ(memory.outcome, KeptMemoryFrom::kTakenOver);
  EXPECT_EQ(memory.requested_size(), kSize - 1);
  WritePattern(memory.address(), kSize, 5);
  ExpectPattern(memory.address(), kSize, 5);
  Must(client.Seal(kName, Late()));
}

TEST_F(KeeperTest, AConnectionThatWasMovedFromIsClosed) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient client = Client();
  KeeperClient moved = std::move(client);
  const absl::Status closed = client.List(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(closed)) << closed;
  EXPECT_FALSE(client.is_open());
  Must(moved.List(Late()));
}

TEST_F(KeeperTest, EveryStateHasItsName) {
  EXPECT_EQ(NameOf(KeptState::kReserved), "reserved");
  EXPECT_EQ(NameOf(KeptState::kWritable), "writable");
  EXPECT_EQ(NameOf(KeptState::kLocked), "locked");
  EXPECT_EQ(NameOf(KeptState::kSealed), "sealed");
  EXPECT_EQ(NameOf(static_cast<KeptState>(99)), "unknown");
}

TEST_F(KeeperTest, AnAddressThatIsNoneStartsNoKeeper) {
  keeper::ServerOptions options;
  options.address = "relative";
  EXPECT_TRUE(absl::IsInvalidArgument(
      keeper::Server::Start(std::move(options), absl::NotFoundError(""), {})
          .status()));
}

TEST_F(KeeperTest, WhoWaitsForACreatorLearnsWhichUntilTheDeadline) {
  const std::unique_ptr<keeper::Server> server = Start();
  KeeperClient creator = Client();
  KeeperClient client = Client();
  const auto none = []() -> absl::StatusOr<Allocation> {
    return absl::InternalError("must not be called");
  };
  // In vain; a late answer costs the connection, as in RefusedLock().
  const auto wait = [&](const AttachOrCreateOptions& options) {
    for (int tries = 10;; --tries) {
      KeeperClient waiter = Client();
      const absl::Status waited =
          waiter
              .AttachOrCreate(kName, kSize, driver(), options, none,
                              absl::Now() + absl::Milliseconds(200))
              .status();
      EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
      if (waiter.is_open() || tries == 0) return waited;
    }
  };
  const AttachedOrCreated created = Must(creator.AttachOrCreate(
      kName, kSize, driver(), {},
      [&]() -> absl::StatusOr<Allocation> {
        EXPECT_EQ(Listed(client, kName)->state, KeptState::kReserved);
        EXPECT_THAT(
            Text(wait({})),
            HasSubstr(absl::StrCat("process ", platform::CurrentProcessId())));
        // Nothing is there yet for the others either.
        EXPECT_TRUE(absl::IsNotFound(client.Lock(kName, Late())));
        EXPECT_TRUE(absl::IsNotFound(client.Drop(kName, Late())));
        EXPECT_TRUE(absl::IsNotFound(
            client.Attach(kName, driver(), {}, Late()).status()));
        const Allocation other = Make(kGranule);
        EXPECT_TRUE(absl::IsAlreadyExists(
            client.Put(kName, other.shareable(), Late())));
        return Make(kSize);
      },
      Late()));
  // Put, and not sealed.
  EXPECT_THAT(Text(wait({.until_sealed = true})),
              HasSubstr("until the deadline"));
  const absl::Status for_itself =
      creator
          .AttachOrCreate(kName, kSize, driver(), {.until_sealed = true}, none,
                          Late())
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(for_itself)) << for_itself;
  Must(creator.Seal(kName, Late()));
  EXPECT_EQ(Must(client.AttachOrCreate(kName, kSize, driver(),
                                       {.until_sealed = true}, none, Late()))
                .outcome,
            KeptMemoryFrom::kAttached);
}

TEST_F(KeeperTest, AWaiterIsWokenByTheSealOfAnotherProcess) {
  const std::unique_ptr<keeper::Server> server = Start();
  Child writer =
      Child::Start("keeper-put-and-hold", {keeper_address(), address()});
  platform::Channel told = Accept();
  Hear(told);
  Child waiter = Child::Start("keeper-create-or-attach",
                              {keeper_address(), "fill", "sealed"});
  Tell(told, "seal");
  Hear(told);
  // Not what it would have written itself.
  EXPECT_NE(waiter.Wait(), kIsCreator);
  Tell(told, "end");
  EXPECT_EQ(writer.Wait(), 0);
}

TEST_F(KeeperTest, AStoppedKeeperHoldsNobodyPastTheDeadline) {
  Child keeper = Child::Start("keeper-alone", {keeper_address(), address()});
  platform::Channel ready = Accept();
  Hear(ready);
  KeeperClient client = Client();
  KeeperClient another = Client();
  Must(client.List(Late()));
  Must(another.List(Late()));
  keeper.Stop();
  const absl::Time before = absl::Now();
  const absl::Time deadline = before + absl::Milliseconds(200);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.List(deadline).status()));
  // The busiest machine that tests run on takes a while to wake anybody.
  EXPECT_LT(absl::Now() - deadline, absl::Seconds(10));
  EXPECT_FALSE(client.is_open());
  const absl::Status closed = client.List(Late()).status();
  EXPECT_TRUE(absl::IsUnavailable(closed)) << closed;
  EXPECT_THAT(std::string(closed.message()),
              HasSubstr("did not come in time. Connect anew"));
  keeper.Kill();
  keeper.Continue();
  EXPECT_EQ(keeper.Wait(), Child::kKilled);
  EXPECT_TRUE(absl::IsUnavailable(another.List(Late()).status()));
}

// A keeper until the test hangs up: ADDRESS LISTENER.
int KeepAlone(const Args& args) {
  const std::unique_ptr<keeper::Server> server = Must(keeper::Server::Start(
      {.address = args[0]}, absl::NotFoundError("none in this test"), {}));
  platform::Channel test = Dial(args[1]);
  Tell(test);
  Must(test.WaitForHangUp(Late()));
  return 0;
}
const bool kKeepAlone = RegisterChild("keeper-alone", &KeepAlone);

TEST_F(KeeperTest, NobodyListensWhereNoKeeperIs) {
  const absl::Status none =
      KeeperClient::Connect({.address = keeper_address()}, Late()).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(Text(none), HasSubstr("vmmshare keep"));
}

}  // namespace
}  // namespace vmm::testing
