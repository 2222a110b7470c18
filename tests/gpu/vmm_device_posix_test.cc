// What a device is found to do in a process that has few descriptors left.
#include <gmock/gmock.h>

#include <optional>
#include <string>

#include "platform/cuda/driver.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/descriptor_limit_posix.h"
#include "tests/support/driver_faults.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

class DeviceWithFewDescriptors : public DriverTest {};

// A driver answers so to a descriptor of something else, and also when it gets none
// itself.
TEST_F(DeviceWithFewDescriptors, IsProbedAgainOnceThereAreMore) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  faults.Arm({.point = {.nth = 0},
              .entry = "cuMemImportFromShareableHandle",
              .result = CUDA_ERROR_UNKNOWN});
  std::optional<DescriptorLimit> limit(12);
  const absl::Status first = mine.Probe(kNativeKind);
  limit.reset();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(first)) << first;
  EXPECT_THAT(std::string(first.message()), HasSubstr("ulimit -n"));
  EXPECT_EQ(platform::ResultOf(first), CUDA_ERROR_UNKNOWN);
  const absl::Status second = mine.Probe(kNativeKind);
  EXPECT_TRUE(second.ok()) << second;
}

}  // namespace
}  // namespace vmm::testing
