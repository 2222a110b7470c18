// Leases of published memory: who imported what, asked back, waited for.
#include <gmock/gmock.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/cuda/driver_table.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/peer_watch.h"
#include "tests/gpu/changed_driver.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/opened_memory.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/emulator.h"
#include "tests/support/fork.h"
#include "tests/support/open_handles.h"
#include "tests/support/syscall_faults.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/raw_handle.h"
#include "vmm/share/restorable.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

class EndpointLeases : public OpeningTest {
 protected:
  std::unique_ptr<Endpoint> Start(EndpointOptions options = {}) {
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
  struct Shared {
    Allocation memory;
    Share publication;
  };
  Shared Publish(Endpoint& endpoint, std::uint64_t size = kGranule) {
    Allocation memory = MakePattern(size, 9);
    Share publication = Must(endpoint.Publish(memory.shareable()));
    return {std::move(memory), std::move(publication)};
  }
  OpenedMemory Open(const Shared& shared) {
    return Must(OpeningTest::Open(shared.publication.ticket()));
  }
  static absl::Time Soon() { return absl::Now() + absl::Milliseconds(30); }
};

// Opens tickets, says so, and holds them until it is told to let go.
int OpenAndHold(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  std::vector<ImportedAllocation> memory = Must(OpenTickets(
      TestDriver(), absl::MakeConstSpan(args).subspan(1), Readable(), Late()));
  Tell(boss);
  Hear(boss);
  for (const ImportedAllocation& one : memory) {
    ExpectPattern(one.address(), one.requested_size(), 9);
  }
  memory.clear();
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return 0;
}
const bool kOpenAndHold = RegisterChild("open-and-hold", &OpenAndHold);

TEST_F(EndpointLeases, NameWhoImportedWhatSinceWhen) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared first = Publish(*endpoint);
  const Shared second = Publish(*endpoint, 3 * kGranule);
  EXPECT_TRUE(endpoint->Leases().empty());
  const absl::Time before = absl::Now();
  Child child = Child::Start(
      "open-and-hold",
      {address(), first.publication.ticket(), second.publication.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  const absl::Time after = absl::Now();
  const std::vector<MemoryLease> leases = endpoint->Leases();
  ASSERT_EQ(leases.size(), 2u);
  EXPECT_EQ(leases[0].memory, first.memory.id());
  EXPECT_EQ(leases[0].lease.size, kGranule);
  EXPECT_EQ(leases[1].memory, second.memory.id());
  EXPECT_EQ(leases[1].lease.size, 3 * kGranule);
  for (const MemoryLease& one : leases) {
    EXPECT_EQ(one.lease.state, LeaseState::kHeld);
    EXPECT_EQ(one.lease.holder.pid, child.pid());
    EXPECT_EQ(one.lease.holder.user, platform::CurrentUser());
    EXPECT_GE(one.lease.since, before);
    EXPECT_LE(one.lease.since, after);
  }
  const absl::Status late = endpoint->WaitUntilAllReturned(Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("2 leases are not returned: memory "));
  EXPECT_THAT(std::string(late.message()),
              HasSubstr(absl::StrCat("process ", child.pid())));
  Tell(channel);
  Hear(channel);
  Must(endpoint->WaitUntilAllReturned(Late()));
  EXPECT_TRUE(endpoint->Leases().empty());
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(EndpointLeases, ALeaseIsReturnedOnceItsMemoryIsUnmapped) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  std::optional<OpenedMemory> memory = Open(shared);
  EXPECT_TRUE(memory->lease().connection.ok());
  EXPECT_EQ(memory->lease().return_by, std::nullopt);
  // A lease moves with its memory, and is one.
  std::optional<OpenedMemory> moved = *std::move(memory);
  memory.reset();
  EXPECT_EQ(endpoint->Leases().size(), 1u);
  // What is assigned over is returned, the other one kept.
  *moved = Open(shared);
  Must(endpoint->WaitUntilReturned(MemoryId{}, Late()));
  ExpectSoon([&] { return endpoint->Leases().size() == 1; });
  moved->Expect(9);
  moved.reset();
  Must(endpoint->WaitUntilReturned(shared.memory.id(), Late()));
  EXPECT_EQ(endpoint->statistics().served, 2u);
  EXPECT_EQ(endpoint->statistics().failed, 0u);
}

// Fetches handles, maps them as other software would, and holds the lease beyond
// that until it is told to let go.
int FetchAndHold(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  std::optional<FetchedHandles> fetched =
      Must(FetchRaw(TestDriver(), args[1], Late()));
  EXPECT_EQ(fetched->ticket(), Must(ParseTicketString(args[1])).ticket);
  const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
  {
    const ImportedAllocation memory =
        Must(ImportRaw(device, Location::On(device),
                       std::move(fetched->chunks()), Readable()));
    ExpectPattern(memory.address(), memory.requested_size(), 9);
  }
  Tell(boss);
  Hear(boss);
  EXPECT_TRUE(fetched->lease().return_by.has_value());
  fetched.reset();
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return 0;
}
const bool kFetchAndHold = RegisterChild("fetch-and-hold", &FetchAndHold);

TEST_F(EndpointLeases, OfHandlesThatSomebodyElseMaps) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint, 3 * kGranule);
  Child child =
      Child::Start("fetch-and-hold", {address(), shared.publication.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  // The lease is not the mapping's: only its holder knows of that.
  ASSERT_EQ(endpoint->Leases().size(), 1u);
  EXPECT_EQ(endpoint->Leases()[0].lease.size, 3 * kGranule);
  EXPECT_EQ(endpoint->Leases()[0].lease.holder.pid, child.pid());
  endpoint->Recall(shared.memory.id(), absl::Now() + absl::Seconds(60));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      endpoint->WaitUntilReturned(shared.memory.id(), Soon())));
  Tell(channel);
  Hear(channel);
  Must(endpoint->WaitUntilReturned(shared.memory.id(), Late()));
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
}

