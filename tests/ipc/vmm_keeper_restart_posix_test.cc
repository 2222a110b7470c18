// A keeper that systemd starts again: what it was killed with is there, whole.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/service_manager.h"
#include "tests/ipc/fake_systemd_posix.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/ipc/planted_handles.h"
#include "tests/support/how_many.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/record.h"
#include "vmm/keeper/keeper.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using platform::OsHandle;
using platform::StoredHandle;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Args = std::vector<std::string>;

constexpr std::uint64_t kChunks = 3;
constexpr std::uint64_t kSize = kChunks * kGranule;

// What systemd starts: KEEPER LISTENER. It has no driver.
int ServeAsService(const Args& args) {
  platform::Channel test = Dial(args[1]);
  const std::unique_ptr<keeper::Server> server = Must(keeper::Server::Start(
      {.address = args[0],
       .log = [&test](const std::string& line) { Tell(test, line, kText); }},
      platform::ServiceManager::Find(), platform::TakeStoredHandles()));
  Tell(test, server->restart_note());
  Must(test.WaitForHangUp(absl::Now() + absl::Minutes(2)));
  return 0;
}
const bool kServe = RegisterChild("keeper-service", &ServeAsService);

int StartService(const Args& args) {
  BecomeService(Dial(args[1]), "keeper-service", args);
}
const bool kStart = RegisterChild("keeper-service-start", &StartService);

class KeeperRestartTest : public KeeperTest {
 protected:
  // A running service: until it is destroyed, which kills it.
  struct Service {
    Child child;
    platform::Channel channel;
    std::vector<std::string> log;
    std::string note;
  };

  // Starts it with what systemd holds. Nothing when it is killed before it
  // serves; `on_start` is called once its process is known.
  std::unique_ptr<Service> StartKeeper(
      const std::function<void(std::int64_t pid)>& on_start = {},
      std::map<std::string, std::string> env = {}) {
    systemd_.GoOn();
    env.emplace("NOTIFY_SOCKET", systemd_.address());
    const bool is_told = !env["NOTIFY_SOCKET"].empty();
    Child child = Child::Start("keeper-service-start",
                               {keeper_address(), address()}, env);
    if (on_start) on_start(child.pid());
    platform::Channel launch = Accept();
    PassHandles(launch, systemd_.Stored());
    platform::Channel channel = Accept();
    std::vector<std::string> log;
    for (;;) {
      absl::StatusOr<platform::Message> message = channel.Receive(Late());
      if (!message.ok()) {
        EXPECT_TRUE(systemd_.killed()) << message.status();
        EXPECT_EQ(child.Wait(), Child::kKilled);
        return nullptr;
      }
      std::string text(message->payload.begin(), message->payload.end());
      if (message->type == kGoOn) {
        ExpectSoon(
            [&] { return !is_told || systemd_.ready() || systemd_.killed(); });
        return std::make_unique<Service>(std::move(child), std::move(channel),
                                         std::move(log), std::move(text));
      }
      log.push_back(std::move(text));
    }
  }
  static void Kill(std::unique_ptr<Service>& service) {
    service->child.Kill();
    EXPECT_EQ(service->child.Wait(), Child::kKilled);
    service.reset();
  }

  void PutPattern(KeeperClient& client, const std::string& name,
                  std::uint64_t seed) {
    const Allocation memory = MakePattern(kSize, seed, kGranule);
    Must(client.Put(name, memory.shareable(), Late()));
  }
  void ExpectKept(KeeperClient& client, const std::string& name,
                  std::uint64_t seed) {
    const absl::StatusOr<ImportedAllocation> memory =
        client.Attach(name, driver(), {.expected_size = kSize}, Late());
    ASSERT_TRUE(memory.ok()) << memory.status();
    ExpectPattern(memory->address(), kSize, seed);
  }

  // Nothing is in the store but whole entries.
  void ExpectStoreHoldsWhatIsListed(KeeperClient& client) {
    std::size_t descriptors = 0;
    for (const KeptMemory& memory : Must(client.List(Late())).memory) {
      EXPECT_TRUE(memory.survives_restart) << memory.name;
      descriptors += memory.chunks + 1;
    }
    ExpectSoon([&] { return systemd_.Stored().size() == descriptors; });
  }

  FakeSystemd systemd_{directory()};
};

