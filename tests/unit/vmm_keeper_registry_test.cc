// The rules of the keeper, one transition after the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/keeper/internal/registry.h"

namespace vmm::keeper {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Must;
using ::testing::Not;
using testing::TicketOfChunks;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
constexpr char kName[] = "secret-name";

Client ClientOf(std::uint64_t session, const std::string& user = "1000") {
  return {session, platform::UserId(user),
          static_cast<std::int64_t>(4000 + session)};
}

std::shared_ptr<const Content> Contents(std::size_t chunks) {
  return std::make_shared<const Content>(Content{TicketOfChunks(chunks), {}});
}

class KeeperRegistry : public ::testing::Test {
 protected:
  explicit KeeperRegistry(const Limits& limits = {})
      : registry_(limits, platform::UserId("7")) {}

  void Put(const std::string& name, const Client& client,
           std::size_t chunks = 1) {
    Must(registry_.BeginPut(name, client, TicketOfChunks(chunks), kNow));
    Must(registry_.CommitPut(name, client, Contents(chunks), {7}, kNow));
  }
  KeptState StateOf(const std::string& name) {
    return registry_.Find(name)->state;
  }
  absl::StatusOr<Registry::Offer> AttachOrCreate(const Client& client,
                                                 bool until_sealed = false,
                                                 bool read_write = false) {
    return registry_.AttachOrCreate({.type = kAttachOrCreate,
                                     .name = kName,
                                     .read_write = read_write,
                                     .until_sealed = until_sealed,
                                     .size = 2 << 20},
                                    client, kNow);
  }

  Registry registry_;
  const Client a_ = ClientOf(1);
  const Client b_ = ClientOf(2);
};

TEST_F(KeeperRegistry, ThePutterHasTheLock) {
  Put(kName, a_);
  EXPECT_EQ(StateOf(kName), KeptState::kLocked);
  EXPECT_TRUE(Must(registry_.Lock(kName, a_)));
  EXPECT_FALSE(Must(registry_.Lock(kName, b_)));
  EXPECT_THAT(registry_.DescribeBusy(kName),
              AllOf(HasSubstr("process 4001"), HasSubstr("user 1000")));
}

TEST_F(KeeperRegistry, ATakenNameStaysAsItIs) {
  Put(kName, a_);
  const absl::Status taken =
      registry_.BeginPut(kName, b_, TicketOfChunks(2), kNow);
  EXPECT_TRUE(absl::IsAlreadyExists(taken));
  EXPECT_TRUE(absl::IsAlreadyExists(
      registry_.BeginPut(kName, a_, TicketOfChunks(2), kNow)));
  EXPECT_EQ(registry_.Find(kName)->chunks, 1u);
}

TEST_F(KeeperRegistry, APutUnderWayIsNotServedAndNotPutTwice) {
  Must(registry_.BeginPut(kName, a_, TicketOfChunks(1), kNow));
  EXPECT_EQ(StateOf(kName), KeptState::kReserved);
  EXPECT_TRUE(absl::IsNotFound(registry_.Attach(kName, 0, false).status()));
  EXPECT_TRUE(absl::IsNotFound(registry_.Lock(kName, b_).status()));
  EXPECT_TRUE(absl::IsNotFound(registry_.CheckDrop(kName, a_).status()));
  EXPECT_TRUE(absl::IsNotFound(registry_.CheckSeal(kName, a_).status()));
  for (const Client& client : {a_, b_}) {
    EXPECT_TRUE(absl::IsAlreadyExists(
        registry_.BeginPut(kName, client, TicketOfChunks(1), kNow)));
  }
  EXPECT_TRUE(
      absl::IsNotFound(registry_.CommitPut(kName, b_, Contents(1), {}, kNow)));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Abandon(kName, b_)));
  Must(registry_.Abandon(kName, a_));
  EXPECT_FALSE(registry_.Find(kName).has_value());
  EXPECT_TRUE(
      absl::IsNotFound(registry_.CommitPut(kName, a_, Contents(1), {}, kNow)));
  // Nor is what is there put a second time.
  Put(kName, a_);
  EXPECT_TRUE(
      absl::IsNotFound(registry_.CommitPut(kName, a_, Contents(2), {}, kNow)));
  EXPECT_EQ(registry_.Find(kName)->chunks, 1u);
}

