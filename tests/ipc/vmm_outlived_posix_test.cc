// Processes that had forked are killed while they have somebody's memory, and a
// process that they forked goes on writing to it: what they had is quarantined,
// and used again only after the end of that one, too.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/ipc/forks_and_waits_posix.h"
#include "tests/ipc/pool_ipc_test.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

// As in platform/ipc/peer_watch.cc.
constexpr absl::Duration kTeardown = absl::Seconds(2);
// For writes that must not be.
constexpr absl::Duration kLookFor = absl::Milliseconds(50);

// Memory of the host, where a forked child has its parent's mapping. What a GPU
// driver does with that in a fork is its own affair: there tests/kill has a
// kernel that goes on.
const ImportOptions kWritable = {.access = Access::kReadWrite,
                                 .host_access = Access::kReadWrite};

// In a forked process: writes to what its parent imported, if the CPU can, and
// says so; ends when the test hangs up. So does a context that the child of a
// killed process keeps.
[[noreturn]] void WriteUntilHangUp(platform::Channel& boss, CUdeviceptr at) {
  auto* const word = reinterpret_cast<volatile std::uint32_t*>(at);
  Tell(boss);
  while (absl::IsDeadlineExceeded(
      boss.WaitForHangUp(absl::Now() + absl::Microseconds(200)))) {
    if (OnHostMemoryDriver()) *word = *word + 1;
  }
  ::_exit(0);
}

// args: where to dial, a pool's string, and a ticket that is sent.
int SubscribeForkAndHold(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  const std::unique_ptr<ImportedPool> pool =
      Must(ImportedPool::Subscribe(TestDriver(), args[1], kWritable, Late()));
  const ImportedBlock block = Must(pool->Import(
      Must(DecodePoolTicket(Must(boss.Receive(Late())).payload)), Late()));
  if (::fork() == 0) WriteUntilHangUp(boss, block.address());
  for (;;) ::pause();
}
const bool kSubscribeForkAndHold =
    RegisterChild("subscribe-fork-and-hold", &SubscribeForkAndHold);

// args: where to dial, and a ticket.
int OpenForkAndHold(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  const ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), args[1], kWritable, Late()));
  if (::fork() == 0) WriteUntilHangUp(boss, memory.address());
  for (;;) ::pause();
}
const bool kOpenForkAndHold =
    RegisterChild("open-fork-and-hold", &OpenForkAndHold);

// Who owns memory and a pool, and forks once it is told; args: where to dial.
int ServeForkAndWait(const Args& args) {
  const Here here;
  platform::Channel boss = Dial(args[0]);
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = kGranule}));
  const std::unique_ptr<Pool> pool = Must(Pool::Create(here.device, {}));
  const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
  const Share of_memory = Must(endpoint->Publish(memory.shareable()));
  const Share of_pool = Must(endpoint->Serve(*pool));
  Tell(boss, of_memory.ticket());
  Tell(boss, of_pool.ticket());
  Hear(boss);
  ForkAndWait(std::move(boss));
}
const bool kServeForkAndWait =
    RegisterChild("serve-fork-and-wait", &ServeForkAndWait);

class Outlived : public PoolIpcTest {
 protected:
  // Whether somebody writes there.
  bool ChangesByItself(CUdeviceptr at, absl::Duration within) {
    if (!OnHostMemoryDriver()) return false;
    const auto read = [at] {
      std::uint32_t word = 0;
      EXPECT_EQ(TestDriver()->cuMemcpyDtoH(&word, at, sizeof(word)),
                CUDA_SUCCESS);
      return word;
    };
    const std::uint32_t before = read();
    const absl::Time until = absl::Now() + within;
    while (absl::Now() < until) {
      if (read() != before) return true;
    }
    return false;
  }
};