// Whoever is told that nobody has the memory may count on that.
TEST_F(EndpointLeases, HandlesAreClosedBeforeTheirLeaseIsReturned) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call fails here";
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = kGranule, .sharing = SharePolicy::Require(kNativeKind)}));
  const Share share = Must(endpoint->Publish(memory.shareable()));
  for (const bool is_assigned : {false, true}) {
    std::optional<FetchedHandles> fetched =
        Must(FetchRaw(driver(), share.ticket(), Late()));
    std::optional<FetchedHandles> next =
        Must(FetchRaw(driver(), share.ticket(), Late()));
    const int number =
        static_cast<int>(OsHandleOf(fetched->chunks().front().handle)->get());
    const std::string what = OpenHandles()[number];
    bool is_open = true;
    // The return itself is lost, after a look at what is open by then.
    ArmSyscallFault({.point = {.this_thread_only = true},
                     .only_error = EPIPE,
                     .only_call = "sendmsg",
                     .then = [&] { is_open = OpenHandles()[number] == what; }});
    if (is_assigned) {
      *fetched = *std::move(next);
    } else {
      fetched.reset();
    }
    EXPECT_EQ(DisarmSyscallFault().fired, 1u);
    EXPECT_FALSE(is_open) << is_assigned;
  }
}

TEST_F(EndpointLeases, HandlesOfAReaderAreRefused) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = MakePattern(kGranule, 9);
  const Share share =
      Must(endpoint->Publish(memory.shareable(), {.access = Access::kRead}));
  EXPECT_TRUE(absl::IsPermissionDenied(
      FetchRaw(driver(), share.ticket(), Late()).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(FetchRaw(driver(), "none", Late()).status()));
  std::optional<Share> withdrawn = Must(endpoint->Publish(memory.shareable()));
  const std::string text = withdrawn->ticket();
  withdrawn.reset();
  EXPECT_TRUE(absl::IsNotFound(FetchRaw(driver(), text, Late()).status()));
  EXPECT_TRUE(endpoint->Leases().empty());
}

