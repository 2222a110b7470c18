// Tickets as strings, served by an endpoint, between processes.
#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/process.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/opened_memory.h"
#include "tests/ipc/planted_handles.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/emulator.h"
#include "tests/support/fork.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/ticket.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

class EndpointTest : public OpeningTest {
 protected:
  std::unique_ptr<Endpoint> Start(EndpointOptions options = {}) {
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
  // The ticket string with something of the ticket changed.
  static std::string Changed(const std::string& ticket,
                             const std::function<void(Ticket&)>& change) {
    AddressedTicket parsed = Must(ParseTicketString(ticket));
    change(parsed.ticket);
    return FormatTicketString(parsed);
  }
};

// Opens the ticket in a file, checks pattern 1 and writes pattern 2.
int OpenFileAndWrite(const Args& args) {
  const Here here;
  std::string text;
  std::getline(std::ifstream(args[0]), text, '\0');
  const ImportedAllocation memory = Must(
      OpenTicket(TestDriver(), text, {.access = Access::kReadWrite}, Late()));
  ExpectPattern(memory.address(), memory.requested_size(), 1);
  WritePattern(memory.address(), memory.requested_size(), 2);
  return 0;
}
const bool kOpenFileAndWrite =
    RegisterChild("open-file-and-write", &OpenFileAndWrite);

TEST_F(EndpointTest, ATicketInAFileIsOpenedByAnotherProcess) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(1024);
  WritePattern(memory.address(), 1024, 1);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const std::string file = directory() + "/memory.ticket";
  std::ofstream(file) << published.ticket() << "\n";
  EXPECT_EQ(Child::Start("open-file-and-write", {file}).Wait(), 0);
  ExpectPattern(memory.address(), 1024, 2);
  ExpectSoon([&] { return endpoint->statistics().served == 1; });
  EXPECT_EQ(endpoint->statistics().failed, 0u);
}

// Opens all tickets of a file at once; the n-th holds pattern n.
int OpenManyFromFile(const Args& args) {
  const Here here;
  std::string text;
  std::getline(std::ifstream(args[0]), text, '\0');
  const std::vector<std::string> tickets =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  const std::vector<ImportedAllocation> many =
      Must(OpenTickets(TestDriver(), tickets, Readable(), Late()));
  EXPECT_EQ(many.size(), tickets.size());
  for (std::size_t i = 0; i < many.size(); ++i) {
    ExpectPattern(many[i].address(), many[i].requested_size(), i);
    ExpectReadOnly(many[i].address());
  }
  return 0;
}
const bool kOpenMany = RegisterChild("open-many", &OpenManyFromFile);

TEST_F(EndpointTest, ManyClientsOpenManyTicketsAtOnce) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  std::vector<Allocation> many;
  std::vector<Shareable> shareables;
  many.reserve(20);
  for (std::size_t i = 0; i < 20; ++i) {
    many.push_back(Make(3000 + i, kGranule));
    WritePattern(many.back().address(), 3000 + i, i);
    shareables.push_back(many.back().shareable());
  }
  const std::vector<Share> published = Must(endpoint->PublishAll(shareables));
  const std::string file = directory() + "/tickets";
  {
    std::ofstream out(file);
    for (const Share& each : published) out << each.ticket() << "\n";
  }
  std::vector<Child> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(Child::Start("open-many", {file}));
  }
  for (Child& child : children) EXPECT_EQ(child.Wait(), 0);
  ExpectSoon([&] { return endpoint->statistics().served == 6; });
  EXPECT_EQ(endpoint->statistics().failed, 0u);
  EXPECT_EQ(endpoint->statistics().refused, 0u);
}

TEST_F(EndpointTest, TicketsOfSeveralEndpointsComeInTheOrderGiven) {
  const std::unique_ptr<Endpoint> a = Start();
  const std::unique_ptr<Endpoint> b = Start();
  const Allocation memory_a = MakePattern(kGranule, 1);
  const Allocation memory_b = MakePattern(2 * kGranule, 2);
  const Share pa = Must(a->Publish(memory_a.shareable()));
  const Share pb = Must(b->Publish(memory_b.shareable()));
  const std::vector<std::string> tickets = {pb.ticket(), pa.ticket(),
                                            pb.ticket()};
  const auto opened = Must(OpenAll(tickets));
  ASSERT_EQ(opened.size(), 3u);
  opened[0].Expect(2);
  opened[1].Expect(1);
  opened[2].Expect(2);
  EXPECT_TRUE(Must(OpenAll({})).empty());
}

