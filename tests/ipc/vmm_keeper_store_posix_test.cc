// A keeper whose service manager has gone, or does not take all: what it keeps
// all the same, and what it says of it.
#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "platform/ipc/shared_memory.h"
#include "platform/os/service_manager.h"
#include "tests/ipc/fake_systemd_posix.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/support/failing_call.h"
#include "vmm/keeper/internal/record.h"
#include "vmm/keeper/internal/store.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using keeper::Content;
using keeper::Saved;
using keeper::Store;
using platform::OsHandle;
using platform::ServiceManager;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

constexpr char kNoFilesOfAGpu[] =
    "each export of a GPU's memory is a file of its own";

// What a keeper, whose threads may say something, has logged.
class Log {
 public:
  std::function<void(const std::string&)> Writer() {
    return [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

class KeeperStoreTest : public KeeperTest {
 protected:
  KeeperStoreTest() { systemd_.emplace(directory()); }

  absl::StatusOr<ServiceManager> Manager() {
    ::setenv("NOTIFY_SOCKET", systemd_->address().c_str(), 1);
    absl::StatusOr<ServiceManager> manager = ServiceManager::Find();
    ::unsetenv("NOTIFY_SOCKET");
    return manager;
  }
  absl::StatusOr<std::unique_ptr<keeper::Server>> StartWith(
      absl::StatusOr<ServiceManager> manager,
      platform::StoredHandles handles = {}) {
    keeper::ServerOptions options;
    options.address = keeper_address();
    options.log = log_.Writer();
    return keeper::Server::Start(std::move(options), std::move(manager),
                                 std::move(handles));
  }
  // Memory as a keeper has it.
  Content ContentOf(const Allocation& memory) {
    const protocol::Outgoing outgoing =
        Must(protocol::MakeOutgoing(memory.shareable()));
    Content content{outgoing.ticket, {}};
    content.handles.push_back(Must(outgoing.handle(0)));
    return content;
  }
  std::string WhyNotSaved(Store& store, const Content& content) {
    std::string why;
    EXPECT_EQ(store.Save("name", client_, content, absl::Now(), {}, &why).id,
              0u);
    return why;
  }

  // What systemd holds after a keeper of a later release has stored `content`.
  platform::StoredHandles StoredByANewer(const Content& content) {
    Store newer(Manager());
    std::string why;
    newer.Save("newer", client_, content, absl::Now(), {}, &why);
    EXPECT_EQ(why, "");
    platform::StoredHandles passed;
    passed.handles = systemd_->Stored();
    EXPECT_EQ(passed.handles.size(), 2u);
    for (platform::StoredHandle& each : passed.handles) {
      if (!Must(keeper::ParseStoredName(each.name)).is_record) continue;
      const auto record = Must(platform::SharedMemory::Open(
          each.handle, keeper::kRecordBytes, platform::PeerAccess::kRead));
      platform::SharedMemory changed = Must(platform::SharedMemory::Create(
          keeper::kRecordBytes, platform::PeerAccess::kRead));
      std::copy_n(record.bytes().begin(), keeper::kRecordBytes,
                  changed.writable_bytes().begin());
      changed.writable_bytes()[8] = 3;  // Its version.
      each.handle = Must(platform::Duplicate(changed.handle()));
    }
    return passed;
  }

  // Fills the queue of a systemd that reads nothing, but for so many messages.
  void LeaveRoomFor(int messages) {
    int most = 0;
    std::ifstream("/proc/sys/net/unix/max_dgram_qlen") >> most;
    ServiceManager other = Must(Manager());
    for (int i = messages; i <= most; ++i) {
      Must(other.Remove("none", absl::InfinitePast()));
    }
  }
  // While systemd stands still: it hears of the second alone, and later.
  void ReplaceUnremoved(KeeperClient& client, const Allocation& first,
                        const Allocation& second) {
    LeaveRoomFor(2);  // The handle and the record of the second.
    Must(client.Replace("name", second.shareable(),
                        Must(MakeTicket(first.shareable(), kNativeKind)).id,
                        absl::Now() + absl::Minutes(2)));
  }

  std::optional<FakeSystemd> systemd_;
  const keeper::Client client_{1, platform::CurrentUser(), 1};
  Log log_;
};

TEST_F(KeeperStoreTest, WhatSystemdNoLongerTakesIsKeptAndDoesNotSurvive) {
  const auto server = Must(StartWith(Manager()));
  KeeperClient client = Client();
  const Allocation memory = MakePattern(kGranule, 1);
  Must(client.Put("stored", memory.shareable(), Late()));
  EXPECT_TRUE(Listed(client, "stored")->survives_restart);
  systemd_.reset();
  EXPECT_THAT(log_.Take(), IsEmpty());

  const Allocation late = MakePattern(kGranule, 2);
  Must(client.Put("late", late.shareable(), Late()));
  EXPECT_FALSE(Listed(client, "late")->survives_restart);
  EXPECT_THAT(log_.Take(),
              ElementsAre(AllOf(HasSubstr("will not survive a restart"),
                                HasSubstr("sendmsg(NOTIFY_SOCKET"))));
  // What is not recorded is not answered.
  const absl::Status sealed = client.Seal("stored", Late());
  EXPECT_TRUE(absl::IsUnavailable(sealed)) << sealed;
  EXPECT_THAT(std::string(sealed.message()),
              HasSubstr("It is not sealed; try again."));
  EXPECT_EQ(Listed(client, "stored")->state, KeptState::kLocked);
  Must(client.Seal("late", Late()));
  EXPECT_EQ(Listed(client, "late")->state, KeptState::kSealed);
  EXPECT_THAT(log_.Take(), IsEmpty());
}

// Or what was dropped would be there after a restart.
TEST_F(KeeperStoreTest, WhatSystemdMayHaveTakenIsDroppedThereToo) {
  const auto server = Must(StartWith(Manager()));
  KeeperClient client = Client();
  const Allocation memory = MakePattern(kGranule, 1);
  const absl::Time late = absl::Now() + absl::Minutes(2);
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    LeaveRoomFor(2);  // The handle and the record.
    Must(client.Put("name", memory.shareable(), late));
    EXPECT_FALSE(Listed(client, "name")->survives_restart);
    EXPECT_FALSE(client.Seal("name", late).ok());
    EXPECT_FALSE(client.Drop("name", late).ok());
  }
  ExpectSoon([&] { return systemd_->Stored().size() == 2; });
  Must(client.Drop("name", late));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

TEST_F(KeeperStoreTest, WhatWasSealedAtTheSecondTrySurvives) {
  platform::StoredHandles passed;
  {
    const auto server = Must(StartWith(Manager()));
    KeeperClient client = Client();
    const Allocation memory = MakePattern(kGranule, 1);
    const absl::Time late = absl::Now() + absl::Minutes(2);
    Must(client.Put("name", memory.shareable(), late));
    {
      const std::unique_lock<std::mutex> still = systemd_->StandStill();
      LeaveRoomFor(1);  // The record.
      EXPECT_FALSE(client.Seal("name", late).ok());
    }
    Must(client.Seal("name", late));
    passed.handles = systemd_->Stored();
  }
  const auto server = Must(StartWith(Manager(), std::move(passed)));
  EXPECT_THAT(log_.Take(), IsEmpty());
  KeeperClient client = Client();
  EXPECT_EQ(Listed(client, "name")->state, KeptState::kSealed);
  Must(client.Drop("name", Late()));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

TEST_F(KeeperStoreTest, WhatReplacesIsKeptThoughSystemdHasGone) {
  const auto server = Must(StartWith(Manager()));
  KeeperClient client = Client();
  const Allocation first = MakePattern(kGranule, 1);
  const Allocation second = MakePattern(kGranule, 2);
  Must(client.Replace("name", first.shareable(), std::nullopt, Late()));
  EXPECT_TRUE(Listed(client, "name")->survives_restart);
  systemd_.reset();
  Must(client.Replace("name", second.shareable(),
                      Must(MakeTicket(first.shareable(), kNativeKind)).id,
                      Late()));
  EXPECT_FALSE(Listed(client, "name")->survives_restart);
  EXPECT_THAT(log_.Take(),
              ElementsAre(HasSubstr("will not survive a restart"),
                          HasSubstr("did not say that it is removed")));
  const ImportedAllocation kept =
      Must(client.Attach("name", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 2);
}

// Or it would be served again after a restart, when what replaced it was dropped.
TEST_F(KeeperStoreTest, WhatWasReplacedIsDroppedThereToo) {
  const auto server = Must(StartWith(Manager()));
  KeeperClient client = Client();
  const Allocation first = MakePattern(kGranule, 1);
  const Allocation second = MakePattern(kGranule, 2);
  const absl::Time late = absl::Now() + absl::Minutes(2);
  Must(client.Replace("name", first.shareable(), std::nullopt, late));
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    ReplaceUnremoved(client, first, second);
    EXPECT_THAT(log_.Take(),
                Contains(HasSubstr("did not say that it is removed")));
    EXPECT_FALSE(client.Drop("name", late).ok());
  }
  ExpectSoon([&] { return systemd_->Stored().size() == 4; });
  Must(client.Drop("name", late));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

TEST_F(KeeperStoreTest, WhatWasReplacedBeforeARestartIsDroppedThereToo) {
  const absl::Time late = absl::Now() + absl::Minutes(2);
  platform::StoredHandles passed;
  {
    const auto before = Must(StartWith(Manager()));
    KeeperClient client = Client();
    const Allocation first = MakePattern(kGranule, 1);
    const Allocation second = MakePattern(kGranule, 2);
    Must(client.Replace("name", first.shareable(), std::nullopt, late));
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    ReplaceUnremoved(client, first, second);
  }
  ExpectSoon([&] { return systemd_->Stored().size() == 4; });
  passed.handles = systemd_->Stored();
  log_.Take();
  std::unique_lock<std::mutex> still = systemd_->StandStill();
  LeaveRoomFor(0);
  const auto server = Must(StartWith(Manager(), std::move(passed)));
  EXPECT_THAT(log_.Take(),
              IsSupersetOf({HasSubstr("another one has replaced it"),
                            HasSubstr("did not say that it is removed")}));
  still.unlock();
  KeeperClient client = Client();
  const ImportedAllocation kept =
      Must(client.Attach("name", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 2);
  Must(client.Drop("name", late));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

// Of three the middle one has gone, and the clock was set back meanwhile.
TEST_F(KeeperStoreTest, WhatReplacesCountsWhateverTheClockSays) {
  platform::StoredHandles passed;
  {
    Store store(Manager());
    std::string why;
    const Content oldest = ContentOf(MakePattern(kGranule, 1));
    const Content middle = ContentOf(MakePattern(kGranule, 2));
    const Content newest = ContentOf(MakePattern(kGranule, 3));
    absl::Time now = absl::Now();
    Saved last;
    std::vector<Saved> saved;
    for (const Content* content : {&oldest, &middle, &newest}) {
      Store::As as;
      as.sealed = true;
      as.replaces = last;
      last = store.Save("name", {}, *content, now, as, &why);
      saved.push_back(last);
      now -= absl::Hours(1);
    }
    EXPECT_EQ(why, "");
    Must(store.Remove(saved[1]));
    passed.handles = systemd_->Stored();
  }
  const auto server = Must(StartWith(Manager(), std::move(passed)));
  KeeperClient client = Client();
  const ImportedAllocation kept =
      Must(client.Attach("name", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 3);
  EXPECT_EQ(systemd_->Stored().size(), 2u);
}

TEST_F(KeeperStoreTest, AKeeperStartsThoughSystemdHasGoneAndSaysSo) {
  absl::StatusOr<ServiceManager> manager = Manager();
  systemd_.reset();
  platform::StoredHandles passed;
  passed.problems = {"something was stated and not there"};
  const auto server = Must(StartWith(std::move(manager), std::move(passed)));
  EXPECT_THAT(log_.Take(),
              ElementsAre("something was stated and not there",
                          HasSubstr("systemd is not told that this keeper")));
  EXPECT_THAT(Must(Client().List(Late())).memory, IsEmpty());
}

TEST_F(KeeperStoreTest, ASecondEntryOfANameThatCannotBeRemovedIsSaid) {
  absl::StatusOr<ServiceManager> manager = Manager();
  platform::StoredHandles passed;
  {
    Store before(Manager());
    std::string why;
    for (int i = 0; i < 2; ++i) {
      // Of two memories: systemd stores the handles of one once.
      const Content content = ContentOf(MakePattern(kGranule, 1));
      before.Save("name", client_, content, absl::Now(), {}, &why);
    }
    EXPECT_EQ(why, "");
    passed.handles = systemd_->Stored();
  }
  EXPECT_EQ(passed.handles.size(), 4u);
  systemd_.reset();
  const auto server = Must(StartWith(std::move(manager), std::move(passed)));
  EXPECT_THAT(log_.Take(),
              ElementsAre(HasSubstr("a stored entry is refused: two entries"),
                          HasSubstr("did not say that it is removed"),
                          HasSubstr("systemd is not told that this keeper")));
  EXPECT_EQ(server->names(), 1u);
  KeeperClient client = Client();
  const ImportedAllocation kept =
      Must(client.Attach("name", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 1);
}

TEST_F(KeeperStoreTest, WhatCannotBeMadeForTheRecordIsSaidAndNothingIsLeft) {
  Store store(Manager());
  const Allocation memory = Make(kGranule);
  const Content content = ContentOf(memory);
  {
    const FailingCall failing("getrandom", ENOSYS);
    EXPECT_THAT(WhyNotSaved(store, content), HasSubstr("getrandom"));
  }
  {
    const FailingCall failing("memfd_create", EMFILE);
    EXPECT_THAT(WhyNotSaved(store, content),
                HasSubstr("memfd_create(vmmshare-control)"));
  }
  {
    const FailingCall failing("pipe2", EMFILE);
    EXPECT_THAT(WhyNotSaved(store, content), HasSubstr("pipe2(O_CLOEXEC)"));
  }
  ExpectSoon([&] { return systemd_->Stored().empty(); });
  std::string why;
  const Saved saved =
      store.Save("name", client_, content, absl::Now(), {}, &why);
  EXPECT_NE(saved.id, 0u);
  EXPECT_EQ(why, "");
  EXPECT_EQ(systemd_->Stored().size(), 2u);
  {
    const FailingCall failing("memfd_create", EMFILE);
    EXPECT_THAT(std::string(store.Seal(saved).message()),
                HasSubstr("It is not sealed"));
  }
  Must(store.Seal(saved));
  ExpectSoon([&] { return systemd_->Stored().size() == 2; });
  Must(store.Remove(saved));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

TEST_F(KeeperStoreTest, OfOneMemoryUnderTwoNamesTheFirstSurvives) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << kNoFilesOfAGpu;
  platform::StoredHandles passed;
  {
    const auto server = Must(StartWith(Manager()));
    KeeperClient client = Client();
    const Allocation memory = MakePattern(kGranule, 1);
    Must(client.Put("first", memory.shareable(), Late()));
    Must(client.Put("second", memory.shareable(), Late()));
    EXPECT_TRUE(Listed(client, "first")->survives_restart);
    EXPECT_FALSE(Listed(client, "second")->survives_restart);
    EXPECT_THAT(log_.Take(),
                ElementsAre(AllOf(HasSubstr("will not survive a restart"),
                                  HasSubstr("stores a file once"))));
    EXPECT_EQ(systemd_->Stored().size(), 2u);
    // What is not there is not taken for what was dropped.
    Must(client.Drop("second", Late()));
    EXPECT_EQ(systemd_->Stored().size(), 2u);
    Must(client.Drop("first", Late()));
    EXPECT_THAT(systemd_->Stored(), IsEmpty());
    Must(client.Put("third", memory.shareable(), Late()));
    EXPECT_TRUE(Listed(client, "third")->survives_restart);
    passed.handles = systemd_->Stored();
  }
  const auto server = Must(StartWith(Manager(), std::move(passed)));
  EXPECT_THAT(log_.Take(), IsEmpty());
  KeeperClient client = Client();
  const ImportedAllocation kept =
      Must(client.Attach("third", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 1);
}

TEST_F(KeeperStoreTest, MemoryThatReplacesItselfSurvives) {
  platform::StoredHandles passed;
  {
    const auto server = Must(StartWith(Manager()));
    KeeperClient client = Client();
    const Allocation memory = MakePattern(kGranule, 1);
    const MemoryId id = Must(MakeTicket(memory.shareable(), kNativeKind)).id;
    Must(client.Replace("name", memory.shareable(), std::nullopt, Late()));
    for (int round = 0; round < 2; ++round) {
      Must(client.Replace("name", memory.shareable(), id, Late()));
      EXPECT_TRUE(Listed(client, "name")->survives_restart);
      EXPECT_EQ(systemd_->Stored().size(), 2u);
    }
    EXPECT_THAT(log_.Take(), IsEmpty());
    passed.handles = systemd_->Stored();
  }
  const auto server = Must(StartWith(Manager(), std::move(passed)));
  EXPECT_THAT(log_.Take(), IsEmpty());
  KeeperClient client = Client();
  const ImportedAllocation kept =
      Must(client.Attach("name", driver(), {}, Late()));
  ExpectPattern(kept.address(), kGranule, 1);
  Must(client.Drop("name", Late()));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

// It may be removed later, when systemd reads what it was sent.
TEST_F(KeeperStoreTest, WhatMayBeRemovedIsNotTakenForStored) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << kNoFilesOfAGpu;
  Store store(Manager());
  const Content content = ContentOf(MakePattern(kGranule, 1));
  std::string why;
  Store::As as;
  as.sealed = true;
  const auto save = [&] {
    return store.Save("name", client_, content, absl::Now(), as, &why);
  };
  const Saved saved = save();
  as.replaces = saved;
  EXPECT_EQ(save(), saved);
  EXPECT_EQ(why, "");
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    LeaveRoomFor(0);
    EXPECT_FALSE(store.Remove(saved).ok());
  }
  EXPECT_EQ(save(), Saved{});
  EXPECT_THAT(why, HasSubstr("stores a file once"));
  Must(store.Remove(saved));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

// Or half of what was sealed would be there after a restart.
TEST_F(KeeperStoreTest, WhatMayBeRemovedIsRemovedBeforeItIsSealed) {
  Store store(Manager());
  const Content content = ContentOf(MakePattern(kGranule, 1));
  std::string why;
  const Saved saved =
      store.Save("name", client_, content, absl::Now(), {}, &why);
  EXPECT_EQ(why, "");
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    LeaveRoomFor(0);
    EXPECT_FALSE(store.Remove(saved).ok());
    EXPECT_FALSE(store.Seal(saved).ok());
  }
  Must(store.Seal(saved));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
}

// Or systemd would close what is too much, which was said to survive.
TEST_F(KeeperStoreTest, WhatANewerKeeperHasStoredTakesItsRoom) {
  platform::StoredHandles passed =
      StoredByANewer(ContentOf(MakePattern(kGranule, 1)));
  ::setenv("FDSTORE", "4", 1);
  Store store(Manager());
  ::unsetenv("FDSTORE");
  EXPECT_THAT(store.Restore(std::move(passed), log_.Writer()), IsEmpty());
  EXPECT_THAT(log_.Take(), ElementsAre(HasSubstr("left alone")));
  // The handle, the record and one to spare are three.
  EXPECT_THAT(WhyNotSaved(store, ContentOf(MakePattern(kGranule, 2))),
              HasSubstr("systemd stores 2 descriptors of this keeper"));
  EXPECT_EQ(systemd_->Stored().size(), 2u);
}

// Or systemd, which has its file, would be taken to have stored it again.
TEST_F(KeeperStoreTest, WhatANewerKeeperHasStoredIsNotStoredAgain) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << kNoFilesOfAGpu;
  const Content content = ContentOf(MakePattern(kGranule, 1));
  platform::StoredHandles passed = StoredByANewer(content);
  Store store(Manager());
  EXPECT_THAT(store.Restore(std::move(passed), log_.Writer()), IsEmpty());
  EXPECT_THAT(WhyNotSaved(store, content), HasSubstr("stores a file once"));
  EXPECT_EQ(systemd_->Stored().size(), 2u);
}

TEST_F(KeeperStoreTest, WhatOfHalfAnEntryIsNotRemovedIsNotTakenForGone) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << kNoFilesOfAGpu;
  const Content content = ContentOf(MakePattern(kGranule, 1));
  const auto& handle = std::get<OsHandle>(content.handles[0]);
  systemd_->Plant(keeper::NameOfHandle(7, 0), handle);
  platform::StoredHandles passed;
  passed.handles = systemd_->Stored();
  Store store(Manager());
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    LeaveRoomFor(0);
    EXPECT_THAT(store.Restore(std::move(passed), log_.Writer()), IsEmpty());
  }
  EXPECT_THAT(log_.Take(), ElementsAre(HasSubstr("half an entry")));
  EXPECT_THAT(WhyNotSaved(store, content), HasSubstr("stores a file once"));
}

// Or a keeper that is killed while it drops the entry leaves the older record,
// and all of that would be back after the next start.
TEST_F(KeeperStoreTest, AnOlderRecordThatWasNotRemovedGoesWithItsEntry) {
  platform::StoredHandles passed;
  {
    Store before(Manager());
    std::string why;
    before.Save("name", client_, ContentOf(MakePattern(kGranule, 1)),
                absl::Now(), {}, &why);
    EXPECT_EQ(why, "");
    for (const platform::StoredHandle& each : systemd_->Stored()) {
      if (!Must(keeper::ParseStoredName(each.name)).is_record) continue;
      const auto memory = Must(platform::SharedMemory::Open(
          each.handle, keeper::kRecordBytes, platform::PeerAccess::kRead));
      keeper::Record record = Must(keeper::DecodeRecord(
          memory.bytes().subspan(0, keeper::kRecordBytes)));
      record.sealed = true;
      record.revision += 3;  // Of later tries.
      platform::SharedMemory sealed = Must(platform::SharedMemory::Create(
          keeper::kRecordBytes, platform::PeerAccess::kRead));
      const std::vector<std::uint8_t> bytes = keeper::EncodeRecord(record);
      std::copy(bytes.begin(), bytes.end(), sealed.writable_bytes().begin());
      systemd_->Plant(keeper::NameOfRecord(record.id, record.revision),
                      sealed.handle());
    }
    passed.handles = systemd_->Stored();
    ASSERT_EQ(passed.handles.size(), 3u);
  }
  ::setenv("FDSTORE", "3", 1);
  Store store(Manager());
  ::unsetenv("FDSTORE");
  std::vector<Store::Restored> whole;
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    LeaveRoomFor(0);
    whole = store.Restore(std::move(passed), log_.Writer());
  }
  EXPECT_THAT(log_.Take(), IsEmpty());
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_TRUE(whole[0].record.sealed);
  Must(store.Remove(whole[0].saved));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
  // Its room is free: a handle, its record and one to spare.
  std::string why;
  EXPECT_NE(store
                .Save("again", client_, ContentOf(MakePattern(kGranule, 2)),
                      absl::Now(), {}, &why)
                .id,
            0u);
  EXPECT_EQ(why, "");
}

// Systemd reads the handle later, and neither its record nor that it goes.
TEST_F(KeeperStoreTest, OfWhatHalfIsStoredNothingIsTakenForStored) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << kNoFilesOfAGpu;
  const auto server = Must(StartWith(Manager()));
  KeeperClient client = Client();
  const Allocation memory = MakePattern(kGranule, 1);
  {
    const std::unique_lock<std::mutex> still = systemd_->StandStill();
    LeaveRoomFor(1);  // The handle.
    Must(
        client.Put("half", memory.shareable(), absl::Now() + absl::Minutes(2)));
    EXPECT_FALSE(Listed(client, "half")->survives_restart);
  }
  ExpectSoon([&] { return systemd_->Stored().size() == 1; });
  Must(client.Put("again", memory.shareable(), Late()));
  EXPECT_FALSE(Listed(client, "again")->survives_restart);
  EXPECT_EQ(systemd_->Stored().size(), 1u);
}

TEST_F(KeeperStoreTest, FabricHandlesAreNotStored) {
  Store store(Manager());
  Content content = ContentOf(Make(kGranule));
  content.ticket.kind = HandleKind::kFabric;
  content.handles[0] = fabric::Handle{};
  EXPECT_THAT(WhyNotSaved(store, content), HasSubstr("hold no memory"));
  EXPECT_THAT(systemd_->Stored(), IsEmpty());
  // Bytes are no descriptor: there is nothing to be checked without a driver.
  Must(keeper::CheckTicketIsOfHere(content.ticket));
  Must(keeper::CheckHandle(content.ticket, 0, content.handles[0]));
}

TEST_F(KeeperStoreTest, MemoryOfAGpuIsNoFileOfTheHost) {
  Content content = ContentOf(Make(kGranule));
  content.ticket.host_memory_driver = !OnHostMemoryDriver();
  const absl::Status status =
      keeper::CheckHandle(content.ticket, 0, content.handles[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST_F(KeeperStoreTest, HalfAnEntryIsSaidAlsoWhereNobodyStoresAnything) {
  Store store(absl::NotFoundError("none in this test"));
  const OsHandle some =
      Must(platform::Duplicate(Must(platform::CancelEvent::Create()).handle()));
  platform::StoredHandles handles;
  handles.handles.push_back(
      {keeper::NameOfHandle(7, 0), Must(platform::Duplicate(some))});
  EXPECT_THAT(store.Restore(std::move(handles), log_.Writer()), IsEmpty());
  EXPECT_THAT(log_.Take(), ElementsAre(HasSubstr("handles without a record")));
}

}  // namespace
}  // namespace vmm::testing
