// docs/sharing.md, docs/legacy_ipc.md and docs/testing.md.
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <utility>

#include "tests/docs/page_test.h"
#include "vmm/memory/driver_block.h"
#include "vmm/share/retire.h"
#include "vmm/vmm.h"

namespace vmm::testing {
namespace {

using platform::Channel;
using platform::Listener;

TEST_F(PageTest, TheTutorialSharesOverAChannel) {
  const absl::Time deadline = Late();
  auto memory = Allocation::Create(device_, {.size = 1 << 30});
  Check(memory.status());
  const std::uint64_t size = memory->size();
  const platform::Driver* const driver = driver_;
  std::thread importer;
  const auto tell_the_importer = [&](const std::string& address) {
    importer = std::thread([=] {
#include <sharing.receive.inc>
      Check(memory.status());
      EXPECT_EQ(memory->size(), size);
    });
  };
#include <sharing.send.inc>
  importer.join();
  Check(sent);
}

TEST_F(PageTest, TheTutorialSharesByText) {
  const absl::Time deadline = Late();
  const platform::Driver* const driver = driver_;
  const absl::StatusOr<Device> device = device_;
  auto memory = Allocation::Create(*device, {.size = 1 << 20});
  Check(memory.status());
#include <sharing.publish.inc>
  {
#include <sharing.open.inc>
    Check(memory.status());
  }
  const std::string text = published->ticket();
  const Device& my_device = device_;
  {
#include <sharing.grants.inc>
    Check(memory.status());
  }
  const CUdeviceptr pointer = memory->address() + 4096;
  const std::size_t size = 4096;
#include <sharing.adopt.inc>
  Check(share.status());
  EXPECT_TRUE(info->adoptable);
  EXPECT_EQ(adopted->offset(), 4096);
}

TEST_F(PageTest, TheTutorialAsksForKinds) {
  const absl::StatusOr<Device> device = device_;
#include <sharing.policies.inc>
  Check(memory.status());
  EXPECT_FALSE(memory->kinds().empty());
}

TEST_F(PageTest, TheTutorialMakesAContextForItsCopies) {
  const platform::Driver* const driver = driver_;
  const absl::StatusOr<Device> device = device_;
  auto memory = Allocation::Create(*device, {.size = 1 << 20});
  std::uint32_t word = 0;
  std::thread with_no_context([&] {
#include <sharing.context.inc>
    Check(current.status());
    EXPECT_EQ((*driver)->cuMemcpyDtoH(&word, memory->address(), sizeof(word)),
              CUDA_SUCCESS);
    EXPECT_EQ((*driver)->cuStreamDestroy(stream), CUDA_SUCCESS);
  });
  with_no_context.join();
  EXPECT_EQ(word, 0x01010101);
}

// What the tutorial says of threads that have none.
TEST_F(PageTest, CopiesWithoutAContextAreRefused) {
  auto memory = Allocation::Create(device_, {.size = 1 << 20});
  std::thread with_no_context([&] {
    EXPECT_EQ((*driver_)->cuMemsetD8(memory->address(), 1, 1),
              CUDA_ERROR_INVALID_CONTEXT);
  });
  with_no_context.join();
}

TEST_F(PageTest, TheTutorialRetiresMemoryBehindAStream) {
  auto memory = Allocation::Create(device_, {.size = 1 << 20});
  const Stream on;
  CUstream stream = on.get();
  RetireQueue queue(*driver_);
#include <sharing.retire.inc>
  Check(retired);
  Check(freed.status());
}

TEST_F(PageTest, LegacyIpcIsTranslatedCallByCall) {
  const platform::Driver& driver = *driver_;
  const Device& device = device_;
  const std::uint64_t size = 1 << 20;
#include <legacy_ipc.owner.inc>
  const CUdeviceptr pointer = p;
#include <legacy_ipc.classify.inc>
  EXPECT_TRUE(info->adoptable);
  {
#include <legacy_ipc.importer.inc>
    Check(memory.status());
    EXPECT_EQ(driver->cuMemsetD32(q, 0x2a2a2a2a, 1), CUDA_SUCCESS);
    // Unmapping is not ordered after a fill.
    EXPECT_EQ(driver->cuCtxSynchronize(), CUDA_SUCCESS);
  }
  std::uint32_t word = 0;
  EXPECT_EQ(driver->cuMemcpyDtoH(&word, p, sizeof(word)), CUDA_SUCCESS);
  EXPECT_EQ(word, 0x2a2a2a2a);
}

TEST_F(PageTest, MemoryOfCudaMallocIsSharedByConsent) {
  const platform::Driver& driver = *driver_;
  const std::uint64_t size = 5000;
  CUdeviceptr pointer = 0;
  ASSERT_EQ(driver->cuMemAlloc(&pointer, size), CUDA_SUCCESS);
  auto endpoint = Endpoint::Start({});
  Check(endpoint.status());
  {
#include <any_memory.adopt_legacy.inc>
    Check(share.status());
    ASSERT_NE(adopted->block(), nullptr);
    Check(Neighbours(driver, *adopted->block()).status());
  }
  EXPECT_EQ(driver->cuMemFree(pointer), CUDA_SUCCESS);
}

TEST_F(PageTest, AWeakerKindIsTakenWhereNothingElseWorks) {
#include <any_memory.or_legacy.inc>
  Check(memory.status());
}

TEST_F(PageTest, AnyDriverIsLoadedByItsPath) {
  if (!OnHostMemoryDriver()) GTEST_SKIP() << "a GPU's driver has no such path";
  const std::string path = HostDriverPath();
#include <testing.load.inc>
  Check(device.status());
}

}  // namespace
}  // namespace vmm::testing