TEST_F(EndpointLeases, OfOneConnectionAreReturnedOneByOne) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared first = Publish(*endpoint);
  const Shared second = Publish(*endpoint);
  std::vector<OpenedMemory> memory =
      Must(OpenAll({first.publication.ticket(), second.publication.ticket(),
                    first.publication.ticket()}));
  // What stands there twice is asked for once, and is one lease.
  EXPECT_EQ(endpoint->Leases().size(), 2u);
  memory.pop_back();
  EXPECT_FALSE(endpoint->WaitUntilReturned(first.memory.id(), Soon()).ok());
  memory.erase(memory.begin());
  Must(endpoint->WaitUntilReturned(first.memory.id(), Late()));
  EXPECT_FALSE(endpoint->WaitUntilReturned(second.memory.id(), Soon()).ok());
  memory.clear();
  Must(endpoint->WaitUntilAllReturned(Late()));
}

TEST_F(EndpointLeases, ARecallIsSeenByThoseThatHoldTheMemory) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared first = Publish(*endpoint);
  const Shared second = Publish(*endpoint);
  std::optional<OpenedMemory> one = Open(first);
  const OpenedMemory other = Open(second);
  const absl::Time until = absl::Now() + absl::Seconds(40);
  endpoint->Recall(first.memory.id(), until);
  ExpectSoon([&] { return one->lease().return_by.has_value(); });
  const LeaseStatus status = one->lease();
  EXPECT_TRUE(status.connection.ok());
  ASSERT_TRUE(status.return_by.has_value());
  EXPECT_GE(*status.return_by, until - absl::Milliseconds(1));
  EXPECT_LE(*status.return_by, until + absl::Seconds(5));
  EXPECT_EQ(other.lease().return_by, std::nullopt);
  for (const MemoryLease& lease : endpoint->Leases()) {
    const bool asked = lease.memory == first.memory.id();
    EXPECT_EQ(lease.lease.state,
              asked ? LeaseState::kRecalled : LeaseState::kHeld);
  }
  endpoint->RecallAll(until);
  ExpectSoon([&] { return other.lease().return_by.has_value(); });
  std::thread lets_go([&] { one.reset(); });
  const absl::Status back =
      endpoint->WaitUntilReturned(first.memory.id(), Late());
  lets_go.join();
  EXPECT_TRUE(back.ok()) << back;
}

// The exchange is not over when the handles have come: what is asked meanwhile
// is not sent into it.
// An engine looks between steps; its owner may ask at every turn of a loop.
TEST_F(EndpointLeases, WhoAsksOftenDisconnectsNobodyWhoLooksSeldom) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  std::optional<OpenedMemory> memory = Open(shared);
  const absl::Time first = absl::Now() + absl::Seconds(60);
  endpoint->RecallAll(first);
  ExpectSoon([&] { return memory->lease().return_by.has_value(); });
  for (int i = 1; i < 5000; ++i) {
    endpoint->RecallAll(first + absl::Seconds(i));
  }
  ASSERT_EQ(endpoint->Leases().size(), 1u);
  EXPECT_EQ(endpoint->Leases()[0].lease.state, LeaseState::kRecalled);
  EXPECT_EQ(endpoint->Leases()[0].lease.return_by, first + absl::Seconds(4999));
  ExpectSoon([&] { return memory->lease().return_by.has_value(); });
  EXPECT_LE(*memory->lease().return_by, first + absl::Seconds(1));
  // Earlier than it was told is news.
  const absl::Time earlier = first - absl::Seconds(30);
  endpoint->RecallAll(earlier);
  ExpectSoon(
      [&] { return *memory->lease().return_by < earlier + absl::Seconds(1); });
  Must(memory->lease().connection);
  memory.reset();
  Must(endpoint->WaitUntilAllReturned(Late()));
}

TEST_F(EndpointLeases, ARecallDuringTheExchangeComesAfterIt) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  platform::Channel channel = Dial(endpoint->address());
  AskAndBeGranted(channel, shared.publication.ticket());
  Must(protocol::ReceiveAll(
      channel,
      [&](const protocol::Incoming&) {
        endpoint->RecallAll(absl::Now() + absl::Seconds(40));
        const std::vector<MemoryLease> leases = endpoint->Leases();
        EXPECT_EQ(leases.size(), 1u);
        EXPECT_EQ(leases[0].lease.state, LeaseState::kRecalled);
        return absl::OkStatus();
      },
      Late()));
  const protocol::Recall recall =
      Must(protocol::DecodeRecall(Must(channel.Receive(Late()))));
  EXPECT_EQ(recall.ids, std::vector<MemoryId>{shared.memory.id()});
  Must(protocol::SendReturn(channel, recall.ids, Late()));
  Must(endpoint->WaitUntilAllReturned(Late()));
}

