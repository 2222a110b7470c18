// Calls that wait while the time of day is set: none ends early for it, and
// none waits longer.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>

#include "fabric/exchange.h"
#include "tests/ipc/pool_ipc_test.h"
#include "tests/support/stepped_clock_posix.h"
#include "vmm/keeper/keeper.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

class SteppedClock : public PoolIpcTest {};

TEST_F(SteppedClock, DoesNotMoveTheDeadlinesOfAnExchange) {
  auto [here, there] = Must(platform::Channel::Pair());
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    return ReceiveAllocations(here, driver(), {}, deadline).status();
  });
  const Allocation memory = Make(kGranule);
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    auto [owner, silent] = Must(platform::Channel::Pair());
    return SendAllocation(owner, memory.shareable(), deadline);
  });
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    auto client = Must(KeeperClient::Connect({.address = address()}, deadline));
    return client.List(deadline).status();
  });
}

TEST_F(SteppedClock, DoesNotMoveTheDeadlinesForLeases) {
  const Allocation memory = Make(kGranule);
  const Share published = Must(endpoint_->Publish(memory.shareable()));
  const ImportedAllocation opened =
      Must(OpenTicket(driver(), published.ticket(), {}, Late()));
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    return endpoint_->WaitUntilAllReturned(deadline);
  });

  const Share served = Serve();
  const std::unique_ptr<ImportedPool> pool = Subscribe(served);
  const CUdeviceptr block = Take(256);
  {
    const ImportedBlock held = Must(pool->Import(Export(block), Late()));
    ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
      return pool_->WaitUntilAllReturned(deadline);
    });
  }
  Free(block);
}

TEST_F(SteppedClock, DoesNotMoveTheDeadlinesOfAFenceAndOfARound) {
  const auto fences = Must(FencePool::Create(device));
  Fence fence = Must(fences->New());
  ExpectToWaitOutASteppedClock(
      [&](absl::Time deadline) { return fence.WaitOnHost(1, deadline); });
  // A rank whose peer never comes; the program waits as it is told.
  ExpectToWaitOutASteppedClock([&](absl::Time deadline) {
    fabric::CallbackExchange exchange(
        {.job = "job",
         .size = 2,
         .put = [](auto&&...) { return absl::OkStatus(); },
         .fence = [](absl::Time) { return absl::OkStatus(); },
         .get = [](int rank, const std::string&,
                   absl::Time by) -> absl::StatusOr<fabric::Bytes> {
           if (rank == 0) return fabric::Bytes();
           absl::SleepFor(by - absl::Now());
           return absl::DeadlineExceededError("");
         }});
    return fabric::Gather(exchange, "word", {}, deadline).status;
  });
}

// As on Linux before 6.5: no message brings a reference to its sender, but the time
// at which it was sent.
platform::Channel AdoptWithoutReferences(int socket) {
  platform::Channel channel =
      Must(platform::Channel::Adopt(platform::OsHandle::Adopt(socket), {}));
  constexpr int kPassPidfd = 76;  // SO_PASSPIDFD, which such a kernel lacks.
  const int off = 0;
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, kPassPidfd, &off, sizeof(off));
  EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof(on)), 0);
  return channel;
}

TEST_F(SteppedClock, DoesNotMakeAPeerAnotherProcess) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  platform::Channel ours = AdoptWithoutReferences(fds[0]);
  platform::Channel theirs =
      Must(platform::Channel::Adopt(platform::OsHandle::Adopt(fds[1]), {}));
  // The peer, which is this process, when the clock is set while a message of it
  // is on its way.
  const auto open_peer = [&](absl::Duration step) {
    Must(theirs.Send(1, {}, {}, Late()));
    StepClock(step);
    const absl::Status received = ours.Receive(Late()).status();
    auto opened = ours.OpenPeer();
    StepClock(absl::ZeroDuration());
    Must(received);
    return opened;
  };
  const std::int64_t self = platform::CurrentProcessId();
  EXPECT_EQ(Must(open_peer(absl::ZeroDuration())).pid(), self);
  // It seems to have been sent in an hour, or when it was: this process was
  // there both times.
  EXPECT_EQ(Must(open_peer(absl::Hours(-1))).pid(), self);
  // Or an hour ago, before this process.
  const absl::Status opened = open_peer(absl::Hours(1)).status();
  EXPECT_TRUE(absl::IsUnimplemented(opened)) << opened;
  EXPECT_THAT(std::string(opened.message()),
              ::testing::HasSubstr("the time of day was set"));
  EXPECT_EQ(Must(open_peer(absl::ZeroDuration())).pid(), self);
}

}  // namespace
}  // namespace vmm::testing