TEST_F(KeeperRegistry, AReservedNameIsPutByItsOwnerOnly) {
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  EXPECT_EQ(Must(AttachOrCreate(b_)).step, Registry::Step::kWait);
  EXPECT_THAT(registry_.DescribeBusy(kName), HasSubstr("4001"));
  EXPECT_TRUE(absl::IsFailedPrecondition(AttachOrCreate(a_).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(
      registry_.BeginPut(kName, b_, TicketOfChunks(1), kNow)));
  Put(kName, a_);
  EXPECT_EQ(Must(AttachOrCreate(b_)).step, Registry::Step::kAttach);
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Abandon(kName, a_)));
}

TEST_F(KeeperRegistry, AReservationGoesWithItsConnection) {
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  EXPECT_FALSE(registry_.EndSession(b_.session));
  EXPECT_TRUE(registry_.EndSession(a_.session));
  EXPECT_EQ(Must(AttachOrCreate(b_)).step, Registry::Step::kCreate);
  // Also in the middle of a put.
  Must(registry_.BeginPut(kName, b_, TicketOfChunks(1), kNow));
  EXPECT_TRUE(registry_.EndSession(b_.session));
  EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(KeeperRegistry, AHangUpWithoutAGoodbyeLeavesLocksToTheProcess) {
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  EXPECT_FALSE(registry_.AbandonAll(b_.session));
  EXPECT_TRUE(registry_.AbandonAll(a_.session));
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  EXPECT_FALSE(registry_.LeaveLocked(a_.session, ""));
  EXPECT_EQ(registry_.size(), 0u) << "a reservation is of no use any more";
  Put(kName, a_);
  EXPECT_FALSE(registry_.LeaveLocked(b_.session, ""));
  EXPECT_TRUE(registry_.LeaveLocked(a_.session, ""));
  EXPECT_FALSE(Must(registry_.Lock(kName, b_)));
  EXPECT_EQ(Must(AttachOrCreate(b_, /*until_sealed=*/true)).step,
            Registry::Step::kWait);
  // Nor may another user's process of the same id, or one whose id is hidden.
  Client same = a_;
  same.session = 77;
  Client other = same;
  other.user = platform::UserId("1001");
  EXPECT_FALSE(Must(registry_.Lock(kName, other)));
  Client hidden = same;
  hidden.pid = 0;
  EXPECT_FALSE(Must(registry_.Lock(kName, hidden)));
  // Nor one that has the id of a process that has ended.
  Client later = same;
  later.identity = 8;
  Client earlier = same;
  earlier.identity = 7;
  EXPECT_FALSE(IsSameProcess(earlier, later));
  EXPECT_TRUE(Must(registry_.Lock(kName, same)));
  EXPECT_FALSE(registry_.EndSession(a_.session)) << "it has passed on";
  EXPECT_TRUE(registry_.LeaveLocked(same.session, "a child lives"));
  Client again = same;
  again.session = 78;
  EXPECT_FALSE(Must(registry_.Lock(kName, again)))
      << "another process with the id of one that has ended";
  EXPECT_THAT(registry_.DescribeBusy(kName), HasSubstr("but a child lives"));
  registry_.PassLocks(same.session, 79);
  EXPECT_FALSE(registry_.EndSession(same.session));
  EXPECT_TRUE(registry_.EndSession(79));
  EXPECT_TRUE(Must(registry_.Lock(kName, b_)));
}

// As between two containers: every id is 0 there.
TEST_F(KeeperRegistry, AProcessOfAHiddenNamespaceIsToldByItsIdentity) {
  Client hidden = a_;
  hidden.pid = 0;
  hidden.identity = 7;
  Put(kName, hidden);
  EXPECT_TRUE(registry_.LeaveLocked(hidden.session, ""));
  Client other = hidden;
  other.session = 77;
  other.identity = 8;
  EXPECT_FALSE(Must(registry_.Lock(kName, other)));
  other.identity = 0;
  EXPECT_FALSE(Must(registry_.Lock(kName, other)))
      << "before Linux 6.9 nobody knows";
  EXPECT_FALSE(IsSameProcess(other, other));
  other.identity = 7;
  other.user = platform::UserId("1001");
  EXPECT_FALSE(Must(registry_.Lock(kName, other)));
  Client same = hidden;
  same.session = 78;
  EXPECT_EQ(Must(AttachOrCreate(same, /*until_sealed=*/true)).step,
            Registry::Step::kAttach);
  EXPECT_TRUE(Must(registry_.Lock(kName, same)));
}

TEST_F(KeeperRegistry, WhatAConnectionLeftUnfinishedIsFinishedByItsProcess) {
  Put(kName, a_);
  EXPECT_TRUE(registry_.LeaveLocked(a_.session, ""));
  const auto step_of = [&](const Client& client) {
    return Must(AttachOrCreate(client, /*until_sealed=*/true)).step;
  };
  const platform::UserId stranger("1001");
  EXPECT_EQ(step_of({77, stranger, a_.pid}), Registry::Step::kWait);
  EXPECT_EQ(step_of({77, a_.user, a_.pid + 77}), Registry::Step::kWait);
  EXPECT_EQ(step_of({77, a_.user, 0}), Registry::Step::kWait);
  EXPECT_EQ(step_of({77, a_.user, a_.pid}), Registry::Step::kAttach);
  EXPECT_EQ(registry_.Find(kName)->state, KeptState::kLocked);
  Must(registry_.CheckSeal(kName, {77, a_.user, a_.pid}));
}

TEST_F(KeeperRegistry, NobodyIsWaitedForWhereNobodyHasIt) {
  EXPECT_EQ(registry_.DescribeBusy(kName), "nobody");
  Put(kName, a_);
  EXPECT_THAT(registry_.DescribeBusy(kName), HasSubstr("4001"));
  Must(registry_.Unlock(kName, a_));
  EXPECT_EQ(registry_.DescribeBusy(kName), "nobody");
}

TEST_F(KeeperRegistry, TheLockGoesWithItsConnectionAndTheMemoryStays) {
  Put(kName, a_);
  EXPECT_TRUE(registry_.EndSession(a_.session));
  EXPECT_EQ(StateOf(kName), KeptState::kWritable);
  EXPECT_FALSE(registry_.EndSession(a_.session));
  EXPECT_TRUE(Must(registry_.Lock(kName, b_)));
  EXPECT_FALSE(registry_.EndSession(a_.session));
  EXPECT_EQ(registry_.Find(kName)->holder_pid, b_.pid);
}

TEST_F(KeeperRegistry, OnlyTheWriterUnlocksAndSeals) {
  Put(kName, a_);
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Unlock(kName, b_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Seal(kName, b_)));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(registry_.CheckSeal(kName, b_).status()));
  Must(registry_.Unlock(kName, a_));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Unlock(kName, a_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Seal(kName, a_)));
  EXPECT_TRUE(Must(registry_.Lock(kName, a_)));
  EXPECT_EQ(Must(registry_.CheckSeal(kName, a_)), Saved{7});
  Must(registry_.Seal(kName, a_));
  EXPECT_EQ(StateOf(kName), KeptState::kSealed);
}

