// vmm/memory/internal/imported_pools.h: pools of other processes, here those of a
// driver that counts what it has imported, and fails on demand.
#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/vmm_driver_test.h"
#include "vmm/memory/internal/imported_pools.h"

namespace vmm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr CUdeviceptr kAddress = 0x7000;

// What was called, in order, and which call fails with what.
std::vector<std::string> calls;
std::string failing;
CUresult answer = CUDA_SUCCESS;

CUresult Called(const char* name) {
  calls.emplace_back(name);
  return failing == name ? answer : CUDA_SUCCESS;
}

platform::DriverTable CountingTable() {
  platform::DriverTable table = TestDriver().table();
  table.cuMemPoolImportFromShareableHandle = [](CUmemoryPool* pool, void*,
                                                CUmemAllocationHandleType,
                                                unsigned long long) {
    *pool = reinterpret_cast<CUmemoryPool>(&calls);
    return Called("import pool");
  };
  table.cuMemPoolSetAccess = [](CUmemoryPool, const CUmemAccessDesc* access,
                                std::size_t) {
    return Called(absl::StrCat("access of ", access->location.id).c_str());
  };
  table.cuMemPoolImportPointer = [](CUdeviceptr* at, CUmemoryPool,
                                    CUmemPoolPtrExportData*) {
    *at = kAddress;
    return Called("import pointer");
  };
  table.cuMemFree = [](CUdeviceptr) { return Called("free"); };
  table.cuMemPoolDestroy = [](CUmemoryPool) { return Called("destroy"); };
  return table;
}

class ImportedPoolsTest : public DriverTest {
 protected:
  ImportedPoolsTest() {
    failing.clear();
    calls.clear();
  }
  absl::StatusOr<CUdeviceptr> Open(std::optional<int> on = std::nullopt) {
    const Device here = Must(Device::ByOrdinal(driver_, on.value_or(0)));
    return ImportedPools::Get().Open(here, owner_, handle_);
  }
  absl::Status Close() { return ImportedPools::Get().Close(driver_, kAddress); }
  static void Fail(const std::string& call, CUresult with) {
    calls.clear();
    failing = call;
    answer = with;
  }

  const platform::Driver driver_ = ChangedDriver(CountingTable());
  const Device owner_ = Must(Device::ByOrdinal(driver_, 0));
  const StreamPoolHandle handle_;
};

TEST_F(ImportedPoolsTest, APointerIsFreedAndItsPoolDestroyedAtTheLastClose) {
  EXPECT_EQ(Must(Open()), kAddress);
  EXPECT_EQ(Must(Open()), kAddress);
  EXPECT_THAT(calls, ElementsAre("import pool", "import pointer", "import pool",
                                 "import pointer"));
  calls.clear();
  EXPECT_EQ(Close(), absl::OkStatus());
  EXPECT_THAT(calls, ElementsAre());
  EXPECT_EQ(Close(), absl::OkStatus());
  EXPECT_THAT(calls, ElementsAre("free", "destroy"));
  calls.clear();
  EXPECT_EQ(Close(), absl::OkStatus());  // Nothing is open.
  EXPECT_THAT(calls, ElementsAre());
}

// As of a program that loads it, beside a library in it that does.
TEST_F(ImportedPoolsTest, ADriverThatIsLoadedTwiceHasItsPoolsOnce) {
  const platform::Driver again = ChangedDriver(CountingTable());
  ASSERT_NE(&again.table(), &driver_.table());
  const Device here = Must(Device::ByOrdinal(again, 0));
  EXPECT_EQ(Must(Open()), kAddress);
  EXPECT_EQ(Must(ImportedPools::Get().Open(here, here, handle_)), kAddress);
  calls.clear();
  EXPECT_EQ(Close(), absl::OkStatus());
  EXPECT_THAT(calls, ElementsAre());  // The other has it open.
  EXPECT_EQ(ImportedPools::Get().Close(again, kAddress), absl::OkStatus());
  EXPECT_THAT(calls, ElementsAre("free", "destroy"));
}

TEST_F(ImportedPoolsTest, AnotherDeviceIsGivenAccessFirst) {
  if (Must(Device::All(driver_)).size() < 2) GTEST_SKIP() << "one device";
  EXPECT_EQ(Must(Open(1)), kAddress);
  EXPECT_THAT(calls,
              ElementsAre("import pool", "access of 1", "import pointer"));
  EXPECT_EQ(Close(), absl::OkStatus());

  Fail("access of 1", CUDA_ERROR_INVALID_DEVICE);
  const absl::Status refused = Open(1).status();
  EXPECT_EQ(platform::ResultOf(refused), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_THAT(refused.message(), HasSubstr("cuMemPoolSetAccess(imported pool"));
  EXPECT_THAT(calls, ElementsAre("import pool", "access of 1", "destroy"));
}

TEST_F(ImportedPoolsTest, WhatCannotBeImportedIsToldAndLeavesNothing) {
  Fail("import pool", CUDA_ERROR_NOT_PERMITTED);
  const absl::Status pool = Open().status();
  EXPECT_EQ(platform::ResultOf(pool), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_THAT(pool.message(), HasSubstr("cuMemPoolImportFromShareableHandle"));
  EXPECT_THAT(pool.message(), HasSubstr("The owner has freed it or ended"));
  EXPECT_THAT(calls, ElementsAre("import pool"));

  Fail("import pointer", CUDA_ERROR_INVALID_VALUE);
  const absl::Status pointer = Open().status();
  EXPECT_EQ(platform::ResultOf(pointer), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(pointer.message(), HasSubstr("cuMemPoolImportPointer"));
  EXPECT_THAT(pointer.message(), HasSubstr("The owner has freed it or ended"));
  EXPECT_THAT(calls, ElementsAre("import pool", "import pointer", "destroy"));
  calls.clear();
  EXPECT_EQ(Close(), absl::OkStatus());
  EXPECT_THAT(calls, ElementsAre());
}

TEST_F(ImportedPoolsTest, AFailedImportLeavesWhatIsOpenAlone) {
  Must(Open());
  Fail("import pool", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(absl::IsResourceExhausted(Open().status()));
  Fail("import pointer", CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(Open().ok());
  EXPECT_THAT(calls, ElementsAre("import pool", "import pointer"));
  EXPECT_EQ(Close(), absl::OkStatus());
}

TEST_F(ImportedPoolsTest, WhatCannotBeGivenBackIsTold) {
  Must(Open());
  Fail("free", CUDA_ERROR_ILLEGAL_ADDRESS);
  const absl::Status freed = Close();
  EXPECT_EQ(platform::ResultOf(freed), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(freed.message(), HasSubstr("cuMemFree(address=0x7000)"));
  EXPECT_THAT(calls, ElementsAre("free", "destroy"));

  Must(Open());
  Fail("destroy", CUDA_ERROR_ILLEGAL_ADDRESS);
  const absl::Status destroyed = Close();
  EXPECT_EQ(platform::ResultOf(destroyed), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(destroyed.message(), HasSubstr("cuMemPoolDestroy"));

  // Others of the process have pointers of it, by calls of their own.
  Must(Open());
  Fail("destroy", CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Close(), absl::OkStatus());
  EXPECT_THAT(calls, ElementsAre("free", "destroy"));
}

}  // namespace
}  // namespace vmm::testing
