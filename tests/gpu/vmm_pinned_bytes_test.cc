// vmm/memory/internal/pinned_bytes.h: which memory of the host it is, and how it goes.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/device_attribute.h"
#include "vmm/memory/internal/pinned_bytes.h"
#include "vmm/memory/physical_memory.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

// What the changed driver says of memory of the host.
CUresult refusal = CUDA_SUCCESS;
CUresult refusal_of_blocks = CUDA_SUCCESS;
bool has_attribute = true;
int version = 0;
int blocks = 0;

CUresult CUDAAPI ItsVersion(int* its) {
  *its = version;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI AttributeOrNone(int* value, CUdevice_attribute attribute,
                                 CUdevice device) {
  if (attribute == kHostMemoryAttribute && !has_attribute) {
    if (version < kHostMemoryAttributeSince) return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
  }
  return TestDriver()->cuDeviceGetAttribute(value, attribute, device);
}

CUresult CUDAAPI CreateOrRefuse(CUmemGenericAllocationHandle* handle,
                                std::size_t size,
                                const CUmemAllocationProp* prop,
                                unsigned long long flags) {
  if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
      refusal != CUDA_SUCCESS) {
    return refusal;
  }
  return TestDriver()->cuMemCreate(handle, size, prop, flags);
}

CUresult CUDAAPI CountBlock(void** memory, std::size_t size,
                            unsigned int flags) {
  ++blocks;
  if (refusal_of_blocks != CUDA_SUCCESS) return refusal_of_blocks;
  return TestDriver()->cuMemHostAlloc(memory, size, flags);
}

class PinnedBytesTest : public DriverTest {
 protected:
  static constexpr std::uint64_t kSize = 3 * kMiB + 5;

  PinnedBytesTest() {
    refusal = CUDA_SUCCESS;
    refusal_of_blocks = CUDA_SUCCESS;
    has_attribute = true;
    version = TestDriver().version();
    blocks = 0;
  }
  Device Changed() {
    platform::DriverTable table = TestDriver().table();
    table.cuDriverGetVersion = &ItsVersion;
    table.cuDeviceGetAttribute = &AttributeOrNone;
    table.cuMemCreate = &CreateOrRefuse;
    table.cuMemHostAlloc = &CountBlock;
    return Must(Device::ByOrdinal(ChangedDriver(table), 0));
  }
  absl::StatusOr<PinnedBytes> Pin(const Device& on) {
    context_ = std::make_shared<const PrimaryContext>(
        Must(PrimaryContext::Retain(on)));
    const CurrentContext current = Must(context_->MakeCurrent());
    return PinnedBytes::Pin(on, context_, kSize);
  }
  // By the device, of all that the CPU wrote there; and back.
  void ExpectCopied(const PinnedBytes& pinned) {
    ASSERT_EQ(pinned.size(), kSize);
    const Allocation memory = Must(Allocation::Create(device, {.size = kSize}));
    const Stream stream;
    std::memset(pinned.at(), 0x3c, kSize);
    EXPECT_EQ(driver()->cuMemcpyHtoDAsync(memory.address(), pinned.at(), kSize,
                                          stream.get()),
              CUDA_SUCCESS);
    stream.Sync();
    EXPECT_TRUE(Holds(memory.address(), 0x3c, kSize));
    Fill(memory.address(), 0x71, kSize);
    EXPECT_EQ(driver()->cuMemcpyDtoHAsync(pinned.at(), memory.address(), kSize,
                                          stream.get()),
              CUDA_SUCCESS);
    stream.Sync();
    const auto* bytes = static_cast<const std::uint8_t*>(pinned.at());
    EXPECT_EQ(bytes[0], 0x71);
    EXPECT_EQ(bytes[kSize - 1], 0x71);
  }
  void ExpectIsOtherMemory(const Device& changed) {
    const PinnedBytes pinned = Must(Pin(changed));
    EXPECT_EQ(blocks, 1);
    ExpectCopied(pinned);
  }

  std::shared_ptr<const PrimaryContext> context_;
};