TEST_F(KeeperRegistry, SealedIsForEver) {
  Put(kName, a_);
  Must(registry_.Seal(kName, a_));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Lock(kName, a_).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Seal(kName, a_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Unlock(kName, a_)));
  EXPECT_FALSE(registry_.EndSession(a_.session));
  EXPECT_EQ(StateOf(kName), KeptState::kSealed);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(registry_.Attach(kName, 0, true).status()));
  EXPECT_TRUE(Must(registry_.Attach(kName, 0, false)).attached.sealed);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(AttachOrCreate(b_, false, true).status()));
}

TEST_F(KeeperRegistry, AttachingChecksTheSize) {
  Put(kName, a_, 3);
  EXPECT_TRUE(Must(registry_.Attach(kName, 0, true)).content != nullptr);
  EXPECT_TRUE(Must(registry_.Attach(kName, 6 << 20, true)).content != nullptr);
  const absl::Status wrong = registry_.Attach(kName, 7, false).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(wrong));
  EXPECT_THAT(std::string(wrong.message()),
              AllOf(HasSubstr("6291456"), HasSubstr("expected 7")));
  EXPECT_TRUE(absl::IsFailedPrecondition(AttachOrCreate(b_).status()));
  EXPECT_TRUE(absl::IsNotFound(registry_.Attach("other", 0, false).status()));
}

TEST_F(KeeperRegistry, WhoWaitsForTheSealIsNotServedBefore) {
  Put(kName, a_);
  EXPECT_EQ(Must(AttachOrCreate(b_, true)).step, Registry::Step::kWait);
  EXPECT_TRUE(absl::IsFailedPrecondition(AttachOrCreate(a_, true).status()));
  Must(registry_.Seal(kName, a_));
  const Registry::Offer offer = Must(AttachOrCreate(b_, true));
  EXPECT_EQ(offer.step, Registry::Step::kAttach);
  EXPECT_TRUE(offer.found.attached.sealed);
  EXPECT_FALSE(offer.found.attached.taken_over);
}