TEST_F(EndpointTest, AllTicketsAreOpenedOrNone) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation a = Make(kGranule);
  const Allocation b = Make(kGranule);
  const Share pa = Must(endpoint->Publish(a.shareable()));
  std::optional<Share> pb = Must(endpoint->Publish(b.shareable()));
  const std::vector<std::string> tickets = {pa.ticket(), pb->ticket()};
  pb.reset();
  EXPECT_TRUE(absl::IsNotFound(OpenAll(tickets).status()));
}

TEST_F(EndpointTest, MemoryOfManyChunksIsServed) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = MakePattern(40 * kGranule, 9, kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const OpenedMemory imported = Must(Open(published.ticket()));
  imported.Expect(9);
}

TEST_F(EndpointTest, ASilentPeerDelaysNobodyAndIsDropped) {
  EndpointOptions options;
  options.request_timeout = absl::Seconds(2);
  const std::unique_ptr<Endpoint> endpoint = Start(options);
  const Allocation memory = MakePattern(kGranule, 4);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const platform::Channel silent = Dial(endpoint->address());
  const platform::Channel silent_too = Dial(endpoint->address());
  const OpenedMemory imported = Must(Open(published.ticket()));
  imported.Expect(4);
  EXPECT_TRUE(silent.WaitForHangUp(Late()).ok());
  EXPECT_TRUE(silent_too.WaitForHangUp(Late()).ok());
  ExpectSoon([&] { return endpoint->statistics().failed == 2; });
  EXPECT_TRUE(absl::IsDeadlineExceeded(endpoint->statistics().last_error));
}

TEST_F(EndpointTest, APeerThatAsksAndNeverTakesIsDroppedToo) {
  EndpointOptions options;
  options.transfer_timeout = absl::Milliseconds(100);
  const std::unique_ptr<Endpoint> endpoint = Start(options);
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  platform::Channel slow = Dial(endpoint->address());
  AskAndBeGranted(slow, published.ticket());
  EXPECT_TRUE(slow.WaitForHangUp(Late()).ok());
  ExpectSoon([&] { return endpoint->statistics().failed == 1; });
}

TEST_F(EndpointTest, MorePeersThanAllowedAreToldSo) {
  EndpointOptions options;
  options.request_timeout = absl::Minutes(1);  // Those that do not ask stay.
  options.max_sessions = 2;
  options.max_process_sessions = 2;
  const std::unique_ptr<Endpoint> endpoint = Start(options);
  const Allocation memory = MakePattern(kGranule, 4);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  {
    const platform::Channel first = Dial(endpoint->address());
    const platform::Channel second = Dial(endpoint->address());
    for (int i = 0; i < 100; ++i) {
      const absl::Status refused =
          OpenTicket(driver(), published.ticket(), {}, absl::InfiniteFuture())
              .status();
      ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted)
          << i << ": " << refused;
      EXPECT_THAT(std::string(refused.message()),
                  HasSubstr("the owner refused: the owner has 2 connections, "
                            "its limit"));
    }
    EXPECT_EQ(endpoint->statistics().refused, 100u);
  }
  ExpectSoon([&] { return Open(published.ticket()).ok(); });
}

TEST_F(EndpointTest, AWithdrawnPublicationIsNotFound) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  std::optional<Share> published = Must(endpoint->Publish(memory.shareable()));
  const std::string ticket = published->ticket();
  EXPECT_TRUE(Open(ticket).ok());
  published.reset();
  const absl::Status status = Open(ticket).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("withdrawn"));
  ExpectSoon(
      [&] { return absl::IsNotFound(endpoint->statistics().last_error); });
  // It can be published again.
  const Share again = Must(endpoint->Publish(memory.shareable()));
  EXPECT_TRUE(Open(again.ticket()).ok());
  EXPECT_TRUE(absl::IsNotFound(Open(ticket).status()))
      << "what was withdrawn stays so";
}

TEST_F(EndpointTest, PrivateMemoryCannotBePublished) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Must(Allocation::Create(
      device, {.size = kGranule, .sharing = SharePolicy::Private()}));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      endpoint->Publish(memory.shareable()).status()));
}