TEST_F(PinnedBytesTest, AreOfTheNodeNextToTheDevice) {
  const PinnedBytes pinned = Must(Pin(Changed()));
  EXPECT_EQ(blocks, 0);
  ExpectCopied(pinned);
  const OwnedMemoryHandle chunk = Must(
      RetainMemoryAt(driver(), reinterpret_cast<CUdeviceptr>(pinned.at())));
  CUmemAllocationProp properties{};
  ASSERT_EQ(driver()->cuMemGetAllocationPropertiesFromHandle(
                &properties, chunk.get().handle),
            CUDA_SUCCESS);
  EXPECT_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_EQ(properties.location.id, Must(HostNodeOf(device)));
}

// cuMemFreeHost() would stand.
TEST_F(PinnedBytesTest, GoWhileAStreamWaits) {
  const Allocation word = Must(Allocation::Create(device, {.size = 8}));
  Fill(word.address(), 0, 8);
  const Stream waits;
  const Stream ends;
  std::optional<PinnedBytes> pinned = Must(Pin(device));
  ASSERT_EQ(driver()->cuStreamWaitValue64(waits.get(), word.address(), 1,
                                          CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  std::atomic<bool> gone = false;
  std::thread other([&] {
    pinned.reset();
    gone = true;
  });
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (!gone && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(gone);
  EXPECT_FALSE(waits.IsIdle());
  EXPECT_EQ(driver()->cuStreamWriteValue64(ends.get(), word.address(), 1, 0),
            CUDA_SUCCESS);
  other.join();
}

TEST_F(PinnedBytesTest, AreOtherMemoryWhereTheDeviceHasNone) {
  const Device changed = Changed();
  has_attribute = false;
  refusal = CUDA_ERROR_OUT_OF_MEMORY;  // Not asked.
  ExpectIsOtherMemory(changed);
}

// It does not know the attribute, or not the memory either.
TEST_F(PinnedBytesTest, OfAnOlderDriverAreWhatItMakes) {
  has_attribute = false;
  version = 12010;
  refusal = CUDA_ERROR_OUT_OF_MEMORY;  // Not asked.
  ExpectIsOtherMemory(Changed());
  for (const int older : {12020, 12080}) {
    version = older;
    const Device changed = Changed();
    refusal = CUDA_SUCCESS;
    blocks = 0;
    ExpectCopied(Must(Pin(changed)));
    EXPECT_EQ(blocks, 0);
    refusal = CUDA_ERROR_INVALID_DEVICE;
    ExpectIsOtherMemory(changed);
  }
}

// As of a node that is full, or has none, beside others.
TEST_F(PinnedBytesTest, AreOtherMemoryWhereTheNodeHasNoneLeft) {
  for (const int its : {12020, 12090, 13000}) {
    version = its;
    const Device changed = Changed();
    refusal = CUDA_ERROR_OUT_OF_MEMORY;
    blocks = 0;
    ExpectIsOtherMemory(changed);
    // And of a host that is full the two are told.
    refusal_of_blocks = CUDA_ERROR_OUT_OF_MEMORY;
    const absl::Status status = Pin(changed).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    for (const char* part :
         {"3145733 bytes of the host cannot be pinned: ", "cuMemCreate(",
          "cuMemHostAlloc(", "The host must have"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
    refusal_of_blocks = CUDA_SUCCESS;
  }
}

TEST_F(PinnedBytesTest, AreOtherMemoryWhereTheDriverRefuses) {
  const Device changed = Changed();
  for (const CUresult result :
       {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_OPERATING_SYSTEM}) {
    refusal = result;
    blocks = 0;
    ExpectIsOtherMemory(changed);
  }
}

TEST_F(PinnedBytesTest, ThatFailOtherwiseAreTold) {
  const Device changed = Changed();
  for (const CUresult result : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN}) {
    refusal = result;
    const absl::Status status = Pin(changed).status();
    EXPECT_EQ(platform::ResultOf(status), result) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("3145733 bytes of the host cannot be pinned"));
  }
  EXPECT_EQ(blocks, 0);
}

}  // namespace
}  // namespace vmm::testing