// The child has its parent's sockets, and answers nobody.
TEST_F(Outlived, AKilledOwnersEndIsSeenAtOnceThoughWhatItForkedLives) {
  Child owner = Child::Start("serve-fork-and-wait", {address()});
  platform::Channel channel = Accept();
  const std::string of_memory = Hear(channel);
  const std::string of_pool = Hear(channel);
  const ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), of_memory, kWritable, Late()));
  const std::unique_ptr<ImportedPool> pool =
      Must(ImportedPool::Subscribe(TestDriver(), of_pool, {}, Late()));
  EXPECT_TRUE(memory.lease().connection.ok());
  EXPECT_TRUE(pool->connection().ok());
  Tell(channel);
  Hear(channel);
  owner.Kill();
  EXPECT_EQ(owner.Wait(), Child::kKilled);

  EXPECT_TRUE(absl::IsUnavailable(memory.lease().connection))
      << memory.lease().connection;
  ExpectSoon([&] { return absl::IsUnavailable(pool->connection()); });
  const absl::Time begin = absl::Now();
  const absl::Status opened =
      OpenTicket(TestDriver(), of_memory, {}, Late()).status();
  EXPECT_TRUE(absl::IsNotFound(opened)) << opened;
  const absl::Status subscribed =
      ImportedPool::Subscribe(TestDriver(), of_pool, {}, Late()).status();
  EXPECT_TRUE(absl::IsNotFound(subscribed)) << subscribed;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(Outlived, AKilledPeersBlocksComeBackOnlyAfterTheEndOfWhatItForked) {
  PoolOptions options = SmallSegments(/*cap=*/4 * kMiB);
  options.host_numa_node = 0;
  UsePool(options);
  const Share publication = Serve();
  Child child = Child::Start("subscribe-fork-and-hold",
                             {address(), publication.ticket()});
  platform::Channel channel = Accept();
  const CUdeviceptr block = Take(4 * kMiB);
  Must(channel.Send(kText, EncodePoolTicket(Export(block)), {}, Late()));
  Hear(channel);
  Free(block);
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);

  // It is not handed on, by whatever looks for it: counted, and shown with why.
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(
        absl::IsResourceExhausted(pool_->Allocate(4096, nullptr).status()));
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(pool_->statistics().held, 4 * kMiB);
  EXPECT_EQ(pool_->statistics().quarantined, 4 * kMiB);
  ASSERT_EQ(pool_->Leases().size(), 1u);
  const Lease lease = pool_->Leases()[0].lease;
  EXPECT_EQ(lease.state, LeaseState::kQuarantined);
  EXPECT_THAT(
      lease.Describe(),
      HasSubstr("whose process has ended, but a process that it forked"));
  EXPECT_EQ(ChangesByItself(block, absl::Seconds(10)), OnHostMemoryDriver())
      << "or there is nothing to see";

  const absl::Time ends = absl::Now();
  channel.Close();
  absl::StatusOr<CUdeviceptr> again = absl::UnknownError("not tried");
  ExpectSoon([&] { return (again = pool_->Allocate(4 * kMiB, nullptr)).ok(); });
  EXPECT_EQ(*again, block);
  EXPECT_GE(absl::Now() - ends, kTeardown);
  EXPECT_FALSE(ChangesByItself(block, kLookFor));
  Free(block);
  ExpectAllIsFree();
}

TEST_F(Outlived, AKilledHoldersMemoryIsBackOnlyAfterTheEndOfWhatItForked) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule, .host_numa_node = 0}));
  const Share publication = Must(endpoint_->Publish(memory.shareable()));
  Child child =
      Child::Start("open-fork-and-hold", {address(), publication.ticket()});
  platform::Channel channel = Accept();
  Hear(channel);
  EXPECT_EQ(endpoint_->Leases()[0].lease.state, LeaseState::kHeld);
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled);
  const absl::Status held =
      endpoint_->WaitUntilAllReturned(absl::Now() + absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(held));
  EXPECT_THAT(
      std::string(held.message()),
      HasSubstr("whose process has ended, but a process that it forked"));
  ASSERT_EQ(endpoint_->Leases().size(), 1u);
  EXPECT_EQ(endpoint_->Leases()[0].lease.state, LeaseState::kQuarantined);
  EXPECT_EQ(ChangesByItself(memory.address(), absl::Seconds(10)),
            OnHostMemoryDriver());
  channel.Close();
  Must(endpoint_->WaitUntilAllReturned(Late()));
  EXPECT_FALSE(ChangesByItself(memory.address(), kLookFor));
}

}  // namespace
}  // namespace vmm::testing