TEST_F(EndpointTest, APublicationOutlivesTheAllocation) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  std::optional<Allocation> memory = MakePattern(2 * kGranule, 6, kGranule);
  const Share published = Must(endpoint->Publish(memory->shareable()));
  memory.reset();
  const OpenedMemory imported = Must(Open(published.ticket()));
  imported.Expect(6);
}

TEST_F(EndpointTest, APublicationOutlivesTheEndpointAndServesNobody) {
  std::unique_ptr<Endpoint> endpoint = Start();
  std::optional<Allocation> memory = MakePattern(kGranule, 6);
  const Share published = Must(endpoint->Publish(memory->shareable()));
  endpoint.reset();
  memory.reset();
  const absl::Status status = Open(published.ticket()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("nobody can be asked for 2097152 bytes of"));
}

TEST_F(EndpointTest, AMovedPublicationWithdrawsWhatItHeldBefore) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation a = Make(kGranule);
  const Allocation b = Make(kGranule);
  Share published = Must(endpoint->Publish(a.shareable()));
  const std::string first = published.ticket();
  published = Must(endpoint->Publish(b.shareable()));
  EXPECT_TRUE(absl::IsNotFound(Open(first).status()));
  Share& same = published;
  published = std::move(same);
  EXPECT_TRUE(Open(published.ticket()).ok());
}

class Pitfall29 : public EndpointTest {};
TEST_F(Pitfall29, ATicketToReplacedMemoryNeverResolvesToTheNew) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  Allocation memory = MakePattern(kGranule, 1);
  std::optional<Share> old = Must(endpoint->Publish(memory.shareable()));
  const std::string old_ticket = old->ticket();
  ASSERT_TRUE(memory.Discard().ok());
  ASSERT_TRUE(memory.Remap().ok());
  WritePattern(memory.address(), memory.size(), 2);
  const Share renewed = Must(endpoint->Publish(memory.shareable()));
  EXPECT_NE(renewed.ticket(), old_ticket);
  {
    const OpenedMemory was = Must(Open(old_ticket));
    was.Expect(1);
  }
  old.reset();
  EXPECT_TRUE(absl::IsNotFound(Open(old_ticket).status()));
  const OpenedMemory is = Must(Open(renewed.ticket()));
  is.Expect(2);
}

TEST_F(EndpointTest, ATicketOfAnotherHostIsRefusedBeforeAnybodyIsDialled) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const absl::Status status =
      Open(Changed(published.ticket(), [](Ticket& ticket) {
        ticket.boot_id[0] ^= 0xff;
        ticket.host_name = "node17";
      })).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("was made on host node17, on another machine"));
  EXPECT_EQ(endpoint->statistics().failed, 0u);
}

TEST_F(EndpointTest, ATicketOfTheOtherDriverIsRefused) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const absl::Status status =
      Open(Changed(published.ticket(), [](Ticket& ticket) {
        ticket.host_memory_driver = !ticket.host_memory_driver;
      })).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the ticket belongs to"));
}

TEST_F(EndpointTest, ATicketWhoseSizeWasChangedIsNotWhatTheOwnerSends) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const absl::Status status =
      Open(Changed(published.ticket(), [](Ticket& ticket) {
        ticket.layout = {2 * kGranule, 2 * kGranule};
      })).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not asked for"));
  ExpectSoon([&] { return endpoint->statistics().failed == 1; });
}

TEST_F(EndpointTest, MemoryThatIsOlderThanItsTicketIsNotWhatWasAskedFor) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const absl::Status status =
      Open(Changed(published.ticket(), [](Ticket& ticket) {
        ++ticket.id.generation;
      })).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not asked for"));
}

TEST_F(EndpointTest, EveryBitOfAKeyCounts) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const AddressedTicket good = Must(ParseTicketString(published.ticket()));
  std::string message;
  for (std::size_t bit = 0; bit < 8 * 24; ++bit) {
    AddressedTicket other = good;
    ShareKey& key = other.invitation.key;
    const auto flip = static_cast<std::uint8_t>(1 << bit % 8);
    if (bit / 8 < key.place.size()) {
      key.place[bit / 8] ^= flip;
    } else {
      key.secret[bit / 8 - key.place.size()] ^= flip;
    }
    const absl::Status refused = Open(FormatTicketString(other)).status();
    ASSERT_TRUE(absl::IsNotFound(refused)) << bit << ": " << refused;
    // Nobody learns which half was wrong.
    if (message.empty()) message = std::string(refused.message());
    ASSERT_EQ(refused.message(), message) << bit;
  }
  EXPECT_TRUE(Open(published.ticket()).ok());
}

