// A member of a barrier is killed, and a process that it forked, which may have
// its GPU context, goes on.
#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/forks_and_waits_posix.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/job/barrier.h"
#include "vmm/job/internal/barrier_state.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

// args: where to dial for the barrier and, after that, for the test.
int BarrierMemberThatForks(const std::vector<std::string>& args) {
  const Here here;
  const std::unique_ptr<Barrier> barrier =
      Must(Barrier::Join(here.device, Dial(args[0]), Late()));
  ForkAndWait(Dial(args[0]));
}
const bool kBarrierMemberThatForks =
    RegisterChild("barrier-member-that-forks", &BarrierMemberThatForks);

// args: where to dial for the test, and for the barrier, which it meets once.
int BarrierMemberThatMeetsAndForks(const std::vector<std::string>& args) {
  const Here here;
  const std::unique_ptr<Barrier> barrier =
      Must(Barrier::Join(here.device, Dial(args[1]), Late()));
  Must(barrier->MeetOnHost(Late()));
  ForkAndWait(Dial(args[0]));
}
const bool kBarrierMemberThatMeetsAndForks = RegisterChild(
    "barrier-member-that-meets-and-forks", &BarrierMemberThatMeetsAndForks);

class BarrierOutlived : public IpcTest {};

TEST_F(BarrierOutlived, StreamsWaitForTheEndOfWhatAKilledMemberForked) {
  const std::unique_ptr<FencePool> fences = Must(FencePool::Create(device));
  EndpointOptions where;
  where.listener.directory = listener_directory();
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(where));
  const Share served = Must(endpoint->Serve(fences->pool()));
  Child child = Child::Start("barrier-member-that-forks", {address()});
  std::vector<platform::Channel> members;
  members.push_back(Accept());
  auto [second, its] = Must(platform::Channel::Pair());
  members.push_back(std::move(second));
  std::future<absl::StatusOr<std::unique_ptr<Barrier>>> joined =
      std::async(std::launch::async, [&, channel = std::move(its)]() mutable {
        return Barrier::Join(device, std::move(channel), Late());
      });
  std::unique_ptr<Barrier> host =
      Must(Barrier::Host(*fences, served.ticket(), std::move(members), Late()));
  std::unique_ptr<Barrier> other = Must(joined.get());
  platform::Channel boss = Accept();
  Hear(boss);
  const Stream streams[2];
  Must(host->Meet(streams[0].get()));
  Must(other->Meet(streams[1].get()));
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);

  // All are told, and calls wait no more; what is on streams does.
  const absl::Status lost = host->WaitOnHost(Late());
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()),
              HasSubstr("rank 1 has ended, but a process that it forked"));
  EXPECT_EQ(host->status(), lost);
  EXPECT_EQ(host->Wait(streams[0].get()), lost);
  EXPECT_EQ(host->Meet(streams[0].get()), lost);
  const absl::Status told = other->WaitOnHost(Late());
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 1 "));
  EXPECT_EQ(other->Meet(streams[1].get()), told);
  absl::SleepFor(absl::Milliseconds(50));
  for (const Stream& stream : streams) {
    EXPECT_FALSE(stream.IsIdle()) << "somebody may still write";
  }
  boss.Close();
  for (const Stream& stream : streams) stream.Sync();
  other.reset();
  host.reset();
  ExpectSoon([] { return barrier::LeftAndWatched() == 0; });
}

// Nobody has the proof any more, nor asks for it.
TEST_F(BarrierOutlived, WhenRankZeroEndsBeforeTheProofNoStreamWaitsForEver) {
  Child host = Child::Start("barrier-host", {address(), listener_directory()});
  platform::Channel orders = Accept();
  const std::string there = Hear(orders);
  Child child =
      Child::Start("barrier-member-that-meets-and-forks", {address(), there});
  const std::unique_ptr<Barrier> barrier =
      Must(Barrier::Join(device, Dial(there), Late()));
  Must(barrier->MeetOnHost(Late()));
  platform::Channel boss = Accept();
  Hear(boss);
  for (const char* what : {"arrive", "leave"}) {
    Tell(orders, what, kText);
    EXPECT_EQ(Hear(orders), "OK");
  }
  const Stream stream;
  Must(barrier->Meet(stream.get()));
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);
  ExpectSoon([&] { return !barrier->status().ok(); });
  const absl::Status lost = barrier->status();
  EXPECT_THAT(std::string(lost.message()), HasSubstr(" has ended"));
  EXPECT_FALSE(stream.IsIdle()) << "somebody may still write";
  Tell(orders, "end", kText);
  EXPECT_EQ(host.Wait(), 0);
  ExpectSoon([&] { return stream.IsIdle(); });
  EXPECT_EQ(barrier->status(), lost);
  barrier->LetGo();  // Where it does not go on.
}

}  // namespace
}  // namespace vmm::testing
