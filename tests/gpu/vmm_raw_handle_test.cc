// vmm/share/raw_handle.h: handles that are no memory's are refused before the
// driver is asked.
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/share/raw_handle.h"
#include "vmm/share/ticket.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

using RawHandleTest = DriverTest;

TEST_F(RawHandleTest, ChunksThatAreNoneOfOneAllocationAreRefused) {
  DriverFaults faults;
  const Device counted =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  const std::uint64_t half = std::uint64_t{1} << 63;
  struct Row {
    std::vector<std::uint64_t> sizes;
    const char* words;
  };
  for (const auto& [sizes, words] : std::vector<Row>{
           {{}, "0 handles to import; expected 1 to 65536"},
           {std::vector<std::uint64_t>(kMaxChunks + 1, kGranule),
            "65537 handles to import"},
           {{0}, "chunk 0 has 0 bytes"},
           {{kGranule, 0}, "chunk 1 has 0 bytes"},
           {{kGranule, 2 * kGranule}, "chunk 1 has 4194304 bytes"},
           {{2 * kGranule, kGranule, 2 * kGranule}, "chunk 1 has 2097152"},
           {{half, half}, "the sizes of 2 chunks overflow"}}) {
    std::vector<RawHandle> chunks;
    chunks.reserve(sizes.size());
    for (const std::uint64_t size : sizes) {
      chunks.push_back({kNativeKind, size, {}});
    }
    faults.ResetCounts();
    const absl::Status refused =
        ImportRaw(counted, Location::On(counted), std::move(chunks), {})
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(words));
    EXPECT_EQ(faults.calls(), 0u);
  }
  std::vector<RawHandle> mixed;
  mixed.push_back({kNativeKind, kGranule, {}});
  mixed.push_back({HandleKind::kFabric, kGranule, {}});
  const absl::Status refused =
      ImportRaw(counted, Location::On(counted), std::move(mixed), {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("Import them one by one"));
}

}  // namespace
}  // namespace vmm::testing