TEST_F(EndpointTest, OnePublicationsTextFetchesNoOther) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation mine = Make(kGranule);
  const Allocation other = Make(kGranule);
  const Share share = Must(endpoint->Publish(mine.shareable()));
  const Share secret = Must(endpoint->Publish(other.shareable()));
  // All that is known of the other one but its key.
  AddressedTicket forged = Must(ParseTicketString(secret.ticket()));
  forged.invitation.key = InvitationIn(share.ticket()).key;
  const absl::Status refused = Open(FormatTicketString(forged)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  for (const MemoryLease& lease : endpoint->Leases()) {
    EXPECT_EQ(lease.memory, mine.id()) << "the other one never left";
  }
}

TEST_F(EndpointTest, IdsOfOneOwnerDoNotTellOfEachOther) {
  const Allocation a = Make(kGranule);
  const Allocation b = Make(kGranule);
  const std::uint64_t apart = b.id().number - a.id().number;
  EXPECT_GT(std::min(apart, -apart), std::uint64_t{1} << 32);
}

TEST_F(EndpointTest, ARequestWithAKeyTwiceIsRefused) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const ShareKey key = InvitationIn(published.ticket()).key;
  platform::Channel channel = Dial(endpoint->address());
  Must(protocol::SendOpen(channel, {key, key}, Late()));
  const absl::Status refused =
      protocol::ReceiveGranted(channel, Late()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

TEST_F(EndpointTest, ARequestForMemoryAndAPoolIsRefused) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const Share served = Must(endpoint->Serve(*pool));
  const ShareKey one = InvitationIn(published.ticket()).key;
  const ShareKey other = InvitationIn(served.ticket()).key;
  for (const auto& keys : {std::array{one, other}, std::array{other, one}}) {
    platform::Channel channel = Dial(endpoint->address());
    Must(protocol::SendOpen(channel, keys, Late()));
    const absl::Status refused =
        protocol::ReceiveGranted(channel, Late()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("not all of memory"));
  }
  EXPECT_TRUE(endpoint->Leases().empty());
}

// An owner that counts wrong, whose part a thread of this process speaks.
TEST_F(EndpointTest, LessOrMoreThanWasAskedForIsRefused) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation a = Make(kGranule);
  const Allocation b = Make(kGranule);
  std::vector<Share> shares;
  std::vector<std::string> tickets;
  for (const Allocation* memory : {&a, &b}) {
    shares.push_back(Must(endpoint->Publish(memory->shareable())));
    AddressedTicket ticket = Must(ParseTicketString(shares.back().ticket()));
    ticket.invitation.address = address();
    tickets.push_back(FormatTicketString(ticket));
  }
  const auto open = [&](const std::vector<std::string>& asked,
                        const std::vector<Shareable>& sent) {
    std::thread owner([&] {
      platform::Channel channel = Accept();
      Must(platform::ReceiveLifeline(channel, Late()));
      Must(channel.Receive(Late()));
      Must(protocol::SendGranted(channel, Access::kReadWrite, Late()));
      SendAllocations(channel, sent, Late()).IgnoreError();
      channel.WaitForHangUp(Late()).IgnoreError();
    });
    const absl::Status status =
        OpenTickets(driver(), asked, {}, Late()).status();
    owner.join();
    return status;
  };
  EXPECT_EQ(open(tickets, {a.shareable(), b.shareable()}), absl::OkStatus());
  const absl::Status less = open(tickets, {a.shareable()});
  EXPECT_TRUE(absl::IsDataLoss(less)) << less;
  EXPECT_THAT(less.message(), HasSubstr("the owner sent 1 of 2 allocations"));
  const absl::Status more = open({tickets[0]}, {a.shareable(), b.shareable()});
  EXPECT_TRUE(absl::IsDataLoss(more)) << more;
  EXPECT_THAT(more.message(), HasSubstr("not asked for"));
}