TEST_F(EndpointLeases, OutliveThePublication) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  std::optional<Shared> shared = Publish(*endpoint);
  const MemoryId id = shared->memory.id();
  const OpenedMemory memory = Open(*shared);
  shared.reset();
  ASSERT_EQ(endpoint->Leases().size(), 1u);
  EXPECT_EQ(endpoint->Leases()[0].memory, id);
  endpoint->Recall(id, Late());
  ExpectSoon([&] { return memory.lease().return_by.has_value(); });
}

TEST_F(EndpointLeases, DeathReturnsThem) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  Child child =
      Child::Start("open-and-hold", {address(), shared.publication.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  EXPECT_EQ(endpoint->Leases().size(), 1u);
  child.Kill();
  const absl::Status back = endpoint->WaitUntilAllReturned(Late());
  EXPECT_TRUE(back.ok()) << back;
  EXPECT_TRUE(endpoint->Leases().empty());
  EXPECT_EQ(endpoint->statistics().failed, 0u);
}

// Is given memory, hangs up without a word, and lives until it is killed.
int TakeAndHangUp(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  {
    platform::Channel channel = Dial(args[1]);
    AskAndBeGranted(channel, args[2]);
    Must(protocol::ReceiveAll(
        channel, [](const protocol::Incoming&) { return absl::OkStatus(); },
        Late()));
  }
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return 0;
}
const bool kTakeAndHangUp = RegisterChild("take-and-hang-up", &TakeAndHangUp);

TEST_F(EndpointLeases, OfTheDeadNothingIsKeptOpenThoughNobodyAsks) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  const auto take_and_die = [&] {
    Child child = Child::Start(
        "take-and-hang-up",
        {address(), endpoint->address(), shared.publication.ticket()});
    platform::Channel channel = Accept();
    Hear(channel);
    ExpectSoon([&] {
      const std::vector<MemoryLease> leases = endpoint->Leases();
      return leases.size() == 1 &&
             leases.front().lease.state == LeaseState::kQuarantined;
    });
    child.Kill();
  };
  // Once before: on Windows listeners take handles for those they have accepted
  // at, and the host-memory driver opens one when it misses a process.
  take_and_die();
  ExpectSoon([&] { return endpoint->Leases().empty(); });
  const std::size_t before = OpenHandleCount();
  for (int i = 0; i < 3; ++i) take_and_die();
  ExpectSoon([&] { return OpenHandleCount() <= before; });
}

TEST_F(EndpointLeases, OfAPeerThatHungUpAndLivesAreQuarantined) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  {
    platform::Channel channel = Dial(endpoint->address());
    AskAndBeGranted(channel, shared.publication.ticket());
    Must(protocol::ReceiveAll(
        channel, [](const protocol::Incoming&) { return absl::OkStatus(); },
        Late()));
  }
  ExpectSoon([&] {
    const std::vector<MemoryLease> leases = endpoint->Leases();
    return leases.size() == 1 &&
           leases[0].lease.state == LeaseState::kQuarantined;
  });
  endpoint->RecallAll(Late());  // Nobody is there to be asked.
  EXPECT_THAT(std::string(endpoint->WaitUntilAllReturned(Soon()).message()),
              HasSubstr("hung up and is not known to have ended"));
}

TEST_F(EndpointLeases, WhoRefusesHasNone) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  platform::Channel channel = Dial(endpoint->address());
  AskAndBeGranted(channel, shared.publication.ticket());
  EXPECT_FALSE(protocol::ReceiveAll(
                   channel,
                   [](const protocol::Incoming&) {
                     return absl::FailedPreconditionError("no");
                   },
                   Late())
                   .ok());
  Must(endpoint->WaitUntilAllReturned(Late()));
  ExpectSoon([&] { return endpoint->statistics().failed == 1; });
}

// An importer's driver that refuses the second cuMemMap. What was mapped first it
// unmaps when it is let go on. One at a time.
class SlowToUnmap {
 public:
  SlowToUnmap() { Current() = this; }

