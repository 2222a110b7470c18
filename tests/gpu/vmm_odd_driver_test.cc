// What a driver says that none has been seen to say, or only on other machines:
// each is told, and what it is.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "platform/cuda/driver_table.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/driver_block.h"
#include "vmm/memory/internal/kernel_library.h"
#include "vmm/pool/pool.h"
#include "vmm/share/ticket.h"
#include "vmm/sync/ipc_event.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What one attribute of each device is said to be.
CUdevice_attribute changed = CU_DEVICE_ATTRIBUTE_MAX;
int value = 0;
CUresult answer = CUDA_SUCCESS;

CUresult CUDAAPI Attribute(int* out, CUdevice_attribute which, CUdevice of) {
  if (which != changed) {
    return TestDriver()->cuDeviceGetAttribute(out, which, of);
  }
  *out = value;
  return answer;
}

// Of one with these two entries.
CUresult CUDAAPI Unavailable(CUcontext*, CUdevice) {
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

class OddDriverTest : public DriverTest {
 protected:
  ~OddDriverTest() override {
    changed = CU_DEVICE_ATTRIBUTE_MAX;
    answer = CUDA_SUCCESS;
  }
  Device DeviceOf(const DriverTable& entries) {
    return Must(Device::ByOrdinal(ChangedDriver(entries), 0));
  }
  DriverTable table = TestDriver().table();
};

TEST_F(OddDriverTest, MemoryThatDoesNotKeepWhatIsWrittenIsNoKindThatWorks) {
  table.cuMemsetD32Async = [](CUdeviceptr, unsigned, std::size_t, CUstream) {
    return CUDA_SUCCESS;
  };
  const absl::Status probed = DeviceOf(table).Probe(kNativeKind);
  EXPECT_TRUE(absl::IsDataLoss(probed)) << probed;
  EXPECT_THAT(probed.message(),
              AllOf(HasSubstr("cannot be shared as"),
                    HasSubstr("read back 0x0 where 0x5eed1234 was written")));
}

TEST_F(OddDriverTest, ADeviceTooOldForKernelsHasNone) {
  table.cuDeviceGetAttribute = &Attribute;
  const Device odd = DeviceOf(table);
  changed = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
  value = 3;
  const absl::Status old = KernelLibrary::Of(odd, "no text").status();
  EXPECT_TRUE(absl::IsUnimplemented(old)) << old;
  EXPECT_THAT(old.message(), AllOf(HasSubstr(odd.Describe()),
                                   HasSubstr("compute capability 3.x")));
  answer = CUDA_ERROR_INVALID_DEVICE;
  const absl::Status unknown = KernelLibrary::Of(odd, "no text").status();
  EXPECT_EQ(platform::ResultOf(unknown), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_THAT(unknown.message(), HasSubstr("COMPUTE_CAPABILITY_MAJOR"));
}

TEST_F(OddDriverTest, ADeviceThatIsUnavailableSaysWhatItsComputeModeHasToDo) {
  table.cuDeviceGetAttribute = &Attribute;
  table.cuDevicePrimaryCtxRetain = &Unavailable;
  const Device odd = DeviceOf(table);
  changed = CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
  const auto refused = [&](int mode) {
    value = mode;
    const absl::Status status = PrimaryContext::Retain(odd).status();
    EXPECT_EQ(platform::ResultOf(status), CUDA_ERROR_DEVICE_UNAVAILABLE);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(CU_COMPUTEMODE_PROHIBITED), HasSubstr("PROHIBITED"));
  EXPECT_THAT(refused(CU_COMPUTEMODE_EXCLUSIVE_PROCESS),
              AllOf(HasSubstr("EXCLUSIVE_PROCESS"), HasSubstr("MPS")));
  EXPECT_THAT(refused(CU_COMPUTEMODE_DEFAULT), Not(HasSubstr("compute mode")));
  answer = CUDA_ERROR_INVALID_DEVICE;
  EXPECT_THAT(refused(CU_COMPUTEMODE_PROHIBITED),
              Not(HasSubstr("compute mode")));
}

// As 580 does, which tells no base of host memory, and then of a size of 0 or
// not at all.
struct Chunk {
  bool is_told = false;  // By what follows, and not by the driver.
  std::size_t size = 0;
  int calls = 0;
  int fails_at = -1;
} chunk;

CUresult CUDAAPI TellChunk(CUdeviceptr* base, std::size_t* size,
                           CUdeviceptr at) {
  if (!chunk.is_told) {
    return TestDriver()->cuMemGetAddressRange(base, size, at);
  }
  *base = 0;
  *size = chunk.size;
  return chunk.calls++ == chunk.fails_at ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

TEST_F(OddDriverTest, AChunkOfHostMemoryIsFoundFromItsRangesBeginning) {
  table.cuMemGetAddressRange = &TellChunk;
  const platform::Driver odd = ChangedDriver(table);
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = 2 * kGranule, .max_chunk_size = kGranule, .host_numa_node = 0}));
  const CUdeviceptr second = memory.address() + kGranule;
  const auto adopt = [&](const Chunk& told) {
    chunk = told;
    chunk.is_told = true;
    absl::StatusOr<AdoptedMemory> adopted =
        AdoptedMemory::Adopt(odd, second + 5, 1);
    chunk.is_told = false;
    return adopted;
  };
  const AdoptedMemory found = Must(adopt({.size = kGranule}));
  EXPECT_EQ(found.offset(), 5u);
  EXPECT_EQ(found.size(), kGranule);
  const absl::Status nothing = adopt({.size = 0}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(nothing)) << nothing;
  EXPECT_THAT(nothing.message(), HasSubstr("does not tell where the chunk"));
  for (const int call : {0, 1, 2}) {
    const absl::Status failed =
        adopt({.size = kGranule, .fails_at = call}).status();
    EXPECT_EQ(platform::ResultOf(failed), CUDA_ERROR_UNKNOWN) << call;
    EXPECT_THAT(failed.message(), HasSubstr("cuMemGetAddressRange"));
    EXPECT_EQ(chunk.calls, call + 1);
  }
}