TEST_F(EndpointTest, MemoryThatIsSharedForReadingIsNotMappedForWriting) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = MakePattern(kGranule, 3);
  const Share share =
      Must(endpoint->Publish(memory.shareable(), {.access = Access::kRead}));
  const absl::Status refused =
      Open(share.ticket(), {.access = Access::kReadWrite}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  // Nor is it with a text that says otherwise: the owner's word counts.
  AddressedTicket bolder = Must(ParseTicketString(share.ticket()));
  bolder.invitation.access = Access::kReadWrite;
  EXPECT_TRUE(absl::IsPermissionDenied(
      Open(FormatTicketString(bolder), {.access = Access::kReadWrite})
          .status()));
  ImportedAllocation imported =
      Must(OpenTicket(driver(), share.ticket(), {}, Late()));
  ExpectPattern(imported.address(), imported.size(), 3);
  const AccessGrant for_writing = {Location::On(device), Access::kReadWrite};
  EXPECT_TRUE(absl::IsPermissionDenied(imported.SetAccess({for_writing})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      endpoint->Publish(memory.shareable(), {.access = Access::kNone})
          .status()));
}

TEST_F(EndpointTest, TheSameMemoryIsSharedWithEachAsItsOptionsSay) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = Make(kGranule);
  std::optional<Share> readers =
      Must(endpoint->Publish(memory.shareable(), {.access = Access::kRead}));
  const Share writers = Must(endpoint->Publish(memory.shareable()));
  EXPECT_NE(readers->ticket(), writers.ticket());
  const std::vector<std::string> both = {readers->ticket(), writers.ticket()};
  EXPECT_EQ(Must(OpenAll(both)).size(), 2u);
  const std::string old = readers->ticket();
  readers.reset();
  EXPECT_TRUE(absl::IsNotFound(Open(old).status()));
  EXPECT_TRUE(Open(writers.ticket(), {.access = Access::kReadWrite}).ok());
}

// Publishes pattern 5 and stays until killed.
int PublishAndStay(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  EndpointOptions options;
  options.listener.directory = args[1];
  if (args.size() > 2) {
    EXPECT_TRUE(absl::SimpleAtoi(args[2], &options.max_leases));
  }
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation memory = Must(Allocation::Create(
      here.device, {.size = kGranule, .sharing = TestSharing()}));
  WritePattern(memory.address(), memory.size(), 5);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  Tell(channel, published.ticket(), kText);
  Must(channel.WaitForHangUp(absl::InfiniteFuture()));
  return 0;
}
const bool kPublishAndStay = RegisterChild("publish-and-stay", &PublishAndStay);

TEST_F(EndpointTest, AnOwnerKilledBetweenTicketAndImportIsNotFoundAtOnce) {
  Child owner =
      Child::Start("publish-and-stay", {address(), listener_directory()});
  platform::Channel channel = Accept();
  const std::string ticket = Hear(channel);
  std::optional<OpenedMemory> imported = Must(Open(ticket));
  owner.Kill();
  EXPECT_EQ(owner.Wait(), Child::kKilled);
  const absl::Time begun = absl::Now();
  const absl::Status status = Open(ticket).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
  EXPECT_THAT(std::string(status.message()), HasSubstr("The owner has ended"));
  imported->Expect(5);
  imported.reset();
}

// The owner finds the requests of those that have gone, when it goes on.
TEST_F(EndpointTest, WhoGaveUpBeforeTheOwnerCameToItHasNoLease) {
  if (platform::kHangingUpMayLoseHandles) {
    GTEST_SKIP() << "here handles are put into the importer before it hears "
                    "of them";
  }
  Child owner =
      Child::Start("publish-and-stay", {address(), listener_directory(), "1"});
  platform::Channel channel = Accept();
  const std::string ticket = Hear(channel);
  owner.Stop();
  ExpectSoon([&] { return owner.IsStopped(); });
  for (int i = 0; i < 5; ++i) {
    const absl::Status gave_up =
        OpenTicket(driver(), ticket, {}, absl::Now() + absl::Milliseconds(20))
            .status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(gave_up)) << gave_up;
  }
  owner.Continue();
  // Its only lease is free, though this process lives.
  for (int i = 0; i < 5; ++i) {
    ExpectSoon([&] { return Open(ticket).ok(); });
  }
}

TEST_F(EndpointTest, AnOwnerThatStandsStillCostsTheDeadline) {
  Child owner =
      Child::Start("publish-and-stay", {address(), listener_directory()});
  platform::Channel channel = Accept();
  const std::string ticket = Hear(channel);
  owner.Stop();
  const absl::Time begun = absl::Now();
  const absl::Status status =
      OpenTicket(driver(), ticket, {}, begun + absl::Milliseconds(100))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
}