TEST_F(KeeperRestartTest, WhatIsKeptIsThereAfterARestart) {
  std::unique_ptr<Service> keeper = StartKeeper();
  EXPECT_THAT(keeper->log, IsEmpty());
  EXPECT_EQ(keeper->note, "");
  absl::Time since;
  {
    KeeperClient client = Client();
    PutPattern(client, "sealed", 1);
    Must(client.Seal("sealed", Late()));
    PutPattern(client, "writable", 2);
    PutPattern(client, "dropped", 3);
    Must(client.Drop("dropped", Late()));
    since = Listed(client, "sealed")->since;
    ExpectStoreHoldsWhatIsListed(client);
  }
  Kill(keeper);
  for (int restart = 0; restart < 3; ++restart) {
    keeper = StartKeeper();
    EXPECT_THAT(keeper->log, IsEmpty());
    KeeperClient client = Client();
    ExpectKept(client, "sealed", 1);
    ExpectKept(client, "writable", 2);
    EXPECT_TRUE(absl::IsNotFound(
        client.Attach("dropped", driver(), {}, Late()).status()));
    const KeptMemory sealed = *Listed(client, "sealed");
    EXPECT_EQ(sealed.state, KeptState::kSealed);
    EXPECT_EQ(sealed.since, since);
    EXPECT_EQ(sealed.pid, platform::CurrentProcessId());
    EXPECT_EQ(sealed.user, platform::CurrentUser());
    EXPECT_EQ(Listed(client, "writable")->state, KeptState::kWritable);
    ExpectStoreHoldsWhatIsListed(client);
    Kill(keeper);
  }
  // What is restored can be sealed and dropped.
  keeper = StartKeeper();
  KeeperClient client = Client();
  Must(client.Lock("writable", Late()));
  Must(client.Seal("writable", Late()));
  Must(client.Drop("sealed", Late()));
  ExpectStoreHoldsWhatIsListed(client);
  Kill(keeper);
  keeper = StartKeeper();
  KeeperClient again = Client();
  EXPECT_EQ(Listed(again, "writable")->state, KeptState::kSealed);
  EXPECT_FALSE(Listed(again, "sealed").has_value());
}

// What came twice was stored twice, and one of them under no name.
TEST_F(KeeperRestartTest, APutThatBringsItsMemoryTwiceLeavesNothingInTheStore) {
  const std::unique_ptr<Service> keeper = StartKeeper();
  const Allocation memory = MakePattern(kSize, 1, kGranule);
  const protocol::Outgoing once =
      Must(protocol::MakeOutgoing(memory.shareable()));
  KeeperClient client = Client();
  for (int round = 0; round < 3; ++round) {
    platform::Channel hostile = Dial(keeper_address());
    const keeper::Request put = {
        .type = keeper::kPut, .name = "twice", .ticket = once.ticket};
    Must(hostile.Send(put.type, keeper::EncodeRequest(put), {}, Late()));
    Must(platform::SendLifeline(hostile, Late()));
    EXPECT_EQ(Must(hostile.Receive(Late())).type, keeper::kOk);
    const protocol::Outgoing twice[] = {once, once};
    EXPECT_FALSE(protocol::SendAll(hostile, twice, Late()).ok());
    // The name is free a moment after the refusal.
    ExpectSoon([&] { return Must(client.List(Late())).memory.empty(); });
  }
  ExpectStoreHoldsWhatIsListed(client);
}

// What was sent to it is obeyed later: "still kept" would be half the truth.
TEST_F(KeeperRestartTest, ADropThatSystemdDoesNotConfirmSaysWhatMayBecomeOfIt) {
  std::unique_ptr<Service> keeper = StartKeeper();
  KeeperClient client = Client();
  PutPattern(client, "weights", 1);
  ExpectStoreHoldsWhatIsListed(client);
  {
    const std::unique_lock<std::mutex> still = systemd_.StandStill();
    const absl::Status dropped = client.Drop("weights", Late());
    EXPECT_TRUE(absl::IsDeadlineExceeded(dropped)) << dropped;
    EXPECT_THAT(std::string(dropped.message()),
                HasSubstr("It is kept until this keeper ends, and may or may "
                          "not be there after a restart; try again."));
    ExpectKept(client, "weights", 1);
  }
  ExpectSoon([&] { return systemd_.Stored().empty(); });
  ExpectKept(client, "weights", 1);
  EXPECT_FALSE(Listed(client, "weights")->survives_restart);
  // Nor does a seal bring it back, or promise that it is there.
  Must(client.Seal("weights", Late()));
  EXPECT_EQ(Listed(client, "weights")->state, KeptState::kSealed);
  EXPECT_FALSE(Listed(client, "weights")->survives_restart);
  EXPECT_THAT(systemd_.Stored(), IsEmpty());
  Must(client.Drop("weights", Late()));
  ExpectStoreHoldsWhatIsListed(client);
  Kill(keeper);
  keeper = StartKeeper();
  KeeperClient again = Client();
  EXPECT_THAT(Must(again.List(Late())).memory, IsEmpty());
}