  platform::Driver Driver() {
    platform::DriverTable table = TestDriver().table();
    table.cuMemMap = [](CUdeviceptr at, std::size_t size, std::size_t offset,
                        CUmemGenericAllocationHandle handle,
                        unsigned long long flags) {
      if (++Current()->maps_ == 2) return CUDA_ERROR_OUT_OF_MEMORY;
      Current()->first_ = at;
      return TestDriver()->cuMemMap(at, size, offset, handle, flags);
    };
    table.cuMemUnmap = [](CUdeviceptr at, std::size_t size) {
      if (at == Current()->first_) {
        Current()->unmaps_.set_value();
        Current()->may_.get_future().wait();
      }
      return TestDriver()->cuMemUnmap(at, size);
    };
    return ChangedDriver(table);
  }
  void AwaitUnmap() {
    EXPECT_EQ(unmaps_.get_future().wait_for(std::chrono::seconds(30)),
              std::future_status::ready);
  }
  void GoOn() { may_.set_value(); }

 private:
  static SlowToUnmap*& Current() {
    static SlowToUnmap* current = nullptr;
    return current;
  }

  int maps_ = 0;
  CUdeviceptr first_ = 0;
  std::promise<void> unmaps_, may_;
};

// Its owner would think that it may make new memory of it.
TEST_F(EndpointLeases, WhatIsLetGoOfForARefusalIsHeldUntilThen) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared first = Publish(*endpoint);
  const Shared second = Publish(*endpoint);
  SlowToUnmap slow;
  const platform::Driver its = slow.Driver();
  std::future<absl::Status> opened = std::async(std::launch::async, [&] {
    const Here here;
    return OpenTickets(
               its, {first.publication.ticket(), second.publication.ticket()},
               Readable(), Late())
        .status();
  });
  slow.AwaitUnmap();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      endpoint->WaitUntilAllReturned(absl::Now() + absl::Milliseconds(100))));
  EXPECT_FALSE(endpoint->Leases().empty());
  slow.GoOn();
  const absl::Status refused = opened.get();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  Must(endpoint->WaitUntilAllReturned(Late()));
}

TEST_F(EndpointLeases, AReceiverThatRefusesLetsGoBeforeItSaysSo) {
  auto [ours, theirs] = Must(platform::Channel::Pair());
  const Allocation first = MakePattern(kGranule, 9);
  const Allocation second = MakePattern(kGranule, 9);
  SlowToUnmap slow;
  const platform::Driver its = slow.Driver();
  std::future<absl::Status> sent =
      std::async(std::launch::async, [&, to = std::move(ours)]() mutable {
        return SendAllocations(to, {first.shareable(), second.shareable()},
                               Late());
      });
  std::future<absl::Status> received =
      std::async(std::launch::async, [&, from = std::move(theirs)]() mutable {
        const Here here;
        return ReceiveAllocations(from, its, Readable(), Late()).status();
      });
  slow.AwaitUnmap();
  EXPECT_EQ(sent.wait_for(std::chrono::milliseconds(100)),
            std::future_status::timeout);
  slow.GoOn();
  EXPECT_THAT(std::string(sent.get().message()),
              HasSubstr("the importer refused"));
  EXPECT_TRUE(absl::IsResourceExhausted(received.get()));
}

TEST_F(EndpointLeases, AReturnOfWhatIsNotHeldEndsTheConnection) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared held = Publish(*endpoint);
  const Shared other = Publish(*endpoint);
  for (const int wrong : {0, 1, 2}) {
    platform::Channel channel = Dial(endpoint->address());
    AskAndBeGranted(channel, held.publication.ticket());
    Must(protocol::ReceiveAll(
        channel, [](const protocol::Incoming&) { return absl::OkStatus(); },
        Late()));
    if (wrong == 0) {
      Must(protocol::SendReturn(channel, {other.memory.id()}, Late()));
    } else if (wrong == 1) {  // Twice.
      Must(protocol::SendReturn(channel, {held.memory.id(), held.memory.id()},
                                Late()));
    } else {
      Must(channel.Send(protocol::kDone, {}, {}, Late()));
    }
    EXPECT_TRUE(channel.WaitForHangUp(Late()).ok());
    ExpectSoon([&] {
      return endpoint->statistics().failed == static_cast<unsigned>(wrong) + 1;
    });
    EXPECT_TRUE(absl::IsInvalidArgument(endpoint->statistics().last_error))
        << endpoint->statistics().last_error;
  }
  // Whatever it says: it may have the memory.
  EXPECT_EQ(endpoint->Leases().size(), 3u);
}

