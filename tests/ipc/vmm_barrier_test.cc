// Barriers of several processes: what a round means, and what becomes of it
// when a member ends, leaves, stands still or talks nonsense.
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/ipc/lifeline.h"
#include "platform/os/os_handle.h"
#include "tests/gpu/fill_graph.h"
#include "tests/gpu/held_stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/how_many.h"
#include "vmm/job/barrier.h"
#include "vmm/job/internal/barrier_protocol.h"
#include "vmm/job/internal/barrier_state.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Args = std::vector<std::string>;

constexpr absl::Duration kMoment = absl::Milliseconds(20);
// A machine that many tests run on may be as late as this.
constexpr absl::Duration kLate = absl::Seconds(1);
constexpr absl::Duration kNoWait = absl::Seconds(10);

// Rounds, of five operations each: a stream of a GPU has room for some 1,000 that
// wait, and who puts more there waits itself.
constexpr int kOften = 100;

// A member with a stream, and what it saw of the others.
class Member {
 public:
  Member() {
    EXPECT_EQ(TestDriver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
              CUDA_SUCCESS);
  }
  ~Member() {
    Sync();
    barrier.reset();
    EXPECT_EQ(TestDriver()->cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  void Sync() const {
    EXPECT_EQ(TestDriver()->cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  bool IsIdle() const {
    return TestDriver()->cuStreamQuery(stream) == CUDA_SUCCESS;
  }
  // Whether its stream is let go: a test that fails is to end, too.
  bool GoesOn() const {
    const absl::Time until = Late();
    while (!IsIdle() && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return IsIdle();
  }
  void MeetOften(int rounds) const {
    for (int i = 0; i < rounds; ++i) Must(barrier->Meet(stream));
  }

  // Each round every member writes its word of `words` and then reads all: with
  // no wait of a host. Answers how many were not what that round wrote.
  std::size_t Play(CUdeviceptr words, std::uint64_t rounds) const {
    const platform::Driver& driver = TestDriver();
    const std::uint32_t size = barrier->size();
    const Allocation seen = Must(Allocation::Create(
        FirstDevice(),
        {.size = rounds * size * 4, .sharing = SharePolicy::Private()}));
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      EXPECT_EQ(
          driver->cuMemsetD32Async(words + 4 * barrier->rank(),
                                   static_cast<unsigned>(round), 1, stream),
          CUDA_SUCCESS);
      Must(barrier->Meet(stream));
      EXPECT_EQ(
          driver->cuMemcpyDtoDAsync(seen.address() + (round - 1) * size * 4,
                                    words, size * 4, stream),
          CUDA_SUCCESS);
      // Before anybody writes the next.
      Must(barrier->Meet(stream));
    }
    Sync();
    std::vector<std::uint32_t> values(rounds * size);
    EXPECT_EQ(
        driver->cuMemcpyDtoH(values.data(), seen.address(), values.size() * 4),
        CUDA_SUCCESS);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += values[i] != i / size + 1;
    }
    return wrong;
  }

  CUstream stream = nullptr;
  std::unique_ptr<Barrier> barrier;
};

// args: where to dial for orders and, after that, for the barrier.
int BarrierMemberMain(const Args& args) {
  const Here here;
  platform::Channel orders = Dial(args[0]);
  Member me;
  std::unique_ptr<ImportedAllocation> words;
  const auto act = [&](const std::string& what) -> std::string {
    if (absl::StartsWith(what, "join")) {  // There, or at another address.
      const std::string at = what.size() > 5 ? what.substr(5) : args[0];
      absl::StatusOr<std::unique_ptr<Barrier>> joined =
          Barrier::Join(here.device, Dial(at), Late());
      if (!joined.ok()) return joined.status().ToString();
      me.barrier = *std::move(joined);
      return "OK";
    }
    if (what == "words") {
      words = std::make_unique<ImportedAllocation>(Must(ReceiveAllocation(
          orders, TestDriver(), {.access = Access::kReadWrite}, Late())));
      return "OK";
    }
    if (what == "play") {
      return absl::StrCat(me.Play(words->address(), 50), " wrong");
    }
    if (what == "arrive") return me.barrier->Arrive(me.stream).ToString();
    if (what == "meet") return me.barrier->Meet(me.stream).ToString();
    if (what == "meet-on-host")
      return me.barrier->MeetOnHost(Late()).ToString();
    if (what == "rounds") {  // On both, until somebody is missing.
      for (;;) {
        absl::Status met = me.barrier->Meet(me.stream);
        me.Sync();
        if (met.ok()) met = me.barrier->MeetOnHost(Late());
        if (!met.ok()) break;
      }
      ExpectSoon([&] { return !me.barrier->status().ok(); });
      return me.barrier->status().ToString();
    }
    if (what == "meet-often") {
      me.MeetOften(kOften);
      return "OK";
    }
    if (what == "idle") return me.IsIdle() ? "idle" : "busy";
    if (what == "goes-on") return me.GoesOn() ? "yes" : "no";
    if (what == "sync") {
      me.Sync();
      return "OK";
    }
    if (what == "let-go") {
      me.barrier->LetGo();
      return "OK";
    }
    if (what == "leave") {
      me.barrier.reset();
      return "OK";
    }
    if (what == "let-go-and-leave") {  // With no time between.
      me.barrier->LetGo();
      me.barrier.reset();
      return "OK";
    }
    if (what == "status-now") return me.barrier->status().ToString();
    if (what == "status") {
      // It is told, sooner or later.
      ExpectSoon([&] { return !me.barrier->status().ok(); });
      return me.barrier->status().ToString();
    }
    platform::Die(absl::StrCat("a member was told: ", what));
  };
  for (;;) {
    absl::StatusOr<platform::Message> message = orders.Receive(Late());
    if (!message.ok()) return ::testing::Test::HasFailure() ? 1 : 0;
    Tell(orders, act({message->payload.begin(), message->payload.end()}),
         kText);
  }
}
const bool kBarrierMember = RegisterChild("barrier-member", &BarrierMemberMain);

// Rank 0 in a process of its own, with two others; args: where to dial, and in
// which directory to listen. It meets them once, and then comes to rounds and
// leaves as it is told, or is killed.
int BarrierHostMain(const Args& args) {
  const Here here;
  const std::unique_ptr<FencePool> fences =
      Must(FencePool::Create(here.device));
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
  const Share served = Must(endpoint->Serve(fences->pool()));
  platform::Listener listener =
      Must(platform::Listener::Bind({.directory = args[1]}, {}));
  platform::Channel orders = Dial(args[0]);
  Tell(orders, listener.address());
  std::vector<platform::Channel> members;
  members.push_back(Must(listener.Accept(Late())));
  members.push_back(Must(listener.Accept(Late())));
  std::unique_ptr<Barrier> barrier =
      Must(Barrier::Host(*fences, served.ticket(), std::move(members), Late()));
  Must(barrier->MeetOnHost(Late()));
  for (;;) {
    const std::string what = Hear(orders);
    if (what == "end") return ::testing::Test::HasFailure() ? 1 : 0;
    if (what == "arrive") Must(barrier->ArriveOnHost());
    if (what == "leave") barrier.reset();
    Tell(orders, "OK", kText);
  }
}
const bool kBarrierHost = RegisterChild("barrier-host", &BarrierHostMain);

struct Process {
  Child child;
  platform::Channel orders;
};

class BarrierTest : public IpcTest {
 protected:
  void SetUp() override {
    fences_ = Must(FencePool::Create(device));
    EndpointOptions where;
    where.listener.directory = listener_directory();
    endpoint_ = Must(Endpoint::Start(where));
    served_.emplace(Must(endpoint_->Serve(fences_->pool())));
  }
  void TearDown() override {
    me_.reset();
    for (Process& other : others_) {
      other.orders.Close();
      EXPECT_EQ(other.child.Wait(), killed_ == &other ? Child::kKilled : 0);
    }
    // What watched for them holds memory until it has seen that.
    ExpectSoon([] { return barrier::LeftAndWatched() == 0; });
  }
  void Start(std::size_t others) {
    for (std::size_t i = 0; i < others; ++i) {
      Child child = Child::Start("barrier-member", {address()});
      platform::Channel orders = Accept();
      others_.push_back({std::move(child), std::move(orders)});
    }
  }
  // Rank 0 here, and so many others.
  void Gather(std::size_t others) {
    Start(others);
    std::vector<platform::Channel> members;
    for (Process& other : others_) {
      Order(other, "join");
      members.push_back(Accept());
    }
    me_.emplace();
    me_->barrier = Must(
        Barrier::Host(*fences_, served_->ticket(), std::move(members), Late()));
    for (Process& other : others_) EXPECT_EQ(Hear(other.orders), "OK");
  }
  // Two others here, and rank 0 is a process, too. All have met once.
  Process GatherAroundAnother() {
    Start(2);
    Child child =
        Child::Start("barrier-host", {address(), listener_directory()});
    Process host{std::move(child), Accept()};
    const std::string there = Hear(host.orders);
    for (Process& other : others_) Order(other, "join " + there);
    for (Process& other : others_) EXPECT_EQ(Hear(other.orders), "OK");
    for (Process& other : others_) Order(other, "meet-on-host");
    for (Process& other : others_) EXPECT_EQ(Hear(other.orders), "OK");
    return host;
  }
  static void Order(Process& other, const std::string& what) {
    Tell(other.orders, what, kText);
  }
  static std::string Ask(Process& other, const std::string& what) {
    Order(other, what);
    return Hear(other.orders);
  }
  void Kill(Process& other) {
    other.child.Kill();
    killed_ = &other;
  }
  absl::Status HostOf(std::vector<platform::Channel> members,
                      absl::Time deadline = Late()) {
    return Barrier::Host(*fences_, served_->ticket(), std::move(members),
                         deadline)
        .status();
  }
  static void ExpectOk(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }
  static void ExpectFails(absl::StatusCode code, const absl::Status& status,
                          const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  std::unique_ptr<FencePool> fences_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Share> served_;
  std::vector<Process> others_;
  Process* killed_ = nullptr;
  std::optional<Member> me_;
};

TEST_F(BarrierTest, WhoHasMetSeesWhatAllWroteBefore) {
  Gather(3);
  Allocation words = Make(kGranule);
  for (Process& other : others_) {
    Order(other, "words");
    ExpectOk(SendAllocation(other.orders, words.shareable(), Late()));
    EXPECT_EQ(Hear(other.orders), "OK");
  }
  for (Process& other : others_) Order(other, "play");
  EXPECT_EQ(me_->Play(words.address(), 50), 0u);
  for (Process& other : others_) EXPECT_EQ(Hear(other.orders), "0 wrong");
  EXPECT_EQ(me_->barrier->round(), 100u);
}

TEST_F(BarrierTest, AStreamWaitsForTheLast) {
  Gather(2);
  ExpectOk(me_->barrier->Wait(me_->stream));
  me_->Sync();  // Round 0 is reached from the start.
  ExpectOk(me_->barrier->Meet(me_->stream));
  EXPECT_EQ(Ask(others_[0], "arrive"), "OK");
  absl::SleepFor(kMoment);
  EXPECT_FALSE(me_->IsIdle());
  EXPECT_EQ(Ask(others_[1], "arrive"), "OK");
  me_->Sync();
}

// The second would otherwise arrive for both, and the first take that back.
TEST_F(BarrierTest, StreamsOfOneMemberArriveInTheOrderOfTheCalls) {
  Gather(1);
  {
    HeldStream held(device);
    ExpectOk(me_->barrier->Meet(held.get()));
    ExpectOk(me_->barrier->Meet(me_->stream));
    EXPECT_EQ(Ask(others_[0], "meet"), "OK");
    absl::SleepFor(kMoment);
    EXPECT_EQ(Ask(others_[0], "idle"), "busy");
    held.Release();
    EXPECT_EQ(Ask(others_[0], "goes-on"), "yes");
    EXPECT_FALSE(me_->IsIdle());
    EXPECT_EQ(Ask(others_[0], "meet"), "OK");
    EXPECT_EQ(Ask(others_[0], "goes-on"), "yes");
    EXPECT_TRUE(me_->GoesOn());
    me_->barrier->LetGo();  // Where they do not, this test is to end.
  }
  EXPECT_EQ(me_->barrier->round(), 2u);
}

// Each launch of the graph would come to the same round, and nobody before.
TEST_F(BarrierTest, NobodyMeetsOnACapturedStream) {
  if (!FillGraph::Supported()) GTEST_SKIP() << "this driver has no graphs";
  Gather(1);
  Barrier& barrier = *me_->barrier;
  const platform::Driver& driver = TestDriver();
  ASSERT_EQ(
      driver->cuStreamBeginCapture(me_->stream, CU_STREAM_CAPTURE_MODE_RELAXED),
      CUDA_SUCCESS);
  for (const absl::Status& refused :
       {barrier.Meet(me_->stream), barrier.Arrive(me_->stream),
        barrier.Wait(me_->stream)}) {
    ExpectFails(absl::StatusCode::kFailedPrecondition, refused,
                "is being captured into a graph");
  }
  EXPECT_EQ(barrier.round(), 0u);
  CUgraph graph = nullptr;
  ASSERT_EQ(driver->cuStreamEndCapture(me_->stream, &graph), CUDA_SUCCESS);
  CUgraphExec made = nullptr;
  ASSERT_EQ(driver->cuGraphInstantiate(&made, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuGraphDestroy(graph), CUDA_SUCCESS);
  // Nothing is in it that waits.
  EXPECT_EQ(driver->cuGraphLaunch(made, me_->stream), CUDA_SUCCESS);
  EXPECT_TRUE(me_->GoesOn());
  EXPECT_EQ(driver->cuGraphExecDestroy(made), CUDA_SUCCESS);
  ExpectOk(barrier.Meet(me_->stream));
  EXPECT_EQ(Ask(others_[0], "meet"), "OK");
  EXPECT_TRUE(me_->GoesOn());
  EXPECT_EQ(barrier.round(), 1u);
  barrier.LetGo();  // Where they have not met, this test is to end.
}

TEST_F(BarrierTest, HostsMeetAndSayWhoHasNotCome) {
  Gather(2);
  Order(others_[0], "meet-on-host");
  const absl::Time deadline = absl::Now() + kMoment;
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              me_->barrier->MeetOnHost(deadline), "in round 1");
  EXPECT_LT(absl::Now() - deadline, kNoWait);
  // Once rank 1 has come.
  absl::Status waited;
  ExpectSoon([&] {
    waited = me_->barrier->WaitOnHost(absl::Now() + kMoment);
    return absl::StrContains(waited.message(), "rank 2 in round 1");
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
  EXPECT_LT(LeastLate([&](absl::Time until) {
              ExpectFails(absl::StatusCode::kDeadlineExceeded,
                          me_->barrier->WaitOnHost(until), "rank 2 in round 1");
            }),
            kLate);
  Order(others_[1], "meet-on-host");
  ExpectOk(me_->barrier->WaitOnHost(Late()));
  EXPECT_EQ(Hear(others_[0].orders), "OK");
  EXPECT_EQ(Hear(others_[1].orders), "OK");
  EXPECT_EQ(me_->barrier->round(), 1u);
}

TEST_F(BarrierTest, AHostMeetsStreams) {
  Gather(1);
  EXPECT_EQ(Ask(others_[0], "meet"), "OK");
  ExpectOk(me_->barrier->MeetOnHost(Late()));
  EXPECT_EQ(Ask(others_[0], "sync"), "OK");
}

TEST_F(BarrierTest, AMemberThatStandsStillIsNamedAtTheDeadline) {
  Gather(2);
  others_[0].child.Stop();
  Order(others_[1], "meet-on-host");
  const absl::Time deadline = absl::Now() + kMoment;
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              me_->barrier->MeetOnHost(deadline), "rank 1 in round 1");
  EXPECT_LT(absl::Now() - deadline, kNoWait);
  EXPECT_LT(LeastLate([&](absl::Time until) {
              ExpectFails(absl::StatusCode::kDeadlineExceeded,
                          me_->barrier->WaitOnHost(until), "rank 1 in round 1");
            }),
            kLate);
  others_[0].child.Continue();
  EXPECT_EQ(Ask(others_[0], "meet-on-host"), "OK");
  ExpectOk(me_->barrier->WaitOnHost(Late()));
  EXPECT_EQ(Hear(others_[1].orders), "OK");
}

TEST_F(BarrierTest, AllLearnWhichMemberWasKilledAndTheirStreamsGoOn) {
  Gather(3);
  for (Process* other : {&others_[0], &others_[1]}) {
    EXPECT_EQ(Ask(*other, "meet"), "OK");
  }
  ExpectOk(me_->barrier->Meet(me_->stream));
  EXPECT_FALSE(me_->IsIdle());
  Kill(others_[2]);
  // Nobody has to call anything for that.
  me_->Sync();
  EXPECT_EQ(Ask(others_[0], "sync"), "OK");
  EXPECT_EQ(Ask(others_[1], "sync"), "OK");
  ExpectSoon([&] { return !me_->barrier->status().ok(); });
  const absl::Status status = me_->barrier->status();
  ExpectFails(absl::StatusCode::kUnavailable, status, "rank 3 has ended");
  EXPECT_EQ(me_->barrier->WaitOnHost(Late()), status);
  EXPECT_EQ(me_->barrier->Meet(me_->stream), status);
  EXPECT_EQ(me_->barrier->MeetOnHost(Late()), status);
  EXPECT_THAT(Ask(others_[0], "status"),
              AllOf(StartsWith("UNAVAILABLE"), HasSubstr("rank 3 has ended")));
  EXPECT_THAT(Ask(others_[1], "meet-on-host"), HasSubstr("rank 3 has ended"));
}

// What those that are behind signal once they are let go comes over the ends that
// let go those that are ahead.
TEST_F(BarrierTest, StreamsThatAreAheadGoOnWhenAMemberIsKilled) {
  Gather(3);
  EXPECT_EQ(Ask(others_[0], "meet-often"), "OK");
  for (int i = 0; i < kOften / 2; ++i) EXPECT_EQ(Ask(others_[1], "meet"), "OK");
  me_->MeetOften(kOften);
  Kill(others_[2]);
  EXPECT_EQ(Ask(others_[0], "goes-on"), "yes");
  EXPECT_TRUE(me_->GoesOn());
  me_->barrier->LetGo();  // Where it does not, this test is to end.
}

// The others are told that it has left, and not that it let go.
TEST_F(BarrierTest, StreamsThatAreAheadGoOnWhenAMemberLetsGoAndLeaves) {
  Gather(3);
  EXPECT_EQ(Ask(others_[0], "meet-often"), "OK");
  for (int i = 0; i < kOften / 2; ++i) EXPECT_EQ(Ask(others_[1], "meet"), "OK");
  me_->MeetOften(kOften);
  EXPECT_EQ(Ask(others_[2], "let-go-and-leave"), "OK");
  EXPECT_EQ(Ask(others_[0], "goes-on"), "yes");
  EXPECT_TRUE(me_->GoesOn());
  me_->barrier->LetGo();  // Where it does not, this test is to end.
}

// At whatever it is just doing.
TEST_F(BarrierTest, AMemberThatIsKilledAtAnyMomentStopsNobody) {
  const std::uint64_t times = HowMany("VMMSHARE_TEST_KILLS", 15);
  for (std::uint64_t i = 0; i < times; ++i) {
    SCOPED_TRACE(i);
    Gather(2);
    for (Process& other : others_) Order(other, "rounds");
    for (std::uint64_t round = 0; round <= i * 3; ++round) {
      ExpectOk(me_->barrier->Meet(me_->stream));
      me_->Sync();
      ExpectOk(me_->barrier->MeetOnHost(Late()));
    }
    Kill(others_[1]);
    absl::Status met;
    while (met.ok()) {
      met = me_->barrier->Meet(me_->stream);
      me_->Sync();
      if (met.ok()) met = me_->barrier->MeetOnHost(Late());
    }
    ExpectSoon([&] { return !me_->barrier->status().ok(); });
    ExpectFails(absl::StatusCode::kUnavailable, me_->barrier->status(),
                "rank 2 has ended");
    EXPECT_THAT(Hear(others_[0].orders), AllOf(StartsWith("UNAVAILABLE"),
                                               HasSubstr("rank 2 has ended")));
    TearDown();
    others_.clear();
    EXPECT_EQ(fences_->statistics().fences, 0u);
  }
}

TEST_F(BarrierTest, AHostThatWaitsIsToldAtOnceThatAMemberWasKilled) {
  Gather(2);
  Order(others_[0], "meet-on-host");
  ExpectOk(me_->barrier->ArriveOnHost());
  Kill(others_[1]);
  ExpectFails(absl::StatusCode::kUnavailable, me_->barrier->WaitOnHost(Late()),
              "rank 2 has ended");
  EXPECT_THAT(Hear(others_[0].orders), HasSubstr("rank 2 has ended"));
}

TEST_F(BarrierTest, AllLearnThatRankZeroWasKilled) {
  Process host = GatherAroundAnother();
  for (Process& other : others_) EXPECT_EQ(Ask(other, "meet"), "OK");
  host.child.Kill();
  EXPECT_EQ(host.child.Wait(), Child::kKilled);
  for (Process& other : others_) {
    EXPECT_EQ(Ask(other, "sync"), "OK");
    EXPECT_THAT(Ask(other, "status"),
                AllOf(StartsWith("UNAVAILABLE"), HasSubstr("rank 0 ")));
  }
}

TEST_F(BarrierTest, WhoHasLeftIsMissedOnlyInLaterRounds) {
  Gather(2);
  EXPECT_EQ(Ask(others_[0], "arrive"), "OK");
  EXPECT_EQ(Ask(others_[0], "sync"), "OK");
  EXPECT_EQ(Ask(others_[0], "leave"), "OK");
  // The round that it arrived at is complete when the third comes.
  ExpectOk(me_->barrier->Meet(me_->stream));
  EXPECT_EQ(Ask(others_[1], "meet-on-host"), "OK");
  me_->Sync();
  ExpectOk(me_->barrier->WaitOnHost(Late()));
  ExpectOk(me_->barrier->status());
  ExpectFails(absl::StatusCode::kUnavailable, me_->barrier->MeetOnHost(Late()),
              "rank 1 has left");
  EXPECT_THAT(Ask(others_[1], "meet-on-host"),
              AllOf(StartsWith("UNAVAILABLE"), HasSubstr("rank 1 has left")));
}

// By rank 0 alone the others learn of each other.
TEST_F(BarrierTest, WhoIsKilledAfterRankZeroHasLeftIsNoticed) {
  Gather(3);
  ExpectOk(me_->barrier->Arrive(me_->stream));
  me_.reset();
  EXPECT_EQ(Ask(others_[0], "meet"), "OK");
  EXPECT_EQ(Ask(others_[1], "leave"), "OK");
  EXPECT_EQ(Ask(others_[0], "status-now"), "OK");
  Kill(others_[2]);
  EXPECT_EQ(Ask(others_[0], "goes-on"), "yes");
  EXPECT_THAT(Ask(others_[0], "status"),
              AllOf(StartsWith("UNAVAILABLE"), HasSubstr("rank 3 has ended")));
  EXPECT_EQ(Ask(others_[0], "let-go"), "OK");  // Where it does not go on.
}

TEST_F(BarrierTest, RankZeroThatHasLeftKeepsNothingOnceTheOthersHave) {
  Gather(2);
  me_.reset();
  EXPECT_EQ(fences_->statistics().fences, 3u);
  EXPECT_EQ(Ask(others_[0], "leave"), "OK");
  EXPECT_EQ(Ask(others_[1], "leave"), "OK");
  ExpectSoon([&] { return fences_->statistics().fences == 0; });
}

// Who has left may go with the pool, and end.
TEST_F(BarrierTest, WhenTheProcessOfARankZeroThatLeftEndsNobodyWaitsForEver) {
  Process host = GatherAroundAnother();
  for (const char* what : {"arrive", "leave"}) {
    EXPECT_EQ(Ask(host, what), "OK");
  }
  EXPECT_EQ(Ask(others_[0], "meet"), "OK");
  absl::SleepFor(kMoment);
  EXPECT_EQ(Ask(others_[0], "status-now"), "OK");
  Order(host, "end");
  EXPECT_EQ(host.child.Wait(), 0);
  EXPECT_EQ(Ask(others_[0], "goes-on"), "yes");
  EXPECT_THAT(Ask(others_[0], "status-now"),
              AllOf(StartsWith("UNAVAILABLE: rank 0 has left, and its process "
                               "has ended before rank "),
                    HasSubstr(" had come to round 2")));
  EXPECT_THAT(Ask(others_[1], "meet-on-host"),
              StartsWith("UNAVAILABLE: rank 0 has left, and its process"));
  EXPECT_EQ(Ask(others_[0], "let-go"), "OK");  // Where it does not go on.
}

TEST_F(BarrierTest, WhatIsCompleteStaysSoWhenTheProcessOfRankZeroEnds) {
  Process host = GatherAroundAnother();
  for (const char* what : {"arrive", "leave"}) {
    EXPECT_EQ(Ask(host, what), "OK");
  }
  for (Process& other : others_) EXPECT_EQ(Ask(other, "meet"), "OK");
  for (Process& other : others_) EXPECT_EQ(Ask(other, "sync"), "OK");
  Order(host, "end");
  EXPECT_EQ(host.child.Wait(), 0);
  absl::SleepFor(10 * kMoment);
  for (Process& other : others_) {
    EXPECT_EQ(Ask(other, "status-now"), "OK");
    EXPECT_THAT(Ask(other, "meet"), StartsWith("UNAVAILABLE: rank 0 has left"));
  }
}

TEST_F(BarrierTest, LettingGoEndsItForAll) {
  Gather(2);
  ExpectOk(me_->barrier->Meet(me_->stream));
  EXPECT_EQ(Ask(others_[0], "meet"), "OK");
  EXPECT_EQ(Ask(others_[1], "let-go"), "OK");
  me_->Sync();
  EXPECT_EQ(Ask(others_[0], "sync"), "OK");
  ExpectFails(absl::StatusCode::kAborted, me_->barrier->Wait(me_->stream),
              "the barrier was let go");
  EXPECT_THAT(Ask(others_[0], "meet"), StartsWith("ABORTED"));
  EXPECT_THAT(Ask(others_[1], "meet"),
              StartsWith("ABORTED: the barrier was let go by LetGo()"));
}

// Who lets go of what is broken already does not change why.
TEST_F(BarrierTest, TheFirstReasonIsKept) {
  Gather(1);
  Kill(others_[0]);
  ExpectSoon([&] { return !me_->barrier->status().ok(); });
  me_->barrier->LetGo();
  ExpectFails(absl::StatusCode::kUnavailable, me_->barrier->status(),
              "rank 1 has ended");
  ExpectFails(absl::StatusCode::kUnavailable, me_->barrier->ArriveOnHost(),
              "rank 1 has ended");
}

TEST_F(BarrierTest, OfFencesThatCannotBeSharedIsRefused) {
  const std::unique_ptr<FencePool> fences =
      Must(FencePool::Create(device, {.sharing = SharePolicy::Private()}));
  auto [theirs, member] = Must(platform::Channel::Pair());
  std::vector<platform::Channel> members;
  members.push_back(std::move(theirs));
  const absl::Status status =
      Barrier::Host(*fences, "", std::move(members), Late()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("private"));
  // The member is offered nothing, and no fence is left.
  EXPECT_TRUE(absl::IsUnavailable(member.Receive(Late()).status()));
  EXPECT_EQ(fences->statistics().fences, 0u);
}

TEST_F(BarrierTest, ABarrierOfOneOrOfTooManyIsAnInvalidArgument) {
  ExpectFails(absl::StatusCode::kInvalidArgument, HostOf({}), "1 to 63 others");
  std::vector<platform::Channel> many;
  for (std::uint32_t i = 0; i < kMaxBarrierMembers; ++i) {
    many.push_back(Must(platform::Channel::Pair()).first);
  }
  ExpectFails(absl::StatusCode::kInvalidArgument, HostOf(std::move(many)),
              "64 others");
}

// What a member may answer to an offer, and what comes of it.
TEST_F(BarrierTest, AMemberThatAnswersSomethingElseIsNamed) {
  struct Case {
    std::function<void(platform::Channel&)> answer;
    absl::StatusCode code;
    const char* words;
  };
  const Case cases[] = {
      {[](platform::Channel& c) { c.Close(); }, absl::StatusCode::kUnavailable,
       "rank 2"},
      {[](platform::Channel&) {}, absl::StatusCode::kDeadlineExceeded,
       "rank 2 did not join"},
      {[](platform::Channel& c) { Tell(c, "x", 7); },
       absl::StatusCode::kDataLoss, "rank 2 answered"},
      {[](platform::Channel& c) {
         Must(c.Send(barrier::kBarrierBye, {}, {}, Late()));
       },
       absl::StatusCode::kUnavailable, "rank 2 did not join"},
      {[](platform::Channel& c) {
         Must(protocol::SendError(c, protocol::kRefused,
                                  absl::ResourceExhaustedError("full"),
                                  Late()));
       },
       absl::StatusCode::kResourceExhausted, "rank 2 refused: full"},
  };
  for (const Case& one : cases) {
    auto [first, good] = Must(platform::Channel::Pair());
    auto [second, bad] = Must(platform::Channel::Pair());
    ExpectOk(good.Send(barrier::kBarrierJoined, {}, {}, Late()));
    ExpectOk(platform::SendLifeline(good, Late()));
    one.answer(bad);
    std::vector<platform::Channel> members;
    members.push_back(std::move(first));
    members.push_back(std::move(second));
    const bool waits = one.code == absl::StatusCode::kDeadlineExceeded;
    ExpectFails(
        one.code,
        HostOf(std::move(members), waits ? absl::Now() + kMoment : Late()),
        one.words);
    // The one that had joined learns it.
    EXPECT_EQ(Must(good.Receive(Late())).type, barrier::kBarrierOffer);
    Must(platform::ReceiveLifeline(good, Late()));
    EXPECT_EQ(Must(good.Receive(Late())).type, barrier::kBarrierBye);
  }
}

TEST_F(BarrierTest, AMemberThatCannotJoinTellsRankZeroWhy) {
  const auto told = [&](const std::vector<std::uint8_t>& offered,
                        bool sends_lifeline, absl::StatusCode code,
                        const char* words) {
    auto [host, member] = Must(platform::Channel::Pair());
    ExpectOk(host.Send(barrier::kBarrierOffer, offered, {}, Late()));
    if (sends_lifeline) {
      ExpectOk(platform::SendLifeline(host, Late()));
    } else {
      Tell(host, "x", 7);
    }
    ExpectFails(code, Barrier::Join(device, std::move(member), Late()).status(),
                words);
    const platform::Message answer = Must(host.Receive(Late()));
    EXPECT_EQ(answer.type, protocol::kRefused);
    ExpectFails(code, protocol::DecodeError(answer.payload, "rank 1"), words);
  };
  const Fence fences[] = {Must(fences_->New()), Must(fences_->New()),
                          Must(fences_->New())};
  barrier::Offer offer;
  offer.pool = served_->ticket();
  offer.rank = 2;
  for (const Fence& fence : fences) {
    offer.fences.push_back(Must(fences_->Export(fence)));
  }
  std::vector<std::uint8_t> newer = EncodeOffer(offer);
  newer[0] = 3;
  told(newer, true, absl::StatusCode::kUnimplemented,
       "Use the same release in all ranks");
  if (platform::kNativeHandleIsPosixFd) {  // On Windows there are none.
    told(EncodeOffer(offer), false, absl::StatusCode::kDataLoss,
         "lifeline was expected");
  }
  // With some of the fences, and not its own.
  offer.fences.back().generation += 2;
  told(EncodeOffer(offer), true, absl::StatusCode::kFailedPrecondition, "");
}

// Only rank 0 tells of others. A member that does is taken for one that ended.
TEST_F(BarrierTest, AMemberThatTellsOfOthersBreaksTheBarrier) {
  auto [theirs, member] = Must(platform::Channel::Pair());
  ExpectOk(member.Send(barrier::kBarrierJoined, {}, {}, Late()));
  ExpectOk(platform::SendLifeline(member, Late()));
  std::vector<platform::Channel> members;
  members.push_back(std::move(theirs));
  const std::unique_ptr<Barrier> host = Must(
      Barrier::Host(*fences_, served_->ticket(), std::move(members), Late()));
  ExpectOk(member.Send(barrier::kBarrierGone, barrier::EncodeGone({1, true}),
                       {}, Late()));
  ExpectSoon([&] { return !host->status().ok(); });
  ExpectFails(absl::StatusCode::kDataLoss, host->status(),
              "rank 1 sent a message of type");
}

TEST_F(BarrierTest, WhoIsOfferedNoBarrierSaysWhy) {
  struct Case {
    std::uint16_t type;
    std::vector<std::uint8_t> payload;
    const char* answer;
  };
  barrier::Offer offer{1, "nonsense", {}};
  Fence fence = Must(fences_->New());
  offer.fences.assign(2, Must(fences_->Export(fence)));
  const Case cases[] = {
      {7, {}, "DATA_LOSS: a message of type 0x7"},
      {barrier::kBarrierOffer, {1, 0, 0}, "DATA_LOSS: no barrier is offered"},
      {barrier::kBarrierOffer,
       {1, 0, 0, 0},
       "UNIMPLEMENTED: a barrier of version 1 is offered"},
      {barrier::kBarrierOffer, barrier::EncodeOffer(offer),
       "INVALID_ARGUMENT: not a usable pool string"},
  };
  Start(1);
  for (const Case& one : cases) {
    Order(others_[0], "join");
    platform::Channel channel = Accept();
    ExpectOk(channel.Send(one.type, one.payload, {}, Late()));
    platform::SendLifeline(channel, Late()).IgnoreError();
    EXPECT_THAT(Hear(others_[0].orders), StartsWith(one.answer));
  }
}

// A rank 0 that sends what has no place.
TEST_F(BarrierTest, NonsenseBreaksTheBarrier) {
  struct Case {
    std::uint16_t type;
    std::vector<std::uint8_t> payload;
  };
  const Case cases[] = {{7, {}},
                        {barrier::kBarrierGone, {}},
                        {barrier::kBarrierGone, barrier::EncodeGone({2, true})},
                        {barrier::kBarrierOffer, {}}};
  Start(1);
  for (const Case& one : cases) {
    Order(others_[0], "join");
    platform::Channel channel = Accept();
    Fence first = Must(fences_->New());
    Fence second = Must(fences_->New());
    ExpectOk(channel.Send(
        barrier::kBarrierOffer,
        barrier::EncodeOffer(
            {1,
             served_->ticket(),
             {Must(fences_->Export(first)), Must(fences_->Export(second))}}),
        {}, Late()));
    ExpectOk(platform::SendLifeline(channel, Late()));
    EXPECT_EQ(Must(channel.Receive(Late())).type, barrier::kBarrierJoined);
    EXPECT_EQ(Hear(others_[0].orders), "OK");
    ExpectOk(channel.Send(one.type, one.payload, {}, Late()));
    EXPECT_THAT(Ask(others_[0], "status"), StartsWith("DATA_LOSS"));
    EXPECT_THAT(Ask(others_[0], "meet"), StartsWith("DATA_LOSS"));
    EXPECT_EQ(Ask(others_[0], "leave"), "OK");
  }
}

}  // namespace
}  // namespace vmm::testing