TEST_F(OddDriverTest, MemoryAtALocationThatIsNotKnownIsNotAdopted) {
  table.cuMemGetAllocationPropertiesFromHandle =
      [](CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
        const CUresult result =
            TestDriver()->cuMemGetAllocationPropertiesFromHandle(properties,
                                                                 handle);
        properties->location.type = static_cast<CUmemLocationType>(99);
        return result;
      };
  const platform::Driver odd = ChangedDriver(table);
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  const absl::Status refused =
      AdoptedMemory::Adopt(odd, memory.address(), 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("location of type 99"));
}

TEST_F(OddDriverTest, WhatOneKindOfDriverMadeTheOtherDoesNotOpen) {
  for (const bool is_host_memory : {false, true}) {
    const platform::Driver odd = ChangedDriver(table, is_host_memory);
    const char* const other =
        is_host_memory ? "a CUDA driver" : "the host-memory driver";
    Ticket ticket;
    ticket.host_memory_driver = !is_host_memory;
    const absl::Status memory = CheckUsableHere(ticket, odd);
    EXPECT_TRUE(absl::IsFailedPrecondition(memory)) << memory;
    EXPECT_THAT(memory.message(), HasSubstr(other));
    IpcEventTicket made;
    made.host_memory_driver = !is_host_memory;
    const absl::Status event = IpcEvent::Import(odd, made).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(event)) << event;
    EXPECT_THAT(event.message(), HasSubstr(other));
  }
}

TEST_F(OddDriverTest, ADeviceOfAnotherDriverIsAnotherDevice) {
  const Device other = DeviceOf(table);
  EXPECT_EQ(other.uuid(), device.uuid());
  EXPECT_FALSE(other == device);
  EXPECT_FALSE(Location::On(other) == Location::On(device));
  EXPECT_TRUE(Location::On(other) == Location::On(other));
  EXPECT_FALSE(Location::HostNuma(0) == Location::HostNuma(1));
}

