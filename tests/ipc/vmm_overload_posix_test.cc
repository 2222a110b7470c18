// Endpoints without room because sockets outlive their processes, or because
// there are no descriptors.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/ipc/ask.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/descriptor_limit_posix.h"
#include "tests/support/open_handles.h"
#include "tests/support/receive_raw_posix.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGranted[] = "granted";

std::ptrdiff_t Threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

class OverloadPosix : public IpcTest {};

// Imports once it is told to, hands the connection of its lease to the test, and
// ends.
int LeaseAndHandOn(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  const ShareInvitation invitation = InvitationIn(args[1]);
  Hear(boss);
  platform::Channel owner = Dial(invitation.address);
  Must(protocol::SendOpen(owner, {invitation.key}, Late()));
  const absl::Status granted = protocol::ReceiveGranted(owner, Late()).status();
  if (!granted.ok()) {
    EXPECT_TRUE(absl::IsResourceExhausted(granted)) << granted;
    Tell(boss, std::string(granted.message()));
    return 0;
  }
  Must(protocol::ReceiveAll(
      owner, [](const protocol::Incoming&) { return absl::OkStatus(); },
      Late()));
  Tell(boss, kGranted);
  Must(boss.Send(kRawMemory, {}, {&owner.handle()}, Late()));
  // As a process that is killed: with its end the connection would end.
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}
const bool kLeaseAndHandOn =
    RegisterChild("lease-and-hand-on", &LeaseAndHandOn);

TEST_F(OverloadPosix, ConnectionsThatOutliveTheirProcessesAreCountedAndEnded) {
  EndpointOptions options;
  options.listener.directory = listener_directory();
  options.max_leases = 3;
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const std::ptrdiff_t threads = Threads();
  std::vector<platform::OsHandle> connections;
  int refused = 0;
  // All ask at once, before the end of the first is seen.
  std::vector<Child> children;
  std::vector<platform::Channel> channels;
  for (int i = 0; i < 8; ++i) {
    children.push_back(
        Child::Start("lease-and-hand-on", {address(), share.ticket()}));
    channels.push_back(Accept());
  }
  for (platform::Channel& channel : channels) Tell(channel);
  for (platform::Channel& channel : channels) {
    const std::string said = Hear(channel);
    if (said == kGranted) {
      connections.push_back(std::move(ReceiveRaw(channel).at(0)));
    } else {
      EXPECT_THAT(said, HasSubstr("the owner has 3 leases, its limit"));
      ++refused;
    }
  }
  for (Child& child : children) EXPECT_EQ(child.Wait(), 0);
  // The first may have been ended meanwhile, on a slow machine.
  EXPECT_GT(refused, 0);
  // With one that asks lifelines; more of these go at once.
  ExpectSoon([&] { return Threads() <= threads + 3 + 1 + 1; });
  Must(endpoint->WaitUntilAllReturned(Late()));
  // Though their sockets are open here.
  const ImportedAllocation imported =
      Must(OpenTicket(driver(), share.ticket(), {}, Late()));
  ExpectPattern(imported.address(), imported.size(), 4);
}

constexpr int kLeases = 20;

// Opens a ticket, and once it is told to, so many times more; holds all.
int LeaseOften(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  std::vector<ImportedAllocation> held;
  const auto open = [&] {
    held.push_back(Must(OpenTicket(TestDriver(), args[1], Readable(), Late())));
  };
  open();
  Tell(boss);
  Hear(boss);
  for (int i = 0; i < kLeases; ++i) open();
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return 0;
}
const bool kLeaseOften = RegisterChild("lease-often", &LeaseOften);