TEST_F(EndpointTest, GarbageEndsItsSendersSessionAndNothingElse) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Allocation memory = MakePattern(kGranule, 4);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  std::uint64_t bad = 0;
  for (std::uint16_t type :
       {std::uint16_t{0}, static_cast<std::uint16_t>(protocol::kBegin),
        static_cast<std::uint16_t>(protocol::kReturn),
        static_cast<std::uint16_t>(protocol::kDone), std::uint16_t{0xffff}}) {
    for (std::size_t size : {0, 1, 27, 29, 1000, 32768}) {
      const bool with_lifeline = bad % 3 != 0;
      platform::Channel rude = Dial(endpoint->address());
      if (with_lifeline) Must(platform::SendLifeline(rude, Late()));
      Must(rude.Send(type, std::vector<std::uint8_t>(size, 0xa5), {}, Late()));
      const platform::Message answer = Must(rude.Receive(Late()));
      EXPECT_EQ(answer.type, protocol::kAbort);
      EXPECT_TRUE(
          absl::IsInvalidArgument(protocol::DecodeError(answer.payload, "it")));
      EXPECT_TRUE(rude.WaitForHangUp(Late()).ok());
      ++bad;
    }
  }
  EXPECT_TRUE(Open(published.ticket()).ok());
  ExpectSoon([&] { return endpoint->statistics().failed == bad; });
}

TEST_F(EndpointTest, DescriptorsInARequestAreClosed) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  const std::vector<Planted> planted = CarriedObjects();
  std::vector<const platform::OsHandle*> handles;
  for (const Planted& each : planted) handles.push_back(&each.handle);
  for (int i = 0; i < 10; ++i) {
    platform::Channel rude = Dial(endpoint->address());
    if (i % 2 == 0) Must(platform::SendLifeline(rude, Late()));
    Must(rude.Send(
        static_cast<std::uint16_t>(i % 3 == 0 ? platform::kLifelineMessage
                                              : std::uint16_t{protocol::kOpen}),
        std::vector<std::uint8_t>(i % 3 == 0 ? 0 : 28, 1), handles, Late()));
    EXPECT_EQ(Must(rude.Receive(Late())).type, protocol::kAbort);
  }
}

TEST_F(EndpointTest, EndsWhileClientsAreConnected) {
  EndpointOptions options;
  options.request_timeout = options.transfer_timeout = absl::Minutes(1);
  std::unique_ptr<Endpoint> endpoint = Start(options);
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  platform::Channel silent = Dial(endpoint->address());
  platform::Channel half = Dial(endpoint->address());
  Must(platform::SendLifeline(half, Late()));
  platform::Channel asking = Dial(endpoint->address());
  Ask(asking, published.ticket());
  Must(asking.Receive(Late()));
  const absl::Time begun = absl::Now();
  endpoint.reset();
  EXPECT_LT(absl::Now() - begun, absl::Seconds(30))
      << "it does not wait for their deadlines";
  for (platform::Channel* each : {&silent, &half}) {
    const platform::Message answer = Must(each->Receive(Late()));
    EXPECT_EQ(answer.type, protocol::kAbort);
    const absl::Status told = protocol::DecodeError(answer.payload, "it");
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
    EXPECT_TRUE(each->WaitForHangUp(Late()).ok());
  }
  EXPECT_TRUE(asking.WaitForHangUp(Late()).ok());
}