int LoadTheSystemsDriver(const Args&) {
  return platform::Driver::LoadSystem().ok() ? 0 : 1;
}
const bool kLoad =
    RegisterChild("keeper-no-driver-load", &LoadTheSystemsDriver);

TEST_F(KeeperRestartTest, TheKeeperHasNoDriver) {
  // Whoever looks for the system's driver finds one.
  const std::string link = absl::StrCat(directory(), "/libcuda.so.1");
  ASSERT_EQ(::symlink(HostDriverPath().c_str(), link.c_str()), 0);
  const std::map<std::string, std::string> found = {
      {"LD_LIBRARY_PATH", directory()}};
  ASSERT_EQ(Child::Start("keeper-no-driver-load", {}, found).Wait(), 0);
  std::unique_ptr<Service> keeper = StartKeeper({}, found);
  KeeperClient client = Client();
  PutPattern(client, "weights", 1);
  ExpectKept(client, "weights", 1);
  std::ostringstream maps;
  maps << std::ifstream(absl::StrCat("/proc/", keeper->child.pid(), "/maps"))
              .rdbuf();
  EXPECT_THAT(maps.str(), HasSubstr("libc"));
  EXPECT_THAT(maps.str(), Not(HasSubstr("hostdriver")));
  EXPECT_THAT(maps.str(), Not(HasSubstr("libcuda")));
}

// What a client did, and what it was answered, until the keeper was killed.
struct Story {
  absl::Status put_a = absl::CancelledError(), seal_a = put_a, drop_b = put_a,
               put_c = put_a, replace = put_a;
};

class KilledKeeperTest : public KeeperRestartTest {
 protected:
  static constexpr std::uint64_t kFirst = 9;     // The pattern of "before",
  static constexpr std::uint64_t kReplaced = 7;  // and after.

