// A process that forks while it owns a pool, or has imported one: the child has
// nothing of it, closes nothing, and the parent goes on.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/ipc/pool_ipc_test.h"
#include "tests/support/fork.h"
#include "tests/support/same_process_id_posix.h"
#include "vmm/share/internal/protocol.h"

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

void ForkWithAPoolOf(const Here& here, const std::string& directory) {
  std::unique_ptr<Pool> pool = Must(Pool::Create(here.device, {}));
  EndpointOptions options;
  options.listener.directory = directory;
  std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  std::optional<Share> publication(Must(endpoint->Serve(*pool)));
  std::unique_ptr<ImportedPool> imported = Must(
      ImportedPool::Subscribe(TestDriver(), publication->ticket(), {}, Late()));
  std::vector<CUdeviceptr> blocks;
  std::vector<ImportedBlock> held;
  for (std::uint64_t i = 0; i < 10; ++i) {
    blocks.push_back(Must(pool->Allocate(4096, nullptr)));
    WritePattern(blocks[i], 4096, i);
    held.push_back(
        Must(imported->Import(Must(pool->Export(blocks[i])), Late())));
  }
  // Freed, and kept from reuse by what this process holds alone.
  for (CUdeviceptr block : blocks) Must(pool->Free(block, nullptr));
  EXPECT_EQ(pool->statistics().held, 40960u);

  // The child ends all that it sees, in the order of a program's end.
  EXPECT_TRUE(EndsWell([&] {
    held.clear();
    imported.reset();
    publication.reset();
    endpoint.reset();
    pool.reset();
  }));
  EXPECT_EQ(pool->statistics().held, 40960u) << "the holds are the parent's";
  EXPECT_EQ(pool->statistics().peers, 1u);
  EXPECT_TRUE(imported->connection().ok()) << imported->connection();

  // All of it goes on: memory, tickets, pushes and new subscribers.
  for (std::uint64_t i = 0; i < 10; ++i) {
    ExpectPattern(held[i].address(), 4096, i);
  }
  const CUdeviceptr large = Must(pool->Allocate(100 * kMiB, nullptr));
  {
    const ImportedBlock block =
        Must(imported->Import(Must(pool->Export(large)), Late()));
    const auto another = Must(ImportedPool::Subscribe(
        TestDriver(), publication->ticket(), {}, Late()));
    Must(another->Import(Must(pool->Export(large)), Late()));
  }
  Must(pool->Free(large, nullptr));
  held.clear();
  EXPECT_EQ(pool->statistics().held, 0u);
  EXPECT_TRUE(pool->CheckInvariants().ok());
  imported.reset();
  ExpectSoon([&] { return pool->statistics().peers == 0; });
  Must(pool->Trim());
  EXPECT_EQ(pool->statistics().reserved, 0u);
}

// In a process of its own, for the driver's sake; args: where to listen.
int ForkWithAPool(const Args& args) {
  const Here here;
  // A driver that sees two GPUs keeps 2 MiB from the first time on; what is lost
  // is lost each time.
  ForkWithAPoolOf(here, args[0]);
  const Inventory before = TakeInventory(TestDriver());
  ForkWithAPoolOf(here, args[0]);
  for (const std::string& line :
       Differences(before, TakeInventory(TestDriver()))) {
    ADD_FAILURE() << line;
  }
  return 0;
}
const bool kForkWithAPool = RegisterChild("fork-with-a-pool", &ForkWithAPool);

using PoolFork = PoolIpcTest;

TEST_F(PoolFork, AChildOwnsNothingAndItsParentGoesOn) {
  EXPECT_EQ(Child::Start("fork-with-a-pool", {listener_directory()}).Wait(), 0);
}

// Without a driver; args: where to listen.
int ForkOneOfThisId(const Args& args) {
  EndpointOptions options;
  options.listener.directory = args[0];
  std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start(options));
  {
    const SameProcessId same;
    EXPECT_TRUE(EndsWell([&] { endpoint.reset(); }));
  }
  platform::Channel client = Dial(endpoint->address());
  Must(protocol::SendOpen(client, {ShareKey{}}, Late()));
  EXPECT_EQ(Must(client.Receive(Late())).type, protocol::kAbort);
  return 0;
}
const bool kForkOneOfThisId =
    RegisterChild("fork-one-of-this-id", &ForkOneOfThisId);

// As the first processes of two containers have one.
TEST_F(PoolFork, AChildThatHasItsParentsIdEndsNoEndpoint) {
  EXPECT_EQ(Child::Start("fork-one-of-this-id", {listener_directory()}).Wait(),
            0);
}

}  // namespace
}  // namespace vmm::testing
