// Hundreds of processes that want something of one server at the same moment,
// beside one that takes all the connections it can get: all are served.
// VMMSHARE_CROWD says how many.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "tests/ipc/keeper_ipc_test.h"
#include "tests/support/emulator.h"
#include "tests/support/how_many.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

constexpr absl::Duration kPatience = absl::Seconds(30);
// What one of a crowd says of itself.
struct Told {
  bool served = false;
  bool refused_in_time = false;  // Typed, and not before the deadline.
  std::int64_t slowest_ms = 0;
};

// Runs `once` with a deadline, and notes in `told` what came of it.
bool Note(const std::function<absl::Status(absl::Time)>& once, Told& told) {
  const absl::Time begun = absl::Now();
  const absl::Status done = once(begun + kPatience);
  const absl::Duration took = absl::Now() - begun;
  told.slowest_ms = std::max(told.slowest_ms, absl::ToInt64Milliseconds(took));
  if (done.ok()) return true;
  told.refused_in_time =
      took >= kPatience - absl::Seconds(1) &&
      (absl::IsResourceExhausted(done) || absl::IsDeadlineExceeded(done));
  std::cerr << done << "\n";
  return false;
}

Told OpenAndSubscribe(const Args& args) {
  const Here here;
  Told told;
  for (int i = 0; i < 5; ++i) {
    if (!Note(
            [&](absl::Time deadline) {
              return OpenTicket(TestDriver(), args[0], {}, deadline).status();
            },
            told) ||
        !Note(
            [&](absl::Time deadline) {
              return ImportedPool::Subscribe(TestDriver(), args[1], {},
                                             deadline)
                  .status();
            },
            told)) {
      return told;
    }
  }
  told.served = true;
  return told;
}

Told PutAndDrop(const Args& args) {
  const Here here;
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  const std::string name = absl::StrCat("of-", platform::CurrentProcessId());
  Told told;
  told.served = Note(
      [&](absl::Time deadline) -> absl::Status {
        ASSIGN_OR_RETURN(KeeperClient client,
                         KeeperClient::Connect({.address = args[0]}, deadline));
        RETURN_IF_ERROR(client.Put(name, memory.shareable(), deadline));
        RETURN_IF_ERROR(
            client.Attach(name, TestDriver(), {}, deadline).status());
        return client.Drop(name, deadline);
      },
      told);
  return told;
}

// Forks args[1] processes, which all begin at once, and tells the address
// args[0] a line for each. It has used no driver itself: a fork shares nothing.
int BeACrowd(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  std::uint64_t count = 0;
  platform::Check(absl::SimpleAtoi(args[1], &count), "a number of processes");
  const Args rest(args.begin() + 3, args.end());
  std::array<int, 2> begin{}, said{};
  platform::Check(::pipe(begin.data()) == 0 && ::pipe(said.data()) == 0,
                  "pipe() failed");
  for (std::uint64_t i = 0; i < count; ++i) {
    const pid_t pid = ::fork();
    platform::Check(pid >= 0, "fork() failed");
    if (pid != 0) continue;
    ::alarm(240);
    ::close(begin[1]);
    char nothing = 0;
    platform::Check(::read(begin[0], &nothing, 1) == 0, "the crowd begins");
    const Told told =
        args[2] == "keeper" ? PutAndDrop(rest) : OpenAndSubscribe(rest);
    const ssize_t written = ::write(said[1], &told, sizeof told);
    ::_exit(written == sizeof told ? 0 : 1);
  }
  ::close(begin[0]);
  ::close(begin[1]);
  ::close(said[1]);
  std::uint64_t served = 0, refused = 0;
  Told told, slowest;
  while (::read(said[0], &told, sizeof told) == sizeof told) {
    served += told.served ? 1 : 0;
    refused += told.refused_in_time ? 1 : 0;
    slowest.slowest_ms = std::max(slowest.slowest_ms, told.slowest_ms);
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    int status = 0;
    platform::Check(::wait(&status) > 0, "wait() failed");
    EXPECT_EQ(status, 0);
  }
  Tell(boss, absl::StrCat(slowest.slowest_ms));
  EXPECT_EQ(served + refused, count);
  EXPECT_GE(served, count - count / 20);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kBeACrowd = RegisterChild("crowd", &BeACrowd);

// Has as many connections to args[1] as it can get, and asks for nothing, until
// the address args[0] hangs up.
int BeGreedy(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  std::deque<platform::Channel> all;
  do {
    absl::StatusOr<platform::Channel> one =
        platform::Channel::Connect(args[1], {}, Late());
    if (one.ok()) all.push_back(*std::move(one));
    if (all.size() > 100) all.pop_front();
  } while (absl::IsDeadlineExceeded(
      boss.WaitForHangUp(absl::Now() + absl::Milliseconds(1))));
  return 0;
}
const bool kBeGreedy = RegisterChild("greedy", &BeGreedy);

class Crowd : public KeeperTest {
 protected:
  void SetUp() override {
    if (IsEmulated()) GTEST_SKIP() << kStartsNothing;
  }
  // Each has a context of its own, which takes half a GB of a GPU.
  static std::uint64_t Size() {
    return HowMany("VMMSHARE_CROWD", OnHostMemoryDriver() ? 250 : 40);
  }
  void ExpectAllAreServed(std::uint64_t count, const std::string& server,
                          Args what) {
    Child greedy = Child::Start("greedy", {address(), server});
    platform::Channel to_greedy = Accept();
    what.insert(what.begin(), {address(), absl::StrCat(count)});
    Child crowd = Child::Start("crowd", what);
    platform::Channel from_crowd = Accept();
    const std::string slowest = Must(Hear(from_crowd, 4 * kPatience));
    std::cout << count << " processes; the slowest was served in " << slowest
              << " ms\n";
    EXPECT_EQ(crowd.Wait(), 0);
    to_greedy.Close();
    EXPECT_EQ(greedy.Wait(), 0);
  }

 private:
  static absl::StatusOr<std::string> Hear(platform::Channel& channel,
                                          absl::Duration patience) {
    ASSIGN_OR_RETURN(const platform::Message message,
                     channel.Receive(absl::Now() + patience));
    return std::string(message.payload.begin(), message.payload.end());
  }
};

TEST_F(Crowd, OfImportersIsServedBesideAGreedyProcess) {
  EndpointOptions options;
  options.listener.directory = listener_directory();
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  const Allocation memory = MakePattern(kGranule, 4);
  const Share share = Must(endpoint->Publish(memory.shareable()));
  const Share subscription = Must(endpoint->Serve(*pool));
  ExpectAllAreServed(Size(), endpoint->address(),
                     {"endpoint", share.ticket(), subscription.ticket()});
  EXPECT_GT(endpoint->statistics().refused, 0u);
}

TEST_F(Crowd, OfAKeepersClientsIsServedBesideAGreedyProcess) {
  const std::unique_ptr<keeper::Server> server = Start();
  ExpectAllAreServed((Size() + 1) / 2, keeper_address(),
                     {"keeper", keeper_address()});
  EXPECT_EQ(server->names(), 0u);
}

}  // namespace
}  // namespace vmm::testing
