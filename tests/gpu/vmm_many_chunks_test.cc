// Memory of more chunks than a ticket may name. No process can map so many: this
// driver makes one, and says that it maps it.
#include <gmock/gmock.h>

#include <cstddef>
#include <string>
#include <utility>

#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/vmm_driver_test.h"
#include "vmm/memory/allocation.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;
using ::testing::HasSubstr;

// What all chunks are, and whether they are: not while it is tried out which
// kinds of handles work.
CUmemGenericAllocationHandle one = 0;
bool pretends = false;

DriverTable TableOfOneChunk() {
  DriverTable table = TestDriver().table();
  table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, std::size_t size,
                         const CUmemAllocationProp* properties,
                         unsigned long long flags) {
    if (pretends && one != 0) {
      *handle = one;
      return CUDA_SUCCESS;
    }
    const CUresult result =
        TestDriver()->cuMemCreate(handle, size, properties, flags);
    if (pretends) one = *handle;
    return result;
  };
  table.cuMemRelease = [](CUmemGenericAllocationHandle handle) {
    return pretends ? CUDA_SUCCESS : TestDriver()->cuMemRelease(handle);
  };
  table.cuMemMap = [](CUdeviceptr at, std::size_t size, std::size_t offset,
                      CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
    return pretends ? CUDA_SUCCESS
                    : TestDriver()->cuMemMap(at, size, offset, handle, flags);
  };
  table.cuMemUnmap = [](CUdeviceptr at, std::size_t size) {
    return pretends ? CUDA_SUCCESS : TestDriver()->cuMemUnmap(at, size);
  };
  table.cuMemSetAccess = [](CUdeviceptr at, std::size_t size,
                            const CUmemAccessDesc* access, std::size_t count) {
    return pretends ? CUDA_SUCCESS
                    : TestDriver()->cuMemSetAccess(at, size, access, count);
  };
  return table;
}

using ManyChunksTest = DriverTest;

TEST_F(ManyChunksTest, AreSharedUpToAsManyAsATicketNames) {
  const platform::Driver driver = ChangedDriver(TableOfOneChunk());
  const Device other = Must(Device::ByOrdinal(driver, 0));
  Must(Allocation::Create(other, {.size = kGranule}));
  pretends = true;
  for (const std::size_t more : {0, 1}) {
    const Allocation memory =
        Must(Allocation::Create(other, {.size = (kMaxChunks + more) * kGranule,
                                        .max_chunk_size = kGranule}));
    ASSERT_EQ(memory.shareable().layout().count(), kMaxChunks + more);
    const absl::Status status =
        MakeTicket(memory.shareable(), kNativeKind).status();
    if (more == 0) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("65537 chunks; at most 65536 can be shared"));
    }
  }
  pretends = false;
  EXPECT_EQ(TestDriver()->cuMemRelease(std::exchange(one, 0)), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
