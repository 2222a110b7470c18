// Pools of other processes where this one is refused memory for its books: what is
// open is closed without any, as it is in destructors, and what could not be opened
// is nobody's.
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <optional>
#include <utility>

#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/refused_memory.h"
#include "vmm/memory/internal/imported_pools.h"

namespace vmm::testing {
namespace {

constexpr CUdeviceptr kAddress = 0x7000;

// What the driver has of the other process, and what it says of the pointer.
struct Had {
  bool pool = false;
  bool pointer = false;
  CUresult opens = CUDA_SUCCESS;
} had;

platform::DriverTable TableOfOnePool() {
  platform::DriverTable table = TestDriver().table();
  table.cuMemPoolImportFromShareableHandle = [](CUmemoryPool* pool, void*,
                                                CUmemAllocationHandleType,
                                                unsigned long long) {
    *pool = reinterpret_cast<CUmemoryPool>(&had);
    had.pool = true;
    return CUDA_SUCCESS;
  };
  table.cuMemPoolSetAccess = [](CUmemoryPool, const CUmemAccessDesc*,
                                std::size_t) { return had.opens; };
  table.cuMemPoolImportPointer = [](CUdeviceptr* at, CUmemoryPool,
                                    CUmemPoolPtrExportData*) {
    *at = kAddress;
    had.pointer = had.opens == CUDA_SUCCESS;
    return had.opens;
  };
  table.cuMemFree = [](CUdeviceptr) {
    had.pointer = false;
    return CUDA_SUCCESS;
  };
  table.cuMemPoolDestroy = [](CUmemoryPool) {
    had.pool = false;
    return CUDA_SUCCESS;
  };
  return table;
}

class ImportedPoolsMemoryTest : public DriverTest {
 protected:
  ImportedPoolsMemoryTest() { had = {}; }

  absl::StatusOr<CUdeviceptr> Open(const Device& here) {
    return ImportedPools::Get().Open(here, owner_, handle_);
  }
  absl::Status Close() { return ImportedPools::Get().Close(driver_, kAddress); }

  const platform::Driver driver_ = ChangedDriver(TableOfOnePool());
  const Device owner_ = Must(Device::ByOrdinal(driver_, 0));
  const StreamPoolHandle handle_;
};

TEST_F(ImportedPoolsMemoryTest, WhatIsOpenIsClosedWithoutMemory) {
  Must(Open(owner_));
  Must(Open(owner_));
  refusal = {0, /*lasts=*/true};
  const bool first = Close().ok();
  const bool open_still = had.pointer && had.pool;
  const bool last = Close().ok();
  refusal = {};
  EXPECT_TRUE(first && last);
  EXPECT_TRUE(open_still);
  EXPECT_FALSE(had.pointer);
  EXPECT_FALSE(had.pool);
}

// Of this device and of another one, which is given access; let in and refused.
TEST_F(ImportedPoolsMemoryTest, WhatCannotBeOpenedForWantOfMemoryIsNobodys) {
  for (const Device& here : Must(Device::All(driver_))) {
    for (const CUresult opens : {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE}) {
      bool refused = true;
      for (long nth = 0; refused && !HasFailure(); ++nth) {
        SCOPED_TRACE(::testing::Message() << here.Describe() << ", answered "
                                          << opens << ", request " << nth);
        had.opens = opens;
        bool is_open = false;
        refusal = {nth, /*lasts=*/false};
        try {
          is_open = Open(here).ok();
        } catch (const std::bad_alloc&) {
        }
        refused = std::exchange(refusal, {}).happened;
        EXPECT_EQ(had.pointer, is_open);
        EXPECT_EQ(had.pool, is_open);
        if (is_open) {
          EXPECT_EQ(Close(), absl::OkStatus());
        }
        // Nor does anybody wait for a turn that does not end.
        had.opens = CUDA_SUCCESS;
        Must(Open(here));
        EXPECT_EQ(Close(), absl::OkStatus());
        EXPECT_FALSE(had.pool);
      }
    }
  }
}

}  // namespace
}  // namespace vmm::testing