// Of small blocks of cuMemAlloc() the driver puts many into the same 2 MiB.
TEST_F(OddDriverTest, WhatLiesBesideABlockIsFound) {
  static constexpr CUdeviceptr kBase = CUdeviceptr{2} << 20;
  table.cuMemGetAddressRange = [](CUdeviceptr* base, std::size_t* size,
                                  CUdeviceptr at) {
    *base = at < kBase + 8192 ? kBase : kBase + 8192;
    *size = at < kBase + 8192 ? 5000 : 100;
    if (at >= kBase + 16384) *size = 0;
    const bool between = at >= *base + *size;
    return between ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  };
  const platform::Driver odd = ChangedDriver(table);
  DriverBlock block;
  block.kind = HandleKind::kLegacyIpc;
  block.span = {kBase, 5000};
  EXPECT_THAT(Must(Neighbours(odd, block)),
              ElementsAre(AddressSpan{kBase + 8192, 100}));
  block.span = {kBase + 8192, 100};
  EXPECT_THAT(Must(Neighbours(odd, block)),
              ElementsAre(AddressSpan{kBase, 5000}));
}

TEST(PlaceOf, KnowsEveryLocationOfCuda) {
  const auto at = [](int type, int id) {
    CUmemLocation location{};
    location.type = static_cast<CUmemLocationType>(type);
    location.id = id;
    return PlaceOf(location);
  };
  EXPECT_EQ(at(CU_MEM_LOCATION_TYPE_DEVICE, 3).device_ordinal, 3);
  EXPECT_EQ(at(CU_MEM_LOCATION_TYPE_HOST_NUMA, 1).host_numa_node, 1);
  // Of the host, or of a device that is not seen: neither says which.
  for (const Place& place : {at(CU_MEM_LOCATION_TYPE_HOST, 0),
                             at(CU_MEM_LOCATION_TYPE_DEVICE, -2), at(5, 0)}) {
    EXPECT_FALSE(place.device_ordinal.has_value());
    EXPECT_FALSE(place.host_numa_node.has_value());
    EXPECT_EQ(place.unknown, "");
  }
  // A part of device 2.
  EXPECT_EQ(at(6, 0x102).device_ordinal, 2);
  EXPECT_THAT(at(99, 0).unknown, HasSubstr("type 99"));
}

// None is known; of devices 2 MiB, of hosts up to that.
TEST_F(OddDriverTest, APoolsSegmentsAreOfALargerGranularity) {
  table.cuMemGetAllocationGranularity = [](std::size_t* out,
                                           const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
    *out = 8 * kMiB;
    return CUDA_SUCCESS;
  };
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(DeviceOf(table), {.first_segment_size = 2 * kMiB}));
  const CUdeviceptr small = Must(pool->Allocate(kMiB, nullptr));
  const CUdeviceptr large = Must(pool->Allocate(18 * kMiB, nullptr));
  const CUdeviceptr aligned =
      Must(pool->Allocate(kMiB, nullptr, {.alignment = 4 * kMiB}));
  EXPECT_EQ(aligned % (4 * kMiB), 0u);
  for (const SegmentStatistics& segment : pool->statistics().segments) {
    EXPECT_EQ(segment.size % (8 * kMiB), 0u) << segment.size;
  }
  const absl::Status whole = pool->CheckInvariants();
  EXPECT_TRUE(whole.ok()) << whole;
  for (CUdeviceptr block : {small, large, aligned}) {
    EXPECT_TRUE(pool->Free(block, nullptr).ok());
  }
  EXPECT_EQ(Must(pool->Trim()) % (8 * kMiB), 0u);
  EXPECT_EQ(pool->statistics().reserved, 0u);
}

}  // namespace
}  // namespace vmm::testing