TEST_F(EndpointTest, RemovesItsSocketWhenItEnds) {
  if (!platform::kNativeHandleIsPosixFd) {
    GTEST_SKIP() << "here an address is no file";
  }
  std::unique_ptr<Endpoint> endpoint = Start();
  const std::string socket = endpoint->address();
  EXPECT_TRUE(std::filesystem::exists(socket)) << socket;
  endpoint.reset();
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST_F(EndpointTest, InADirectoryThatIsNotThereDoesNotStart) {
  EndpointOptions options;
  options.listener.directory = directory() + "/missing";
  EXPECT_FALSE(Endpoint::Start(options).ok());
}

// Starts an endpoint, forks, lets the fork end, and checks that it still
// serves. Uses no driver, which does not survive a fork.
int ForkWithAnEndpoint(const Args& args) {
  EndpointOptions options;
  options.listener.directory = args[0];
  std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  // Each fork meets the endpoint's threads at another point of their work.
  std::vector<platform::Channel> silent;
  for (int i = 0; i < 30; ++i) {
    silent.push_back(Dial(endpoint->address()));
    EXPECT_EQ(RunInFork([&endpoint] {
                endpoint.reset();
                return 0;
              }),
              0);
  }
  EXPECT_TRUE(std::filesystem::exists(endpoint->address()));
  platform::Channel client = Dial(endpoint->address());
  Must(protocol::SendOpen(client, {ShareKey{}}, Late()));
  const platform::Message answer = Must(client.Receive(Late()));
  EXPECT_EQ(answer.type, protocol::kAbort);
  return 0;
}
const bool kForkWithAnEndpoint =
    RegisterChild("fork-with-an-endpoint", &ForkWithAnEndpoint);

TEST_F(EndpointTest, InAForkedChildItsDestructorDoesNothing) {
  if (!MayFork()) GTEST_SKIP() << "this system has no fork";
  if (IsEmulated()) GTEST_SKIP() << kForksWithLocks;
  EXPECT_EQ(
      Child::Start("fork-with-an-endpoint", {listener_directory()}).Wait(), 0);
}

// Opens a ticket as another user; args[1] is the code that must come.
int OpenAsNobody(const Args& args) {
  BecomeNobody();
  const Here here;
  platform::PeerPolicy owners;
  for (std::size_t i = 2; i < args.size(); ++i) {
    owners.also_allowed.push_back(platform::UserId(args[i]));
  }
  const auto opened =
      OpenTicket(TestDriver(), args[0],
                 {.grants = {{Location::On(here.device), Readable().access}}},
                 Late(), owners);
  EXPECT_EQ(absl::StatusCodeToString(opened.status().code()), args[1])
      << opened.status();
  return 0;
}
const bool kOpenAsNobody = RegisterChild("open-as-nobody", &OpenAsNobody);

TEST_F(EndpointTest, APeerOfAnotherUserIsServedOnlyWhenBothSidesAllowIt) {
  if (!MayBecomeAnotherUser()) {
    GTEST_SKIP() << "this process cannot become another user";
  }
  OpenToEverybody(directory());
  const Allocation memory = MakePattern(kGranule, 4);
  const std::string me = platform::CurrentUser().text();
  {
    const std::unique_ptr<Endpoint> endpoint = Start();
    const Share published = Must(endpoint->Publish(memory.shareable()));
    EXPECT_EQ(Child::Start("open-as-nobody",
                           {published.ticket(), "PERMISSION_DENIED", me})
                  .Wait(),
              0);
    EXPECT_EQ(endpoint->statistics().served, 0u);
  }
  {
    EndpointOptions options;
    options.peers.also_allowed.push_back(platform::UserId("65534"));
    const std::unique_ptr<Endpoint> endpoint = Start(options);
    const Share published = Must(endpoint->Publish(memory.shareable()));
    EXPECT_EQ(Child::Start("open-as-nobody",
                           {published.ticket(), "PERMISSION_DENIED"})
                  .Wait(),
              0)
        << "the importer does not take memory from this user";
    EXPECT_EQ(
        Child::Start("open-as-nobody", {published.ticket(), "OK", me}).Wait(),
        0);
    ExpectSoon([&] { return endpoint->statistics().served == 1; });
  }
}

class Pitfall37 : public EndpointTest {};
TEST_F(Pitfall37, ASocketDirectoryGivenByNameServesWhoeverSharesIt) {
  EndpointOptions options;
  options.listener.directory = listener_directory();
  options.listener.name = "well-known";
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  EXPECT_EQ(endpoint->address(), platform::kNativeHandleIsPosixFd
                                     ? directory() + "/well-known"
                                     : "\\\\.\\pipe\\vmmshare-well-known");
  const Allocation memory = MakePattern(1024, 1);
  const Share published = Must(endpoint->Publish(memory.shareable()));
  const std::string file = directory() + "/ticket";
  std::ofstream(file) << published.ticket();
  EXPECT_EQ(Child::Start("open-file-and-write", {file}).Wait(), 0);
  ExpectPattern(memory.address(), 1024, 2);
}

}  // namespace
}  // namespace vmm::testing