  void Prepare() {
    systemd_.Clear();
    KeeperClient client = Client();
    PutPattern(client, "before", kFirst);
    Must(client.Seal("before", Late()));
    PutPattern(client, "b", 8);
    Must(client.Seal("b", Late()));
  }
  Story Act() {
    Story story;
    KeeperClient client = Client();
    const Allocation a = MakePattern(kSize, 1, kGranule);
    const Allocation c = MakePattern(kSize, 3, kGranule);
    story.put_a = client.Put("a", a.shareable(), Late());
    if (story.put_a.ok()) story.seal_a = client.Seal("a", Late());
    if (story.seal_a.ok()) story.drop_b = client.Drop("b", Late());
    if (story.drop_b.ok()) story.put_c = client.Put("c", c.shareable(), Late());
    if (story.put_c.ok()) {
      const Allocation d = MakePattern(kSize, kReplaced, kGranule);
      const absl::StatusOr<ImportedAllocation> old =
          client.Attach("before", driver(), {}, Late());
      if (!old.ok()) return story;
      story.replace =
          client.Replace("before", d.shareable(), old->ticket().id, Late());
    }
    return story;
  }
  // Whether it was replaced: all of it, or nothing.
  std::uint64_t SeedOfBefore(KeeperClient& client) {
    const ImportedAllocation memory =
        Must(client.Attach("before", driver(), {}, Late()));
    std::vector<std::uint8_t> bytes(kSize);
    EXPECT_EQ(driver()->cuMemcpyDtoH(bytes.data(), memory.address(), kSize),
              CUDA_SUCCESS);
    return bytes == Pattern(kReplaced, kSize) ? kReplaced : kFirst;
  }
  void ExpectTold(const Story& story) {
    KeeperClient client = Client();
    std::map<std::string, KeptMemory> listed;
    for (KeptMemory& memory : Must(client.List(Late())).memory) {
      listed.emplace(memory.name, memory);
    }
    const std::map<std::string, std::uint64_t> seeds = {
        {"a", 1}, {"b", 8}, {"before", SeedOfBefore(client)}, {"c", 3}};
    // All that is there is whole.
    for (const auto& [name, memory] : listed) {
      ASSERT_TRUE(seeds.contains(name)) << name;
      ExpectKept(client, name, seeds.at(name));
    }
    // What was answered is so.
    ASSERT_TRUE(listed.contains("before"));
    EXPECT_EQ(listed["before"].state, KeptState::kSealed);
    if (story.replace.ok()) {
      EXPECT_EQ(seeds.at("before"), kReplaced);
    }
    if (absl::IsCancelled(story.replace)) {
      EXPECT_EQ(seeds.at("before"), kFirst);
    }
    if (story.put_a.ok()) {
      EXPECT_TRUE(listed.contains("a"));
    }
    if (story.seal_a.ok()) {
      EXPECT_EQ(listed["a"].state, KeptState::kSealed);
    }
    if (story.drop_b.ok()) {
      EXPECT_FALSE(listed.contains("b"));
    }
    if (story.put_c.ok()) {
      EXPECT_TRUE(listed.contains("c"));
    }
    // What was not asked for has not happened.
    if (absl::IsCancelled(story.seal_a) && listed.contains("a")) {
      EXPECT_EQ(listed["a"].state, KeptState::kWritable);
    }
    if (absl::IsCancelled(story.drop_b)) {
      ASSERT_TRUE(listed.contains("b"));
      EXPECT_EQ(listed["b"].state, KeptState::kSealed);
    }
    if (absl::IsCancelled(story.put_c)) {
      EXPECT_FALSE(listed.contains("c"));
    }
    ExpectStoreHoldsWhatIsListed(client);
  }
  // The keeper that was started after the story: it serves, and is killed.
  void ExpectServes(std::unique_ptr<Service> keeper, const Story& story) {
    ASSERT_TRUE(keeper != nullptr);
    ExpectTold(story);
    Kill(keeper);
  }
  // Has a run killed as often as VMMSHARE_KILLS says, unless it comes through,
  // which it does when the story has fewer datagrams than that. Answers how
  // often it was killed.
  static std::size_t TimesKilled(const std::function<bool()>& run) {
    const std::uint64_t times = HowMany("VMMSHARE_KILLS", 1);
    std::size_t killed = 0;
    while (killed < times && run() && !HasFailure()) ++killed;
    EXPECT_TRUE(killed == 0 || killed == times || HasFailure())
        << "it came through after it had been killed " << killed << " times";
    return killed;
  }
  // Runs the story and kills the keeper at the `at`-th datagram. False when
  // there are fewer.
  bool KillAt(std::size_t at, bool lose, Story* story) {
    std::unique_ptr<Service> keeper = StartKeeper();
    Prepare();
    const auto pid = static_cast<pid_t>(keeper->child.pid());
    // The last of what was prepared may still be on its way.
    ExpectSoon([&] { return systemd_.Stored().size() == 2 * (kChunks + 1); });
    systemd_.KillAt(at, lose, [pid] { ::kill(pid, SIGKILL); });
    *story = Act();
    const bool killed = systemd_.killed();
    Kill(keeper);
    return killed;
  }
};

TEST_F(KilledKeeperTest, AtEveryStepLosesNothingAndServesNothingHalf) {
  std::size_t points = 0;
  std::size_t kills = 0;
  for (const bool lose : {true, false}) {
    for (std::size_t at = 1;; ++at) {
      SCOPED_TRACE(
          absl::StrCat("killed ", lose ? "before" : "after", " datagram ", at));
      const std::size_t killed = TimesKilled([&] {
        Story story;
        systemd_.Clear();
        if (!KillAt(at, lose, &story)) return false;
        ExpectServes(StartKeeper(), story);
        return true;
      });
      if (HasFailure()) return;
      if (killed == 0) break;
      ++points;
      kills += killed;
    }
  }
  std::printf("the keeper was killed %zu times at %zu points\n", kills, points);
  // Three handles, a record and a barrier each time something is put, ...
  EXPECT_GE(points, 2u * 27);
}