TEST_F(KeeperRegistry, AnUnfinishedOneIsTakenOverByOne) {
  Put(kName, a_);
  registry_.EndSession(a_.session);
  // Who does not care for the seal takes nothing over.
  EXPECT_FALSE(Must(AttachOrCreate(b_)).found.attached.taken_over);
  const Registry::Offer offer = Must(AttachOrCreate(b_, true));
  EXPECT_EQ(offer.step, Registry::Step::kAttach);
  EXPECT_TRUE(offer.found.attached.taken_over);
  EXPECT_EQ(registry_.Find(kName)->holder_pid, b_.pid);
  EXPECT_EQ(Must(AttachOrCreate(ClientOf(3), true)).step,
            Registry::Step::kWait);
  Must(registry_.Seal(kName, b_));
}

TEST_F(KeeperRegistry, OnlyItsUserAndTheKeepersOwnDropIt) {
  Put(kName, a_);
  const absl::Status denied =
      registry_.CheckDrop(kName, ClientOf(3, "1001")).status();
  EXPECT_TRUE(absl::IsPermissionDenied(denied));
  EXPECT_THAT(std::string(denied.message()),
              AllOf(HasSubstr("1000"), HasSubstr("1001"), HasSubstr("7")));
  EXPECT_TRUE(absl::IsPermissionDenied(
      registry_.Drop(kName, ClientOf(3, "1001")).status()));
  EXPECT_EQ(Must(registry_.CheckDrop(kName, b_)), Saved{7});
  EXPECT_NE(Must(registry_.Drop(kName, b_)), nullptr);
  EXPECT_TRUE(absl::IsNotFound(registry_.Drop(kName, b_).status()));
  Put(kName, a_);
  EXPECT_NE(Must(registry_.Drop(kName, ClientOf(4, "7"))), nullptr);
}

// The store may obey later: then it is not there after a restart.
TEST_F(KeeperRegistry, WhatMayBeRemovedFromTheStoreIsKeptAndInDoubt) {
  Put(kName, a_);
  EXPECT_TRUE(registry_.Find(kName)->survives_restart);
  registry_.Doubt(kName);
  EXPECT_FALSE(registry_.Find(kName)->survives_restart);
  EXPECT_EQ(Must(registry_.CheckDrop(kName, b_)), (Saved{7, true}));
  EXPECT_EQ(Must(registry_.CheckSeal(kName, a_)), (Saved{7, true}));
  registry_.Doubt("another");
}

TEST_F(KeeperRegistry, AWriterOfDroppedMemoryHasNoSayInItsSuccessor) {
  Put(kName, a_);
  Must(registry_.Drop(kName, b_));
  EXPECT_TRUE(absl::IsNotFound(registry_.Seal(kName, a_)));
  Put(kName, b_);
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Seal(kName, a_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_.Unlock(kName, a_)));
  EXPECT_FALSE(registry_.EndSession(a_.session));
}

TEST_F(KeeperRegistry, CountsWhoAttachedThisContentOnly) {
  Put(kName, a_);
  const Registry::Found found = Must(registry_.Attach(kName, 0, false));
  registry_.CountAttached(kName, *found.content);
  EXPECT_EQ(registry_.Find(kName)->attached, 1u);
  Must(registry_.Drop(kName, a_));
  registry_.CountAttached(kName, *found.content);
  Put(kName, a_);
  registry_.CountAttached(kName, *found.content);
  EXPECT_EQ(registry_.Find(kName)->attached, 0u);
}

TEST_F(KeeperRegistry, WhatIsRestoredIsAsItWasButForTheLock) {
  Must(registry_.Restore("w", platform::UserId("5"), 11, kNow, false,
                         Contents(2), {1}));
  Must(registry_.Restore("s", platform::UserId("5"), 12, kNow, true,
                         Contents(2), {2}));
  EXPECT_TRUE(absl::IsAlreadyExists(registry_.Restore(
      "s", platform::UserId("6"), 1, kNow, true, Contents(1), {3})));
  EXPECT_EQ(StateOf("w"), KeptState::kWritable);
  EXPECT_EQ(StateOf("s"), KeptState::kSealed);
  EXPECT_TRUE(registry_.Find("s")->survives_restart);
  EXPECT_EQ(registry_.Find("s")->since, kNow);
  EXPECT_EQ(Must(registry_.CheckDrop("s", ClientOf(1, "5"))), Saved{2});
  // No session of this keeper is one of the keeper before.
  EXPECT_FALSE(Must(AttachOrCreate(a_)).step == Registry::Step::kWait);
}

TEST_F(KeeperRegistry, ListsByNameInPages) {
  for (const char* name : {"c", "a", "b"}) Put(name, a_);
  const Page first = registry_.List("", 2);
  ASSERT_EQ(first.memory.size(), 2u);
  EXPECT_EQ(first.memory[0].name, "a");
  EXPECT_TRUE(first.more);
  const Page last = registry_.List("b", 2);
  ASSERT_EQ(last.memory.size(), 1u);
  EXPECT_EQ(last.memory[0].name, "c");
  EXPECT_FALSE(last.more);
}