TEST_F(EndpointLeases, MoreThanAllowedAreToldSo) {
  EndpointOptions options;
  options.max_leases = 5;
  options.max_process_leases = 5;
  options.max_sessions = 2;  // A lease is no session.
  const std::unique_ptr<Endpoint> endpoint = Start(options);
  const Shared shared = Publish(*endpoint);
  std::vector<OpenedMemory> memory;
  while (memory.size() < 5) {
    memory.push_back(Open(shared));
    // Until then it is served, and counts as a session.
    ExpectSoon([&] { return endpoint->statistics().served == memory.size(); });
  }
  const absl::Status refused = OpenTicket(driver(), shared.publication.ticket(),
                                          {}, absl::InfiniteFuture())
                                   .status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the owner has 5 leases, its limit"));
  memory.pop_back();
  ExpectSoon([&] { return endpoint->Leases().size() == 4; });
  memory.push_back(Open(shared));
}

TEST_F(EndpointLeases, TheEndOfTheOwnerIsSeenAndTheMemoryStays) {
  std::unique_ptr<Endpoint> endpoint = Start();
  std::optional<Shared> shared = Publish(*endpoint);
  std::optional<OpenedMemory> memory = Open(*shared);
  shared.reset();
  // Served: what it says from now on comes before its end.
  ExpectSoon([&] { return endpoint->statistics().served == 1; });
  endpoint->RecallAll(Late());
  ExpectSoon([&] { return memory->lease().return_by.has_value(); });
  endpoint.reset();
  const absl::Status gone = memory->lease().connection;
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()),
              HasSubstr("the owner of the memory"));
  memory->Expect(9);
  memory.reset();
}

TEST_F(EndpointLeases, MemoryThatCameOtherwiseIsNone) {
  auto [ours, theirs] = Must(platform::Channel::Pair());
  const Allocation memory = MakePattern(kGranule, 9);
  absl::Status sent;
  std::thread sends([&, to = std::move(ours)]() mutable {
    sent = SendAllocation(to, memory.shareable(), Late());
  });
  const ImportedAllocation imported =
      Must(ReceiveAllocation(theirs, driver(), {}, Late()));
  sends.join();
  EXPECT_TRUE(sent.ok()) << sent;
  EXPECT_TRUE(absl::IsFailedPrecondition(imported.lease().connection));
}

TEST_F(EndpointLeases, KeepNothingOpenWhenTheyAreReturned) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Shared shared = Publish(*endpoint);
  { const OpenedMemory first = Open(shared); }
  Must(endpoint->WaitUntilAllReturned(Late()));
  const std::size_t before = OpenHandles().size();
  for (int i = 0; i < 10; ++i) const OpenedMemory memory = Open(shared);
  // The threads that have ended are joined when the next one comes.
  ExpectSoon([&] {
    { const OpenedMemory memory = Open(shared); }
    Must(endpoint->WaitUntilAllReturned(Late()));
    return OpenHandles().size() <= before;
  });
}

// Owners that send what they like once the memory is imported.
class HostileLeases : public EndpointLeases {
 protected:
  ~HostileLeases() override {
    if (owner_.joinable()) owner_.join();
  }
  OpenedMemory OpenFrom(
      std::function<void(platform::Channel&, const MemoryId&)> play) {
    const std::unique_ptr<Endpoint> honest = Start();
    const Shared shared = Publish(*honest);
    AddressedTicket ticket =
        Must(ParseTicketString(shared.publication.ticket()));
    ticket.invitation.address = address();
    owner_ = std::thread(
        [this, play = std::move(play),
         outgoing = Must(protocol::MakeOutgoing(shared.memory.shareable()))] {
          platform::Channel channel = Accept();
          Must(platform::ReceiveLifeline(channel, Late()));
          EXPECT_TRUE(protocol::DecodeOpen(Must(channel.Receive(Late()))).ok());
          Must(protocol::SendGranted(channel, Access::kReadWrite, Late()));
          Must(protocol::SendAll(channel, {outgoing}, Late()));
          play(channel, outgoing.ticket.id);
        });
    return Must(OpeningTest::Open(FormatTicketString(ticket)));
  }