TEST_F(KilledKeeperTest, AtEveryStepOfTheNextStartToo) {
  std::size_t points = 0;
  std::size_t kills = 0;
  // After the kills that leave half an entry, or two records, behind.
  for (const std::size_t first :
       {2u, 4u, 7u, 8u, 10u, 12u, 15u, 20u, 22u, 24u, 26u}) {
    for (std::size_t at = 1;; ++at) {
      SCOPED_TRACE(
          absl::StrCat("killed after datagram ", first, ", then at ", at));
      const std::size_t killed = TimesKilled([&] {
        Story story;
        systemd_.Clear();
        EXPECT_TRUE(KillAt(first, false, &story));
        std::unique_ptr<Service> keeper = StartKeeper([&](std::int64_t pid) {
          systemd_.KillAt(at, true,
                          [pid] { ::kill(static_cast<pid_t>(pid), SIGKILL); });
        });
        const bool was_killed = systemd_.killed();
        if (keeper != nullptr) Kill(keeper);
        ExpectServes(StartKeeper(), story);
        return was_killed;
      });
      if (HasFailure()) return;
      if (killed == 0) break;
      ++points;
      kills += killed;
    }
  }
  std::printf("the keeper was killed %zu times at %zu points of its start\n",
              kills, points);
  EXPECT_GE(points, 7u);
}

// Of two entries under one name: readers may have seen the new one already.
// Ids are random, so it is tried a few times.
TEST_F(KilledKeeperTest, OnceItsRecordIsStoredWhatReplacesCounts) {
  // Its three handles are datagrams 19 to 21, its record 22; the old one's are
  // removed by 24 to 27.
  for (int round = 0; round < 4; ++round) {
    for (std::size_t at = 21; at <= 27; ++at) {
      SCOPED_TRACE(absl::StrCat("killed after datagram ", at));
      Story story;
      systemd_.Clear();
      EXPECT_TRUE(KillAt(at, false, &story));
      EXPECT_TRUE(absl::IsUnavailable(story.replace)) << story.replace;
      for (int start = 0; start < 2; ++start) {
        std::unique_ptr<Service> keeper = StartKeeper();
        KeeperClient client = Client();
        EXPECT_EQ(SeedOfBefore(client), at == 21 ? kFirst : kReplaced);
        ExpectStoreHoldsWhatIsListed(client);
        Kill(keeper);
      }
    }
  }
}

class PlantedStoreTest : public KeeperRestartTest {
 protected:
  // A sealed memory with these bytes, as a record is stored.
  static OsHandle MemoryOf(const std::vector<std::uint8_t>& bytes) {
    platform::SharedMemory memory = Must(platform::SharedMemory::Create(
        bytes.size(), platform::PeerAccess::kRead));
    std::copy(bytes.begin(), bytes.end(), memory.writable_bytes().begin());
    return Must(platform::Duplicate(memory.handle()));
  }
  // The one entry that the store holds after a keeper kept "weights".
  void KeepOne() {
    std::unique_ptr<Service> keeper = StartKeeper();
    KeeperClient client = Client();
    PutPattern(client, "weights", 1);
    Must(client.Seal("weights", Late()));
    ExpectStoreHoldsWhatIsListed(client);
    Kill(keeper);
  }
  // Has something done to what is stored, then starts a keeper and answers what
  // it says. "weights" is served by it as `served` says.
  std::vector<std::string> LogAfter(
      const std::function<void(std::vector<StoredHandle>&)>& change,
      bool served, std::size_t left) {
    systemd_.Clear();
    KeepOne();
    std::vector<StoredHandle> stored = systemd_.Stored();
    systemd_.Clear();
    change(stored);
    for (const StoredHandle& each : stored) {
      systemd_.Plant(each.name, each.handle);
    }
    std::unique_ptr<Service> keeper = StartKeeper();
    std::vector<std::string> log = keeper->log;
    KeeperClient client = Client();
    if (served) {
      ExpectKept(client, "weights", 1);
    } else {
      EXPECT_THAT(Must(client.List(Late())).memory, IsEmpty());
    }
    ExpectSoon([&] { return systemd_.Stored().size() == left; });
    // It goes on: there is room for the same again.
    if (!served) PutPattern(client, "weights", 1);
    Kill(keeper);
    return log;
  }
  static StoredHandle& RecordOf(std::vector<StoredHandle>& stored) {
    for (StoredHandle& each : stored) {
      if (Must(keeper::ParseStoredName(each.name)).is_record) return each;
    }
    platform::Die("no record is stored");
  }
  static StoredHandle& HandleOf(std::vector<StoredHandle>& stored) {
    for (StoredHandle& each : stored) {
      if (!Must(keeper::ParseStoredName(each.name)).is_record) return each;
    }
    platform::Die("no handle is stored");
  }
  static keeper::Record ReadRecord(std::vector<StoredHandle>& stored) {
    const platform::SharedMemory memory = Must(platform::SharedMemory::Open(
        RecordOf(stored).handle, keeper::kRecordBytes,
        platform::PeerAccess::kRead));
    return Must(
        keeper::DecodeRecord(memory.bytes().subspan(0, keeper::kRecordBytes)));
  }
};

