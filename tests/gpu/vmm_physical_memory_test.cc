// vmm/memory/physical_memory.h: what the driver is asked for, and what to do when
// it refuses.
#include <gmock/gmock.h>

#include <cstddef>
#include <string>

#include "platform/cuda/driver_table.h"
#include "platform/cuda/handle_attributes.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/vmm_driver_test.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/memory/physical_memory.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What cuMemCreate() was asked for last, and what it answers.
CUmemAllocationProp asked;
CUresult answer = CUDA_SUCCESS;

// Of a driver of CUDA 12.1.
DriverTable RefusingTable() {
  DriverTable table = TestDriver().table();
  table.cuDriverGetVersion = [](int* version) {
    *version = 12010;
    return CUDA_SUCCESS;
  };
  table.cuMemCreate = [](CUmemGenericAllocationHandle*, std::size_t,
                         const CUmemAllocationProp* properties,
                         unsigned long long) {
    asked = *properties;
    return answer;
  };
  return table;
}

using PhysicalMemoryTest = DriverTest;

TEST_F(PhysicalMemoryTest, MemoryThatIsRefusedIsToldWithWhatToDo) {
  const DriverTable table = RefusingTable();
  const platform::Driver gpus = ChangedDriver(table, /*is_host_memory=*/false);
  const platform::Driver models = ChangedDriver(table, /*is_host_memory=*/true);
  const auto refused = [&](const platform::Driver& driver,
                           const Location& where, CUresult result) {
    answer = result;
    const absl::Status status =
        PhysicalMemory::Create(driver, where, {kGranule, kGranule},
                               {kNativeKind})
            .status();
    EXPECT_EQ(platform::ResultOf(status), result);
    return std::string(status.message());
  };
  const Location here = Location::On(device);
  const Location host = Location::HostNuma(0);
  EXPECT_THAT(refused(gpus, here, CUDA_ERROR_OUT_OF_MEMORY),
              AllOf(HasSubstr("nvidia-smi shows who holds how much"),
                    HasSubstr("vmmshare keep --list")));
  EXPECT_THAT(refused(models, here, CUDA_ERROR_OUT_OF_MEMORY),
              HasSubstr("VMMSHARE_HOST_MEMORY"));
  EXPECT_THAT(refused(gpus, host, CUDA_ERROR_NOT_SUPPORTED),
              HasSubstr("came with CUDA 12.2"));
  EXPECT_THAT(refused(gpus, here, CUDA_ERROR_NOT_SUPPORTED),
              Not(HasSubstr("CUDA 12.2")));
}

TEST_F(PhysicalMemoryTest, AWindowsHandleIsAskedForWithWhoMayOpenIt) {
  const platform::Driver driver = ChangedDriver(RefusingTable());
  const auto ask = [&](HandleKind kind) {
    asked = {};
    answer = CUDA_ERROR_NOT_SUPPORTED;
    const absl::Status refused =
        PhysicalMemory::Create(driver, Location::On(device),
                               {kGranule, kGranule}, {kind})
            .status();
    EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  };
  ask(HandleKind::kWin32);
  EXPECT_EQ(asked.requestedHandleTypes, CU_MEM_HANDLE_TYPE_WIN32);
  EXPECT_EQ(asked.win32HandleMetaData,
            Must(platform::NativeHandleAttributes()));
  ask(HandleKind::kPosixFd);
  EXPECT_EQ(asked.requestedHandleTypes,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(asked.win32HandleMetaData, nullptr);
}

TEST_F(PhysicalMemoryTest, AKindThatThisBuildLacksIsNotTried) {
  const absl::Status refused = TryKind(device, kForeignKind);
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_EQ(TryKind(device, kNativeKind), absl::OkStatus());
}

}  // namespace
}  // namespace vmm::testing