 private:
  std::thread owner_;
};

TEST_F(HostileLeases, AFewRecallsAreReadAtATime) {
  constexpr int kSent = 60;
  std::promise<void> sent;
  const OpenedMemory memory =
      OpenFrom([&](platform::Channel& channel, const MemoryId& id) {
        for (int i = 1; i <= kSent; ++i) {
          Must(protocol::SendRecall(channel, {id}, absl::Hours(i), Late()));
        }
        sent.set_value();
        channel.WaitForHangUp(Late()).IgnoreError();
      });
  sent.get_future().wait();
  const auto hours = [&] {
    return absl::ToInt64Hours(*memory.lease().return_by - absl::Now() +
                              absl::Minutes(30));
  };
  EXPECT_EQ(hours(), 8);
  EXPECT_EQ(hours(), 16);
  ExpectSoon([&] { return hours() == kSent; });
  EXPECT_TRUE(memory.lease().connection.ok());
}

// Forks while another process holds a lease. In a process of its own, for the
// driver's sake; args: where to listen.
int ForkWithLeases(const Args& args) {
  const Here here;
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = args[0]}}));
  const auto make = [&] {
    return Must(RestorableAllocation::Share(
        *endpoint, Must(Allocation::Create(here.device, {.size = kGranule}))));
  };
  RestorableAllocation held = make();
  RestorableAllocation away = make();
  Must(away.Release(Keep::kNothing, Late()));
  const Allocation unshared =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  const std::unique_ptr<Pool> pool = Must(Pool::Create(here.device, {}));
  OpenerProcess importer(args[0]);
  const std::size_t number = Must(importer.Open({held.ticket()})).front();
  // The thread that serves it is at rest: see RunInFork().
  ExpectSoon([&] { return endpoint->statistics().served == 1; });
  EXPECT_TRUE(importer.Lease(number).connection.ok());
  const absl::Time until = absl::Now() + absl::Seconds(60);
  EXPECT_EQ(
      RunInFork([&] {
        endpoint->RecallAll(until);
        endpoint->Recall(held.memory().id(), until);
        const absl::Status refused[] = {
            endpoint->WaitUntilAllReturned(until),
            endpoint->WaitUntilReturned(away.memory().id(), until),
            endpoint->Publish(unshared.shareable()).status(),
            endpoint->Serve(*pool).status(),
            held.Release(Keep::kNothing, until),
            away.Restore([](const Allocation&) { return absl::OkStatus(); })};
        // The first that is not refused, by its number.
        int wrong = 1;
        for (const absl::Status& one : refused) {
          if (!absl::IsFailedPrecondition(one) ||
              !absl::StrContains(one.message(), "its parent has")) {
            return wrong;
          }
          ++wrong;
        }
        const bool is_empty =
            endpoint->Leases().empty() && endpoint->statistics().served == 0;
        return is_empty ? 0 : wrong;
      }),
      0);
  const LeaseStatus status = importer.Lease(number);
  EXPECT_TRUE(status.connection.ok()) << status.connection;
  EXPECT_EQ(status.return_by, std::nullopt);
  const std::vector<MemoryLease> leases = endpoint->Leases();
  EXPECT_EQ(leases.size(), 1u);
  for (const MemoryLease& one : leases) {
    EXPECT_EQ(one.memory, held.memory().id());
    EXPECT_EQ(one.lease.state, LeaseState::kHeld);
  }
  // The parent's word still comes.
  endpoint->RecallAll(until);
  ExpectSoon([&] { return importer.Lease(number).return_by.has_value(); });
  importer.Close(number);
  Must(held.Release(Keep::kNothing, Late()));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kForkWithLeases = RegisterChild("fork-with-leases", &ForkWithLeases);

TEST_F(EndpointLeases, AForkedChildRecallsNothingOfItsParents) {
  if (!MayFork()) GTEST_SKIP() << "this system has no fork";
  if (IsEmulated()) GTEST_SKIP() << kForksWithLocks;
  EXPECT_EQ(Child::Start("fork-with-leases", {listener_directory()}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::testing