TEST_F(PlantedStoreTest, WhatIsNotWholeIsRefusedAndSaidSo) {
  struct Case {
    const char* says;
    std::function<void(std::vector<StoredHandle>&)> change;
  };
  const platform::CancelEvent some = Must(platform::CancelEvent::Create());
  const Case cases[] = {
      {"handles without a record",
       [](auto& stored) {
         std::erase_if(stored, [](const StoredHandle& each) {
           return Must(keeper::ParseStoredName(each.name)).is_record;
         });
       }},
      {"2 of 3 handles",
       [](auto& stored) {
         const std::string name = HandleOf(stored).name;
         std::erase_if(stored, [&](const StoredHandle& each) {
           return each.name == name;
         });
       }},
      {"2 handles are stored as number",
       [](auto& stored) {
         const StoredHandle& handle = HandleOf(stored);
         stored.push_back(
             {handle.name, Must(platform::Duplicate(handle.handle))});
       }},
      {"2 records have the same name",
       [](auto& stored) {
         const StoredHandle& record = RecordOf(stored);
         stored.push_back(
             {record.name, Must(platform::Duplicate(record.handle))});
       }},
      {"expected",
       [&](auto& stored) {
         HandleOf(stored).handle = Must(platform::Duplicate(some.handle()));
       }},
      {"the descriptor for shared control memory is",
       [&](auto& stored) {
         RecordOf(stored).handle = Must(platform::Duplicate(some.handle()));
       }},
      {"checksum",
       [](auto& stored) {
         std::vector<std::uint8_t> bytes =
             keeper::EncodeRecord(ReadRecord(stored));
         bytes[20] ^= 1;
         RecordOf(stored).handle = MemoryOf(bytes);
       }},
      {"under another's name",
       [](auto& stored) {
         keeper::Record record = ReadRecord(stored);
         ++record.id;
         RecordOf(stored).handle = MemoryOf(keeper::EncodeRecord(record));
       }},
      {"under another's name",
       [](auto& stored) {
         keeper::Record record = ReadRecord(stored);
         ++record.revision;
         RecordOf(stored).handle = MemoryOf(keeper::EncodeRecord(record));
       }},
      // One number was left out.
      {"1 handles are stored as number 7 of 3",
       [](auto& stored) {
         StoredHandle& handle = HandleOf(stored);
         handle.name = keeper::NameOfHandle(ReadRecord(stored).id, 7);
       }},
      // They hold no memory, so that none are stored.
      {"3 of 3 handles",
       [](auto& stored) {
         keeper::Record record = ReadRecord(stored);
         record.ticket.kind = HandleKind::kFabric;
         RecordOf(stored).handle = MemoryOf(keeper::EncodeRecord(record));
       }},
      {"on another machine", [](auto& stored) {
         keeper::Record record = ReadRecord(stored);
         record.ticket.boot_id.fill(1);
         RecordOf(stored).handle = MemoryOf(keeper::EncodeRecord(record));
       }}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.says);
    EXPECT_THAT(LogAfter(each.change, false, 0),
                Contains(HasSubstr(each.says)));
  }
}

TEST_F(PlantedStoreTest, WhatIsNoneOfTheKeepersIsClosed) {
  const platform::CancelEvent some = Must(platform::CancelEvent::Create());
  EXPECT_THAT(LogAfter(
                  [&](auto& stored) {
                    stored.push_back(
                        {"stored", Must(platform::Duplicate(some.handle()))});
                  },
                  true, kChunks + 2),
              Contains(HasSubstr("passed as \"stored\"")));
}

TEST_F(PlantedStoreTest, OfTwoRecordsTheLaterOneCounts) {
  EXPECT_THAT(
      LogAfter(
          [](auto& stored) {
            keeper::Record record = ReadRecord(stored);
            EXPECT_TRUE(record.sealed);
            record.sealed = false;
            --record.revision;
            stored.push_back({keeper::NameOfRecord(record.id, record.revision),
                              MemoryOf(keeper::EncodeRecord(record))});
          },
          true, kChunks + 1),
      IsEmpty());
}

