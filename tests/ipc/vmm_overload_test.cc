// More peers than an endpoint or a keeper has room for: who waits gets in, and
// nobody takes all the room.
#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/mutex.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As long as connections that ask for nothing stay: no test takes longer.
constexpr absl::Duration kIdle = absl::Minutes(1);

class Overload : public KeeperTest {
 protected:
  std::unique_ptr<Endpoint> StartEndpoint(EndpointOptions options) {
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
  // Connections that ask for nothing.
  static std::vector<platform::Channel> Idle(const std::string& address,
                                             int count) {
    std::vector<platform::Channel> all;
    for (int i = 0; i < count; ++i) all.push_back(Dial(address));
    return all;
  }
  static void ExpectAllEndWell(std::vector<Child>& children) {
    for (Child& child : children) EXPECT_EQ(child.Wait(Late()), 0);
  }
};

// Opens a ticket and subscribes to a pool, a few times, each with a deadline.
int OpenAndSubscribe(const Args& args) {
  const Here here;
  for (int i = 0; i < 3; ++i) {
    Must(OpenTicket(TestDriver(), args[0], {}, Late()));
    Must(ImportedPool::Subscribe(TestDriver(), args[1], {}, Late()));
  }
  return 0;
}
const bool kOpenAndSubscribe =
    RegisterChild("open-and-subscribe", &OpenAndSubscribe);

TEST_F(Overload, AllWhoWaitAreServed) {
  EndpointOptions options;
  options.request_timeout = kIdle;
  options.max_sessions = 3;
  options.max_leases = 3;
  const std::unique_ptr<Endpoint> endpoint = StartEndpoint(options);
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const Share subscription = Must(endpoint->Serve(*pool));
  // Nobody comes in before all have been turned away.
  std::vector<platform::Channel> idle = Idle(endpoint->address(), 2);
  std::vector<Child> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(Child::Start("open-and-subscribe",
                                    {share.ticket(), subscription.ticket()}));
  }
  ExpectSoon([&] { return endpoint->statistics().refused >= 16; });
  idle.clear();
  ExpectAllEndWell(children);
}

TEST_F(Overload, WhoIsTurnedAwayUntilTheDeadlineIsToldWhy) {
  EndpointOptions options;
  options.request_timeout = kIdle;
  options.max_sessions = 2;
  options.max_process_sessions = 2;
  const std::unique_ptr<Endpoint> endpoint = StartEndpoint(options);
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const std::vector<platform::Channel> idle = Idle(endpoint->address(), 2);
  const absl::Time begun = absl::Now();
  const absl::Status refused =
      OpenTicket(driver(), share.ticket(), {}, begun + absl::Seconds(2))
          .status();
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(1990));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the owner refused: the owner has 2 connections"));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("times until the deadline"));
}

int OpenOnce(const Args& args) {
  const Here here;
  const ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), args[0], {}, absl::InfiniteFuture()));
  ExpectPattern(memory.address(), memory.requested_size(), 4);
  return 0;
}
const bool kOpenOnce = RegisterChild("open-once", &OpenOnce);

TEST_F(Overload, OneProcessLeavesRoomForOthers) {
  EndpointOptions options;
  options.request_timeout = kIdle;
  options.max_sessions = 8;
  const std::unique_ptr<Endpoint> endpoint = StartEndpoint(options);
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const std::vector<platform::Channel> greedy = Idle(endpoint->address(), 40);
  ExpectSoon([&] { return endpoint->statistics().refused == 36; });
  const absl::Status refused =
      OpenTicket(driver(), share.ticket(), {}, absl::InfiniteFuture()).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has 4 connections of the owner's, the limit of one "
                        "process"));
  // Tried once, and not turned away.
  Child other = Child::Start("open-once", {share.ticket()});
  EXPECT_EQ(other.Wait(), 0);
}

TEST_F(Overload, OneProcessLeavesLeasesForOthers) {
  EndpointOptions options;
  options.max_leases = 4;
  const std::unique_ptr<Endpoint> endpoint = StartEndpoint(options);
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const auto open = [&] {
    return OpenTicket(driver(), share.ticket(), {}, absl::InfiniteFuture());
  };
  const ImportedAllocation first = Must(open());
  const ImportedAllocation second = Must(open());
  const absl::Status refused = open().status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has 2 leases of the owner's, the limit of one"));
  Child other = Child::Start("open-once", {share.ticket()});
  EXPECT_EQ(other.Wait(), 0);
}

// Puts memory under a name of its own and drops it, each over a connection of
// its own.
int PutAndDrop(const Args& args) {
  const Here here;
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  const std::string name = absl::StrCat("of-", platform::CurrentProcessId());
  for (int i = 0; i < 3; ++i) {
    // One at a time: who holds one and waits for another may stand in its own way.
    std::optional<KeeperClient> client =
        Must(KeeperClient::Connect({.address = args[0]}, Late()));
    Must(client->Put(name, memory.shareable(), Late()));
    client.reset();
    client = Must(KeeperClient::Connect({.address = args[0]}, Late()));
    Must(client->Drop(name, Late()));
  }
  return 0;
}
const bool kPutAndDrop = RegisterChild("put-and-drop", &PutAndDrop);

TEST_F(Overload, AllClientsOfAKeeperThatWaitAreServed) {
  keeper::ServerOptions options;
  options.max_sessions = 6;
  options.max_process_sessions = 2;
  const std::unique_ptr<keeper::Server> server = Start(options);
  std::vector<platform::Channel> idle = Idle(keeper_address(), 2);
  std::vector<Child> children;
  for (int i = 0; i < 12; ++i) {
    children.push_back(Child::Start("put-and-drop", {keeper_address()}));
  }
  ExpectAllEndWell(children);
  EXPECT_EQ(server->names(), 0u);
}

TEST_F(Overload, AClientThatWasTurnedAwayCanAskAgain) {
  keeper::ServerOptions options;
  options.first_request_timeout = kIdle;
  options.max_process_sessions = 1;
  platform::Mutex mutex;
  std::vector<std::string> log;
  options.log = [&mutex, &log](const std::string& line) {
    const platform::MutexLock lock(mutex);
    if (absl::StrContains(line, "is turned away")) log.push_back(line);
  };
  const std::unique_ptr<keeper::Server> server = Start(options);
  std::vector<platform::Channel> idle = Idle(keeper_address(), 1);
  KeeperClient client = Client();
  const absl::Status refused =
      client.List(absl::Now() + absl::Seconds(2)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  {
    // However often it has come.
    const platform::MutexLock lock(mutex);
    EXPECT_THAT(log,
                ElementsAre(AllOf(
                    HasSubstr(absl::StrCat(
                        "process ", platform::CurrentProcessId(), " of user ",
                        platform::CurrentUser().text(), " is turned away")),
                    HasSubstr("the limit of one process"),
                    HasSubstr("--max-connections"))));
  }
  idle.clear();
  Must(client.List(Late()));
}

}  // namespace
}  // namespace vmm::testing
