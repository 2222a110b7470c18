// A process that forks, or exits, while it has fences: the child has nothing
// of them, and the end is clean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "tests/ipc/ring_both_sides.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/fork.h"
#include "vmm/job/barrier.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_array.h"
#include "vmm/sync/fence_pool.h"

namespace {
// A forked child that exits has what its parent's threads held, and not these.
std::atomic<bool> leaks_are_the_parents = false;
}  // namespace

// AddressSanitizer asks it when a process exits.
extern "C" int __lsan_is_turned_off();   // NOLINT(bugprone-reserved-identifier)
extern "C" int __lsan_is_turned_off() {  // NOLINT(bugprone-reserved-identifier)
  return leaks_are_the_parents ? 1 : 0;
}

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

// Whether `child` comes to its end in a forked process.
bool EndsWell(const std::function<void()>& child) {
  return RunInFork([&child] {
           child();
           return 0;
         }) == 0;
}

// An owner and a subscriber in one process, each with a share in one fence.
struct Fences {
  explicit Fences(const std::string& directory)
      : endpoint(
            Must(Endpoint::Start({.listener = {.directory = directory}}))) {
    publication.emplace(Must(endpoint->Serve(pool->pool())));
    imported = Must(ImportedFencePool::Subscribe(
        TestDriver(), publication->ticket(), {}, Late()));
    ours.emplace(Must(pool->New()));
    theirs.emplace(Must(imported->Import(Must(pool->Export(*ours)), Late())));
    on_device.emplace(Must(array->At(0)));
  }

  Here here;
  std::unique_ptr<FencePool> pool = Must(FencePool::Create(here.device));
  std::unique_ptr<Endpoint> endpoint;
  std::optional<Share> publication;
  std::unique_ptr<ImportedFencePool> imported;
  Allocation memory = Must(Allocation::Create(here.device, {.size = 1}));
  std::unique_ptr<FenceArray> array =
      Must(FenceArray::Over(here.device, memory.address(), memory.size()));
  std::optional<Fence> on_device;
  std::optional<Fence> ours;
  std::optional<Fence> theirs;
};

void CheckRefused(const absl::Status& status) {
  platform::Check(absl::IsFailedPrecondition(status), status.ToString());
}