TEST_F(KeeperRegistry, NoErrorNamesTheMemory) {
  Put(kName, a_);
  Must(registry_.Seal(kName, a_));
  for (const absl::Status& status :
       {registry_.BeginPut(kName, b_, TicketOfChunks(1), kNow),
        registry_.Attach(kName, 7, false).status(),
        registry_.Attach(kName, 0, true).status(),
        registry_.Lock(kName, b_).status(), registry_.Unlock(kName, b_),
        registry_.Seal(kName, b_),
        registry_.CheckDrop(kName, ClientOf(3, "9")).status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(kName)));
  }
}

// What one asks for that replaces memory of `chunks` chunks by more.
Request ReplaceOf(std::optional<MemoryId> replaces, std::size_t chunks = 1,
                  std::uint64_t number = 1) {
  Ticket ticket = TicketOfChunks(chunks);
  ticket.id.number = number;
  return {
      .type = kReplace, .name = kName, .ticket = ticket, .replaces = replaces};
}

class KeeperReplace : public KeeperRegistry {
 protected:
  explicit KeeperReplace(const Limits& limits = {}) : KeeperRegistry(limits) {}

  absl::StatusOr<std::shared_ptr<const Content>> Replace(const Request& request,
                                                         const Client& client) {
    absl::Status begun = registry_.BeginReplace(request, client);
    if (!begun.ok()) return begun;
    return registry_.CommitReplace(
        request, client,
        std::make_shared<const Content>(Content{*request.ticket, {}}),
        {request.ticket->id.number}, kNow);
  }
  std::uint64_t Kept() {
    return Must(registry_.Attach(kName, 0, false)).content->ticket.id.number;
  }
};

TEST_F(KeeperReplace, PutsUnderAFreeNameAndThenInPlaceOfWhatIsThere) {
  EXPECT_EQ(Must(Replace(ReplaceOf(std::nullopt), a_)), nullptr);
  EXPECT_TRUE(registry_.ReplacedBy(kName).empty());
  EXPECT_EQ(StateOf(kName), KeptState::kSealed);
  const Request second = ReplaceOf(ReplaceOf({}).ticket->id, 2, 2);
  EXPECT_EQ(Must(Replace(second, b_))->ticket.id.number, 1u);
  EXPECT_EQ(registry_.ReplacedBy(kName), std::vector<Saved>{Saved{1}});
  EXPECT_EQ(Kept(), 2u);
  EXPECT_EQ(StateOf(kName), KeptState::kSealed);
  EXPECT_EQ(registry_.Find(kName)->chunks, 2u);
  EXPECT_EQ(registry_.Find(kName)->pid, b_.pid);
  EXPECT_EQ(registry_.size(), 1u);
}

TEST_F(KeeperReplace, WhatItReplacedIsRememberedUntilTheStoreHasRemovedIt) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  Must(Replace(ReplaceOf(ReplaceOf({}).ticket->id, 1, 2), a_));
  Must(Replace(ReplaceOf(ReplaceOf({}, 1, 2).ticket->id, 1, 3), a_));
  const std::vector<Saved> both = {Saved{1}, Saved{2}};
  EXPECT_EQ(registry_.ReplacedBy(kName), both);
  registry_.ForgetReplaced(kName);
  EXPECT_EQ(registry_.ReplacedBy(kName), std::vector<Saved>{Saved{2}});
  registry_.ForgetReplaced(kName);
  registry_.ForgetReplaced(kName);
  EXPECT_TRUE(registry_.ReplacedBy(kName).empty());
  registry_.ForgetReplaced("none");
  EXPECT_TRUE(registry_.ReplacedBy("none").empty());
}

TEST_F(KeeperReplace, OfWhatCouldNotBeStoredTheOneBeforeIsReplacedInTheStore) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  const Request second = ReplaceOf(ReplaceOf({}).ticket->id, 1, 2);
  EXPECT_EQ(Must(registry_.CheckReplace(second, a_)), Saved{1});
  Must(registry_.BeginReplace(second, a_));
  Must(registry_.CommitReplace(
      second, a_, std::make_shared<const Content>(Content{*second.ticket, {}}),
      {}, kNow));
  const Request third = ReplaceOf(second.ticket->id, 1, 3);
  EXPECT_EQ(Must(registry_.CheckReplace(third, a_)), Saved{1});
  registry_.ForgetReplaced(kName);  // It was removed after all.
  EXPECT_EQ(Must(registry_.CheckReplace(third, a_)), Saved{});
}