// As EndpointOptions::max_leases says, by which limits are chosen.
TEST_F(OverloadPosix, ALeaseCostsItsOwnerThreeDescriptors) {
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = listener_directory()}}));
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  Child child = Child::Start("lease-often", {address(), share.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  const std::size_t before = OpenHandleCount();
  Tell(channel);
  Hear(channel);
  EXPECT_EQ(endpoint->Leases().size(), kLeases + 1u);
  // Those of the memory are closed once they are sent.
  ExpectSoon([&] { return OpenHandleCount() <= before + 3 * kLeases; });
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
}

// Serves pattern 5 in directory args[1], with args[2] descriptors left.
int ServeAtTheLimit(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  int left = 0;
  EXPECT_TRUE(absl::SimpleAtoi(args[2], &left));
  EndpointOptions options;
  options.listener.directory = args[1];
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  WritePattern(memory.address(), memory.size(), 5);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const DescriptorLimit limit(left);
  Tell(boss, share.ticket());
  Must(boss.WaitForHangUp(Late()));
  return 0;
}
const bool kServeAtTheLimit =
    RegisterChild("serve-at-the-limit", &ServeAtTheLimit);

// A process whose answers of the driver's nobody has remembered yet.
// args: how many descriptors are left. Exit status 2: they were enough.
int AllocateAtTheLimit(const std::vector<std::string>& args) {
  const Here here;
  const AllocationOptions options = {
      .size = 1,
      .sharing = SharePolicy::AnyOf({kNativeKind, HandleKind::kLegacyIpc})};
  absl::StatusOr<Allocation> made = absl::UnknownError("");
  {
    const DescriptorLimit limit(std::stoi(args[0]));
    made = Allocation::Create(here.device, options);
  }
  if (!made.ok()) {
    EXPECT_TRUE(absl::IsResourceExhausted(made.status())) << made.status();
    EXPECT_THAT(std::string(made.status().message()),
                ::testing::HasSubstr("ulimit -n"));
  } else {
    EXPECT_EQ(made->kinds(), HandleKindSet{kNativeKind});
  }
  // What could not be had then is no answer for later.
  EXPECT_EQ(Must(Allocation::Create(here.device, options)).kinds(),
            HandleKindSet{kNativeKind});
  return made.ok() ? 2 : 0;
}
const bool kAllocateAtTheLimit =
    RegisterChild("allocate-at-the-limit", &AllocateAtTheLimit);

TEST_F(OverloadPosix, WithoutDescriptorsNoWeakerKindIsTaken) {
  int status = 0;
  for (int left = 0; status == 0; ++left) {
    SCOPED_TRACE(absl::StrCat(left, " descriptors left"));
    ASSERT_LT(left, 30);
    status = Child::Start("allocate-at-the-limit", {absl::StrCat(left)}).Wait();
  }
  EXPECT_EQ(status, 2);
}

TEST_F(OverloadPosix, AnOwnerWithoutDescriptorsNamesItsLimit) {
  bool served = false;
  for (int left = 0; !served; ++left) {
    SCOPED_TRACE(absl::StrCat(left, " descriptors left"));
    ASSERT_LT(left, 30);
    Child owner =
        Child::Start("serve-at-the-limit",
                     {address(), listener_directory(), absl::StrCat(left)});
    platform::Channel channel = Accept();
    const std::string ticket = Hear(channel);
    const absl::Time begun = absl::Now();
    const absl::StatusOr<ImportedAllocation> imported =
        OpenTicket(driver(), ticket, {}, absl::InfiniteFuture());
    EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
    served = imported.ok();
    if (served) {
      ExpectPattern(imported->address(), imported->size(), 5);
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(imported.status()))
          << imported.status();
      EXPECT_THAT(std::string(imported.status().message()),
                  ::testing::ContainsRegex(
                      "the owner refused: the owner may open [0-9]+ "
                      "descriptors \\(RLIMIT_NOFILE\\)"));
    }
    channel.Close();
    EXPECT_EQ(owner.Wait(), 0);
  }
}

// More than subscribers of one process that said no goodbye may be.
constexpr int kTries = 70;