// In a process of its own, for the driver's sake; args: where to listen.
int ForkWithFences(const Args& args) {
  Fences fences(args[0]);
  Must(fences.theirs->SignalFromHost(1));
  EXPECT_TRUE(EndsWell([&] {
    for (Fence* fence : {&*fences.ours, &*fences.theirs, &*fences.on_device}) {
      CheckRefused(fence->Query().status());
      CheckRefused(fence->Signal(nullptr, 2));
      CheckRefused(fence->Wait(nullptr, 1));
      CheckRefused(fence->SignalFromHost(2));
      CheckRefused(fence->WaitOnHost(1, Late()));
      CheckRefused(fence->Abandon());
      CheckRefused(fence->Release());
    }
    fences.theirs.reset();
    fences.ours.reset();
    fences.on_device.reset();
    fences.array.reset();
    fences.imported.reset();
    fences.publication.reset();
    fences.endpoint.reset();
    fences.pool.reset();
  }));
  // All of it goes on.
  EXPECT_EQ(Must(fences.ours->Query()), 1u);
  EXPECT_TRUE(fences.imported->connection().ok());
  Must(fences.ours->SignalFromHost(2));
  Must(fences.theirs->WaitOnHost(2, Late()));
  Must(fences.on_device->SignalFromHost(1));
  EXPECT_EQ(Must(fences.on_device->Query()), 1u);
  Must(fences.ours->Release());
  EXPECT_EQ(fences.pool->pool().statistics().held, kFenceBytes);
  Must(fences.theirs->Release());
  const Fence next = Must(fences.pool->New());
  EXPECT_EQ(Must(next.Query()), 0u);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kForkWithFences = RegisterChild("fork-with-fences", &ForkWithFences);

// Ends by exit() with fences alive, some of them in the destructors of static
// objects; args: where to listen.
int ExitWithFences(const Args& args) {
  static std::optional<Fences> fences;
  fences.emplace(args[0]);
  Must(fences->ours->SignalFromHost(1));
  static auto* const left = new Fences(args[0]);
  Must(left->theirs->WaitOnHost(0, Late()));
  Must(left->on_device->SignalFromHost(1));
  return 0;
}
const bool kExitWithFences = RegisterChild("exit-with-fences", &ExitWithFences);

std::atomic<int> looks = 0;

// Ends by exit() while a thread waits for a fence, as a daemon thread of an
// interpreter does. The thread goes on once static objects have been destroyed.
// args: where to listen.
int ExitWhileAThreadWaits(const Args& args) {
  // Registered before all that is used below, and so called after its end.
  platform::Check(std::atexit([] {
                    const int seen = looks;
                    while (looks < seen + 100) std::this_thread::yield();
                    std::_Exit(0);
                  }) == 0,
                  "atexit");
  static auto* const left = new Fences(args[0]);
  std::thread([] {
    for (;;) {
      platform::Check(absl::IsDeadlineExceeded(left->ours->WaitOnHost(
                          1, Deadline::In(absl::Microseconds(100)))),
                      "a fence that nobody signals was passed");
      ++looks;
    }
  }).detach();
  while (looks == 0) std::this_thread::yield();
  return 0;
}
const bool kExitWhileAThreadWaits =
    RegisterChild("exit-while-a-thread-waits", &ExitWhileAThreadWaits);

// Ends by exit() as rank 0 of barriers that it has left, one before and one in the
// destructors of static objects, and other ranks have not. args: where to listen.
int ExitAfterABarrier(const Args& args) {
  static Fences fences(args[0]);
  static std::unique_ptr<Barrier> hosts[2];
  static std::unique_ptr<Barrier> others[2];
  for (int i = 0; i < 2; ++i) {
    auto [ours, theirs] = Must(platform::Channel::Pair());
    std::thread joining([i, channel = std::move(theirs)]() mutable {
      others[i] =
          Must(Barrier::Join(fences.here.device, std::move(channel), Late()));
    });
    std::vector<platform::Channel> members;
    members.push_back(std::move(ours));
    hosts[i] = Must(Barrier::Host(*fences.pool, fences.publication->ticket(),
                                  std::move(members), Late()));
    joining.join();
  }
  hosts[0].reset();
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kExitAfterABarrier =
    RegisterChild("exit-after-a-barrier", &ExitAfterABarrier);

// As ForkWithFences, with both sides of a ring, and items under way; args: where to
// listen.
int ForkWithARing(const Args& args) {
  const Here here;
  RingHomeOptions where;
  where.endpoint.listener.directory = args[0];
  RingSides sides = Must(
      OpenBothSides(here.device, where, {.buffers = 2, .bytes = 4096}, Late()));
  CUstream stream = nullptr;
  EXPECT_EQ(TestDriver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  const RingBuffer out = Must(sides.writer->Acquire(stream, Late()));
  Must(sides.writer->Publish(out, stream, Late()));
  const RingBuffer in = Must(sides.reader->Acquire(stream, Late()));
  EXPECT_TRUE(EndsWell([&] {
    sides.writer.reset();
    sides.reader.reset();
    sides.home.reset();
  }));
  // All of it goes on.
  Must(sides.reader->Release(in, stream));
  Must(sides.writer->Finish(Late()));
  Must(sides.reader->Finish(Late()));
  EXPECT_EQ(TestDriver()->cuStreamDestroy(stream), CUDA_SUCCESS);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kForkWithARing = RegisterChild("fork-with-a-ring", &ForkWithARing);

// The same with a barrier of two ranks; args: where to listen.
int ForkWithABarrier(const Args& args) {
  Fences fences(args[0]);
  auto [ours, theirs] = Must(platform::Channel::Pair());
  std::unique_ptr<Barrier> other;
  std::thread joining([&, channel = std::move(theirs)]() mutable {
    other = Must(Barrier::Join(fences.here.device, std::move(channel), Late()));
  });
  std::vector<platform::Channel> members;
  members.push_back(std::move(ours));
  std::unique_ptr<Barrier> host = Must(Barrier::Host(
      *fences.pool, fences.publication->ticket(), std::move(members), Late()));
  joining.join();
  EXPECT_TRUE(EndsWell([&] {
    host.reset();
    other.reset();
  }));
  // All of it goes on.
  Must(host->ArriveOnHost());
  Must(other->MeetOnHost(Late()));
  Must(host->WaitOnHost(Late()));
  Must(host->status());
  // One that was left, and is watched for the others yet.
  host.reset();
  EXPECT_TRUE(EndsWell([] {
    leaks_are_the_parents = true;
    std::exit(0);
  }));
  other.reset();
  ExpectSoon([&] { return fences.pool->statistics().fences == 1; });
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kForkWithABarrier =
    RegisterChild("fork-with-a-barrier", &ForkWithABarrier);

using FenceFork = IpcTest;

TEST_F(FenceFork, AChildHasNoBarrierAndItsParentGoesOn) {
  EXPECT_EQ(Child::Start("fork-with-a-barrier", {listener_directory()}).Wait(),
            0);
}

TEST_F(FenceFork, AChildHasNoRingAndItsParentGoesOn) {
  EXPECT_EQ(Child::Start("fork-with-a-ring", {listener_directory()}).Wait(), 0);
}

TEST_F(FenceFork, AChildHasNoFenceAndItsParentGoesOn) {
  EXPECT_EQ(Child::Start("fork-with-fences", {listener_directory()}).Wait(), 0);
}

class Pitfall30 : public IpcTest {};
TEST_F(Pitfall30, AnExitWithFencesAliveIsClean) {
  EXPECT_EQ(Child::Start("exit-with-fences", {listener_directory()}).Wait(), 0);
}
TEST_F(Pitfall30, AnExitWhileABarrierIsWatchedIsClean) {
  EXPECT_EQ(Child::Start("exit-after-a-barrier", {listener_directory()}).Wait(),
            0);
}
TEST_F(Pitfall30, AnExitWhileAThreadWaitsIsClean) {
  EXPECT_EQ(
      Child::Start("exit-while-a-thread-waits", {listener_directory()}).Wait(),
      0);
}

}  // namespace
}  // namespace vmm::testing