TEST_F(KeeperReplace, OfMemoryThatReplacesItselfNothingIsRemoved) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  const Request itself = ReplaceOf(ReplaceOf({}).ticket->id);
  EXPECT_EQ(Must(registry_.CheckReplace(itself, a_)), Saved{1});
  Must(Replace(itself, a_));
  EXPECT_TRUE(registry_.ReplacedBy(kName).empty());
  // Also where what came between could not be stored.
  const Request second = ReplaceOf(itself.ticket->id, 1, 2);
  Must(registry_.BeginReplace(second, a_));
  Must(registry_.CommitReplace(
      second, a_, std::make_shared<const Content>(Content{*second.ticket, {}}),
      {}, kNow));
  EXPECT_EQ(registry_.ReplacedBy(kName), std::vector<Saved>{Saved{1}});
  Must(Replace(ReplaceOf(second.ticket->id), a_));
  EXPECT_TRUE(registry_.ReplacedBy(kName).empty());
  EXPECT_TRUE(registry_.Find(kName)->survives_restart);
}

TEST_F(KeeperReplace, WhileItArrivesTheOldOneIsThere) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  const Request second = ReplaceOf(ReplaceOf({}).ticket->id, 2, 2);
  Must(registry_.BeginReplace(second, b_));
  EXPECT_EQ(Kept(), 1u);
  EXPECT_EQ(registry_.size(), 1u);
  // Its connection ends: nothing has happened.
  EXPECT_FALSE(registry_.EndSession(b_.session));
  EXPECT_TRUE(absl::IsNotFound(
      registry_.CommitReplace(second, b_, Contents(2), {}, kNow).status()));
  EXPECT_EQ(Kept(), 1u);
}

TEST_F(KeeperReplace, OfTwoWritersOneIsToldThatItWasTooLate) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  const MemoryId first = ReplaceOf({}).ticket->id;
  Must(registry_.BeginReplace(ReplaceOf(first, 1, 2), a_));
  Must(Replace(ReplaceOf(first, 1, 3), b_));
  const absl::Status late =
      registry_.CommitReplace(ReplaceOf(first, 1, 2), a_, Contents(1), {}, kNow)
          .status();
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_THAT(std::string(late.message()),
              AllOf(HasSubstr("process 4002"), Not(HasSubstr(kName))));
  EXPECT_EQ(Kept(), 3u);
  EXPECT_TRUE(
      absl::IsAborted(registry_.BeginReplace(ReplaceOf(first, 1, 4), a_)));
}

TEST_F(KeeperReplace, TakesNoNameThatIsReservedOrOfOtherMemory) {
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  EXPECT_TRUE(absl::IsAlreadyExists(registry_.BeginReplace(ReplaceOf({}), b_)));
  const MemoryId any = ReplaceOf({}).ticket->id;
  EXPECT_TRUE(absl::IsNotFound(registry_.BeginReplace(ReplaceOf(any), b_)));
  Must(registry_.Abandon(kName, a_));
  Put(kName, a_);
  // Not sealed: somebody fills it.
  EXPECT_TRUE(
      absl::IsFailedPrecondition(registry_.BeginReplace(ReplaceOf(any), b_)));
  EXPECT_TRUE(absl::IsAlreadyExists(registry_.BeginReplace(ReplaceOf({}), b_)));
  EXPECT_EQ(StateOf(kName), KeptState::kLocked);
}

TEST_F(KeeperReplace, IsForWhoMayDrop) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  const Request second = ReplaceOf(ReplaceOf({}).ticket->id, 1, 2);
  EXPECT_TRUE(absl::IsPermissionDenied(
      registry_.BeginReplace(second, ClientOf(3, "1001"))));
  Must(Replace(second, ClientOf(4, "7")));  // The keeper's own.
}

class LimitedKeeperRegistry : public KeeperRegistry {
 protected:
  LimitedKeeperRegistry()
      : KeeperRegistry({.names = 3,
                        .bytes = 8 << 20,
                        .handles = 4,
                        .user_names = 2,
                        .user_bytes = 6 << 20,
                        .user_handles = 3}) {}
  absl::Status Try(const Client& client, std::size_t chunks) {
    return registry_.BeginPut("new", client, TicketOfChunks(chunks), kNow);
  }
  const Client other_ = ClientOf(5, "1001");
};

TEST_F(LimitedKeeperRegistry, TheLastOneThatFitsIsTaken) {
  Put("a", a_);
  Must(Try(a_, 2));
}

TEST_F(LimitedKeeperRegistry, AUserIsHeldToItsQuotaAndTheOthersAreNot) {
  Put("a", a_);
  const absl::Status full = Try(b_, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("user 1000"));
  Must(Try(other_, 3));
}

