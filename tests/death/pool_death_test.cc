// Misuse of pools: a broken REQUIRES ends the program with a line that says so.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/test_driver.h"
#include "vmm/memory/device.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/internal/pool_string.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

// An owner and a subscriber, made in the process that is to die.
struct Sides {
  Sides() {
    for (CUdeviceptr& block : blocks) {
      block = Must(pool->Allocate(4096, nullptr));
    }
  }
  ImportedBlock Import() {
    return Must(imported->Import(Must(pool->Export(blocks[0])), Late()));
  }

  Device device = Must(Device::ByOrdinal(TestDriver(), 0));
  PrimaryContext context = Must(PrimaryContext::Retain(device));
  CurrentContext current = Must(context.MakeCurrent());
  std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
  Share publication = Must(endpoint->Serve(*pool));
  std::unique_ptr<ImportedPool> imported = Must(
      ImportedPool::Subscribe(TestDriver(), publication.ticket(), {}, Late()));
  CUdeviceptr blocks[2] = {};
};

TEST(PoolDeathTest, AnImportedPoolGoesAfterItsBlocks) {
  EXPECT_DEATH(
      {
        Sides sides;
        const ImportedBlock block = sides.Import();
        sides.imported.reset();
      },
      "an ImportedPool is destroyed while ImportedBlocks of it live; destroy "
      "them first");
}

TEST(PoolDeathTest, OnlyItsOwnBlocksAreGivenBack) {
  EXPECT_DEATH(
      {
        Sides one;
        Sides other;
        ImportedBlock block = one.Import();
        other.imported->ReleaseAfter(std::move(block), nullptr).IgnoreError();
      },
      "a block of another pool, or one moved from, is released");
}

TEST(PoolDeathTest, ABlockMovedFromCannotBeGivenBackOnceMore) {
  EXPECT_DEATH(
      {
        Sides sides;
        ImportedBlock block = sides.Import();
        const ImportedBlock taken = std::move(block);
        // NOLINTNEXTLINE(bugprone-use-after-move)
        sides.imported->ReleaseAfter(std::move(block), nullptr).IgnoreError();
      },
      "a block of another pool, or one moved from, is released");
}

TEST(PoolDeathTest, APoolsStringNeedsAnAddress) {
  EXPECT_DEATH(FormatPoolString({}), "1 to 1024 bytes");
  EXPECT_DEATH(FormatPoolString({{}, {.address = std::string(1025, 'x')}}),
               "1 to 1024 bytes");
}

}  // namespace
}  // namespace vmm::testing