// Opens the pool of args[1], and then the memory of the others at once, with ever
// more descriptors left, until it can.
int ImportAtTheLimit(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  const std::vector<std::string> tickets(args.begin() + 2, args.end());
  const std::function<absl::Status()> opens[] = {
      [&] {
        return ImportedPool::Subscribe(TestDriver(), args[1], {}, Late())
            .status();
      },
      [&] {
        return OpenTickets(TestDriver(), tickets, Readable(), Late()).status();
      }};
  for (const auto& open : opens) {
    absl::Status status = absl::UnknownError("not tried");
    for (int i = 0; i < 30 * kTries && !status.ok(); ++i) {
      const int left = i / kTries;
      {
        const DescriptorLimit limit(left);
        status = open();
      }
      if (status.ok()) continue;
      SCOPED_TRACE(absl::StrCat(left, " descriptors left"));
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
    }
    EXPECT_EQ(status, absl::OkStatus());
  }
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kImportAtTheLimit =
    RegisterChild("import-at-the-limit", &ImportAtTheLimit);

TEST_F(OverloadPosix, AnImporterWithoutDescriptorsIsKnownToKeepNothing) {
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = listener_directory()}}));
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(device, {.sharing = TestSharing()}));
  ServableDomain served = pool->InDomain(SharingDomain::kFirst);
  const Share publication = Must(endpoint->Serve(served));
  Args args = {address(), publication.ticket()};
  std::vector<Allocation> memory;
  std::vector<Share> shares;
  for (int i = 0; i < 3; ++i) {
    memory.push_back(MakePattern(kGranule, 6));
    shares.push_back(Must(endpoint->Publish(memory.back().shareable())));
    args.push_back(shares.back().ticket());
  }
  Child child = Child::Start("import-at-the-limit", args);
  platform::Channel channel = Accept();
  Hear(channel);
  // Before its end, which would prove it, too.
  Must(endpoint->WaitUntilAllReturned(Late()));
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
}

// Subscribes to the pool of args[1], and imports the block that it is told of when
// it has no descriptor left, and again when it has; or "ends" before.
int ImportWhatCameAtTheLimit(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  std::unique_ptr<ImportedPool> pool =
      Must(ImportedPool::Subscribe(TestDriver(), args[1], {}, Late()));
  PoolTicket ticket;
  absl::Status lacking;
  {
    const DescriptorLimit limit(0);
    Tell(boss);
    ticket = Must(DecodePoolTicket(Must(boss.Receive(Late())).payload));
    // Until it is not said any more that the segment is under way.
    const Deadline late(Late());
    do {
      lacking =
          pool->Import(ticket, absl::Now() + absl::Milliseconds(50)).status();
    } while (absl::EndsWith(lacking.message(), "has not come yet") &&
             !late.Passed());
    if (args[2] == "ends") {
      const absl::Time begin = absl::Now();
      pool.reset();
      EXPECT_LT(absl::Now() - begin, absl::Seconds(5)) << "it has 10 to try";
    }
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(lacking)) << lacking;
  EXPECT_THAT(std::string(lacking.message()),
              AllOf(HasSubstr("has not come yet: "), HasSubstr("ulimit -n")));
  if (pool == nullptr) return ::testing::Test::HasFailure() ? 1 : 0;
  const ImportedBlock block = Must(pool->Import(ticket, Late()));
  EXPECT_EQ(pool->connection(), absl::OkStatus());
  ExpectPattern(block.address(), block.size(), 8);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kImportWhatCameAtTheLimit =
    RegisterChild("import-what-came-at-the-limit", &ImportWhatCameAtTheLimit);

TEST_F(OverloadPosix, ASubscriberWithoutDescriptorsTakesASegmentLater) {
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start({.listener = {.directory = listener_directory()}}));
  for (const char* const then : {"goes on", "ends"}) {
    SCOPED_TRACE(then);
    const std::unique_ptr<Pool> pool =
        Must(Pool::Create(device, {.sharing = TestSharing()}));
    const Share publication = Must(endpoint->Serve(*pool));
    Child child = Child::Start("import-what-came-at-the-limit",
                               {address(), publication.ticket(), then});
    platform::Channel channel = Accept();
    Hear(channel);
    const CUdeviceptr block = Must(pool->Allocate(5000, nullptr));
    WritePattern(block, 5000, 8);
    const PoolTicketBytes ticket = EncodePoolTicket(Must(pool->Export(block)));
    Must(channel.Send(kGoOn, ticket, {}, Late()));
    EXPECT_EQ(child.Wait(), 0);
    Must(pool->Free(block, nullptr));
  }
}

}  // namespace
}  // namespace vmm::testing