TEST_F(LimitedKeeperRegistry, ReservationsCountAndGiveBack) {
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  Put("a", a_);
  EXPECT_TRUE(absl::IsResourceExhausted(Try(a_, 1)));
  Must(registry_.Abandon(kName, a_));
  Must(Try(a_, 1));
  Must(registry_.Abandon("new", a_));
  Must(registry_.Drop("a", a_));
  Must(Try(a_, 3));
}

TEST_F(LimitedKeeperRegistry, OnesOwnReservationDoesNotCountTwice) {
  Put("a", a_, 2);
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  Must(registry_.BeginPut(kName, a_, TicketOfChunks(1), kNow));
}

TEST_F(LimitedKeeperRegistry, ATooLargeOneLeavesTheReservation) {
  EXPECT_EQ(Must(AttachOrCreate(a_)).step, Registry::Step::kCreate);
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry_.BeginPut(kName, a_, TicketOfChunks(4), kNow)));
  EXPECT_EQ(Must(AttachOrCreate(b_)).step, Registry::Step::kWait);
}

// The old and the new are there at once, if only for a moment.
TEST_F(LimitedKeeperRegistry, WhatReplacesCountsBesideWhatIsThere) {
  Must(registry_.BeginReplace(ReplaceOf(std::nullopt, 2), a_));
  Must(registry_.CommitReplace(ReplaceOf(std::nullopt, 2), a_, Contents(2), {},
                               kNow));
  const MemoryId first = TicketOfChunks(2).id;
  const absl::Status full = registry_.BeginReplace(ReplaceOf(first, 4, 2), a_);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  Must(registry_.BeginReplace(ReplaceOf(first, 1, 2), a_));
  EXPECT_TRUE(absl::IsResourceExhausted(Try(a_, 3)));
  registry_.AbandonReplace(a_);
}

TEST_F(LimitedKeeperRegistry, WhatOfOthersIsReplacingCountsForThemAlone) {
  Must(registry_.BeginReplace(ReplaceOf(std::nullopt), other_));
  EXPECT_TRUE(absl::IsResourceExhausted(Try(other_, 3)));
  Must(Try(a_, 3));
}

TEST_F(LimitedKeeperRegistry, WhatWasDroppedCountsUntilNobodySendsIt) {
  for (const bool is_replaced : {false, true}) {
    SCOPED_TRACE(is_replaced);
    Must(registry_.BeginReplace(ReplaceOf(std::nullopt, 2), a_));
    Must(registry_.CommitReplace(ReplaceOf(std::nullopt, 2), a_, Contents(2),
                                 {}, kNow));
    std::optional<Registry::Found> found =
        Must(registry_.Attach(kName, 0, false));
    if (is_replaced) {
      const Request next = ReplaceOf(TicketOfChunks(2).id, 1, 2);
      Must(registry_.BeginReplace(next, a_));
      Must(registry_.CommitReplace(next, a_, Contents(1), {}, kNow));
    }
    Must(registry_.Drop(kName, a_));
    EXPECT_EQ(registry_.size(), 0u);
    // Of its user's quota and of all.
    const absl::Status quota = Try(b_, 2);
    EXPECT_TRUE(absl::IsResourceExhausted(quota)) << quota;
    EXPECT_THAT(std::string(quota.message()),
                AllOf(HasSubstr("user 1000"), HasSubstr("still being sent")));
    EXPECT_TRUE(absl::IsResourceExhausted(Try(other_, 3)));
    Must(Try(b_, 1));
    Must(registry_.Abandon("new", b_));
    found.reset();
    Must(Try(b_, 3));
    Must(registry_.Abandon("new", b_));
  }
}

TEST_F(LimitedKeeperRegistry, ANameIsFreeWhileWhatHadItIsSent) {
  Put("a", a_);
  Put("b", a_);
  const Registry::Found found = Must(registry_.Attach("b", 0, false));
  EXPECT_TRUE(absl::IsResourceExhausted(Try(a_, 1)));
  Must(registry_.Drop("b", a_));
  Must(Try(a_, 1));
}

class OneNameKeeperRegistry : public KeeperReplace {
 protected:
  explicit OneNameKeeperRegistry(const Limits& limits = {.names = 1,
                                                         .user_names = 1})
      : KeeperReplace(limits) {}
  // What the first one that ReplaceOf() makes is replaced by.
  static Request Second() { return ReplaceOf(ReplaceOf({}).ticket->id, 1, 2); }
  absl::Status TryAnother(const Client& client) {
    Request another = ReplaceOf(std::nullopt, 1, 9);
    another.name = "another";
    absl::Status begun = registry_.BeginReplace(another, client);
    if (begun.ok()) registry_.AbandonReplace(client);
    return begun;
  }
};