TEST_F(PlantedStoreTest, OfTwoEntriesOfOneNameOneIsServedAndTheOtherRemoved) {
  EXPECT_THAT(
      LogAfter(
          [](auto& stored) {
            keeper::Record record = ReadRecord(stored);
            ++record.id;
            const std::size_t count = stored.size();
            for (std::size_t i = 0; i < count; ++i) {
              const keeper::StoredName name =
                  Must(keeper::ParseStoredName(stored[i].name));
              if (name.is_record) continue;
              stored.push_back({keeper::NameOfHandle(record.id, name.number),
                                Must(platform::Duplicate(stored[i].handle))});
            }
            stored.push_back({keeper::NameOfRecord(record.id, record.revision),
                              MemoryOf(keeper::EncodeRecord(record))});
          },
          true, kChunks + 1),
      Contains(HasSubstr("a stored entry is refused")));
}

TEST_F(PlantedStoreTest,
       WithoutAServiceManagerWhatWasPassedIsServedAllTheSame) {
  KeepOne();
  std::unique_ptr<Service> keeper = StartKeeper({}, {{"NOTIFY_SOCKET", ""}});
  KeeperClient client = Client();
  ExpectKept(client, "weights", 1);
  EXPECT_FALSE(Listed(client, "weights")->survives_restart);
  Must(client.Drop("weights", Late()));
  EXPECT_THAT(Must(client.List(Late())).memory, IsEmpty());
  Kill(keeper);
}

TEST_F(PlantedStoreTest, ARecordOfANewerKeeperIsLeftForIt) {
  EXPECT_THAT(LogAfter(
                  [](auto& stored) {
                    std::vector<std::uint8_t> bytes =
                        keeper::EncodeRecord(ReadRecord(stored));
                    bytes[8] = 3;
                    RecordOf(stored).handle = MemoryOf(bytes);
                  },
                  false, kChunks + 1),
              Contains(HasSubstr("left alone")));
}

TEST_F(PlantedStoreTest, DescriptorsForAnotherProcessAreNotTaken) {
  const OsHandle kept =
      Must(platform::Duplicate(Must(platform::CancelEvent::Create()).handle()));
  // Inherited from a parent that was a service.
  ::setenv("LISTEN_PID", absl::StrCat(::getppid()).c_str(), 1);
  ::setenv("LISTEN_FDS", "40", 1);
  const platform::StoredHandles taken = platform::TakeStoredHandles();
  ::unsetenv("LISTEN_PID");
  ::unsetenv("LISTEN_FDS");
  EXPECT_TRUE(taken.handles.empty());
  EXPECT_THAT(taken.problems, IsEmpty());
}

TEST_F(KeeperRestartTest, SaysWhatDoesNotSurviveAndWhy) {
  std::unique_ptr<Service> keeper = StartKeeper({}, {{"NOTIFY_SOCKET", ""}});
  EXPECT_THAT(keeper->note, HasSubstr("NOTIFY_SOCKET is not set"));
  {
    KeeperClient client = Client();
    PutPattern(client, "weights", 1);
    EXPECT_FALSE(Listed(client, "weights")->survives_restart);
    EXPECT_EQ(Must(client.List(Late())).restart_note, keeper->note);
  }
  EXPECT_THAT(systemd_.Stored(), IsEmpty());
  Kill(keeper);
  keeper = StartKeeper({}, {{"FDSTORE", "0"}});
  EXPECT_THAT(keeper->note, HasSubstr("FileDescriptorStoreMax="));
  Kill(keeper);
  // Two entries and one to spare do not fit.
  keeper = StartKeeper({}, {{"FDSTORE", "8"}});
  EXPECT_EQ(keeper->note, "");
  KeeperClient client = Client();
  PutPattern(client, "first", 1);
  PutPattern(client, "second", 2);
  EXPECT_TRUE(Listed(client, "first")->survives_restart);
  EXPECT_FALSE(Listed(client, "second")->survives_restart);
  EXPECT_THAT(Hear(keeper->channel), HasSubstr("FileDescriptorStoreMax=8"));
  ExpectKept(client, "second", 2);
  EXPECT_EQ(systemd_.Stored().size(), kChunks + 1);
}

}  // namespace
}  // namespace vmm::testing