TEST_F(OneNameKeeperRegistry, WhatReplacesTakesNoName) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  for (const Client& client : {b_, ClientOf(4, "7")}) {
    const absl::Status full = TryAnother(client);
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_THAT(std::string(full.message()), HasSubstr("1 names"));
  }
  // Not while it arrives either: what it replaces may be dropped meanwhile.
  Must(registry_.BeginReplace(Second(), a_));
  EXPECT_TRUE(absl::IsResourceExhausted(TryAnother(b_)));
  registry_.AbandonReplace(a_);
  Must(registry_.BeginReplace(Second(), a_));
  Must(registry_.Drop(kName, a_));
  Must(registry_.BeginPut("another", b_, TicketOfChunks(1), kNow));
  EXPECT_TRUE(absl::IsNotFound(
      registry_.CommitReplace(Second(), a_, Contents(1), {}, kNow).status()));
  EXPECT_EQ(registry_.size(), 1u);
}

TEST_F(OneNameKeeperRegistry, WhatHasReplacedTakesTheNameOfThat) {
  Must(Replace(ReplaceOf(std::nullopt), a_));
  Must(Replace(Second(), b_));
  EXPECT_EQ(Kept(), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(TryAnother(a_)));
  Must(registry_.Drop(kName, a_));
  Must(TryAnother(a_));
}

// There may be more than the limit: the keeper was started anew with a lower one.
TEST_F(OneNameKeeperRegistry, WhatWasRestoredIsReplacedToo) {
  const Request first = ReplaceOf(std::nullopt);
  for (const char* name : {kName, "2", "3"}) {
    Must(registry_.Restore(
        name, a_.user, 1, kNow, true,
        std::make_shared<const Content>(Content{*first.ticket, {}}), {}));
  }
  Must(Replace(Second(), a_));
  EXPECT_EQ(Kept(), 2u);
  EXPECT_EQ(registry_.size(), 3u);
}

class OneNameOfAUserKeeperRegistry : public OneNameKeeperRegistry {
 protected:
  OneNameOfAUserKeeperRegistry() : OneNameKeeperRegistry({.user_names = 1}) {}
};

// The keeper's own user may replace what others have put, which is its own then.
TEST_F(OneNameOfAUserKeeperRegistry, WhatReplacesAnothersTakesAName) {
  const Client own = ClientOf(4, "7");
  Must(Replace(ReplaceOf(std::nullopt), a_));
  Must(registry_.BeginReplace(Second(), own));
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry_.BeginPut("b", ClientOf(5, "7"), TicketOfChunks(1), kNow)));
  registry_.AbandonReplace(own);
  Must(registry_.BeginPut("b", own, TicketOfChunks(1), kNow));
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry_.BeginReplace(Second(), ClientOf(5, "7"))));
  Must(registry_.BeginReplace(Second(), b_));
}

class UnlimitedKeeperRegistry : public KeeperRegistry {
 protected:
  UnlimitedKeeperRegistry() : KeeperRegistry({.bytes = UINT64_MAX}) {}
};

TEST_F(UnlimitedKeeperRegistry, BytesThatAreMoreThanCanBeCountedLeaveNoRoom) {
  const auto reserve = [&](const char* name, std::uint64_t size) {
    return registry_
        .AttachOrCreate({.type = kAttachOrCreate, .name = name, .size = size},
                        a_, kNow)
        .status();
  };
  Must(reserve("all", UINT64_MAX));
  // What was there before is not refused.
  Must(registry_.Restore("more", a_.user, 1, kNow, true, Contents(3), {}));
  const absl::Status full = reserve("a byte", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
}

TEST_F(LimitedKeeperRegistry, SumsThatOverflowAreTooMuch) {
  Put("a", a_);
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry_
          .AttachOrCreate(
              {.type = kAttachOrCreate, .name = kName, .size = UINT64_MAX}, a_,
              kNow)
          .status()));
  EXPECT_EQ(registry_.size(), 1u);
}

TEST_F(LimitedKeeperRegistry, WhatIsRestoredIsNotRefusedAndCounts) {
  for (const char* name : {"1", "2", "3", "4"}) {
    Must(registry_.Restore(name, a_.user, 1, kNow, true, Contents(3), {}));
  }
  EXPECT_EQ(registry_.size(), 4u);
  EXPECT_TRUE(absl::IsResourceExhausted(Try(other_, 1)));
}

}  // namespace
}  // namespace vmm::keeper
