// vmm/memory/mapping.h: what is mapped where, and who may use it there.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/mapping.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

class MappingTest : public DriverTest {
 protected:
  std::shared_ptr<const AddressRange> Reserve(std::uint64_t size) {
    return std::make_shared<const AddressRange>(
        Must(AddressRange::Reserve(driver(), size)));
  }
  std::shared_ptr<const PhysicalMemory> Make(std::uint64_t size) {
    return std::make_shared<const PhysicalMemory>(Must(PhysicalMemory::Create(
        driver(), Location::On(device), {size, size}, {kNativeKind})));
  }
  bool IsMapped(CUdeviceptr at) {
    return Must(Classify(driver(), at)).kind == PointerKind::kVmm;
  }
};

TEST_F(MappingTest, OfMoreThanTheRangeHasLeftIsRefused) {
  const auto range = Reserve(3 * kGranule);
  const auto memory = Make(2 * kGranule);
  for (const std::uint64_t offset :
       {2 * kGranule, 3 * kGranule, 4 * kGranule, ~kGranule + 1}) {
    const absl::Status refused = Mapping::Map(range, offset, memory).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(
        refused.message(),
        HasSubstr(absl::StrCat(2 * kGranule, " bytes at offset ", offset,
                               " do not fit into an address "
                               "range of ",
                               3 * kGranule, " bytes")));
  }
  const Mapping mapping = Must(Mapping::Map(range, kGranule, memory));
  EXPECT_EQ(mapping.address(), range->base() + kGranule);
  EXPECT_EQ(mapping.size(), 2 * kGranule);
  EXPECT_FALSE(IsMapped(range->base()));
}

TEST_F(MappingTest, MovedIntoAnotherUnmapsWhatThatHad) {
  const auto range = Reserve(2 * kGranule);
  Mapping low = Must(Mapping::Map(range, 0, Make(kGranule)));
  Mapping high = Must(Mapping::Map(range, kGranule, Make(kGranule)));
  low = std::move(high);
  EXPECT_FALSE(IsMapped(range->base()));
  EXPECT_TRUE(IsMapped(range->base() + kGranule));
  EXPECT_EQ(low.address(), range->base() + kGranule);
  Mapping& same = low;
  low = std::move(same);
  EXPECT_TRUE(IsMapped(range->base() + kGranule));
  EXPECT_EQ(low.size(), kGranule);
}

TEST_F(MappingTest, WhatIsMovedIntoItselfStaysWhatItIs) {
  Allocation memory = Must(Allocation::Create(device, {.size = kGranule}));
  const CUdeviceptr at = memory.address();
  Allocation& same_memory = memory;
  memory = std::move(same_memory);
  EXPECT_TRUE(IsMapped(at));
  EXPECT_EQ(memory.address(), at);
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  std::vector<ExportedHandle> handles;
  handles.push_back(Must(out.handle(0)));
  ImportedAllocation import =
      Must(ImportedAllocation::Open(driver(), out.ticket, handles, {}));
  const CUdeviceptr there = import.address();
  ImportedAllocation& same_import = import;
  import = std::move(same_import);
  EXPECT_TRUE(IsMapped(there));
  EXPECT_EQ(import.address(), there);
  const std::unique_ptr<FencePool> fences = Must(FencePool::Create(device));
  Fence fence = Must(fences->New());
  Must(fence.SignalFromHost(7));
  Fence& same_fence = fence;
  fence = std::move(same_fence);
  EXPECT_EQ(Must(fence.Query()), 7u);
  EXPECT_EQ(fences->statistics().fences, 1u);
}

TEST_F(MappingTest, AccessForNobodyAsksTheDriverForNothing) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const auto range = std::make_shared<const AddressRange>(
      Must(AddressRange::Reserve(counted, kGranule)));
  Mapping mapping = Must(Mapping::Map(range, 0, Make(kGranule)));
  faults.ResetCounts();
  EXPECT_EQ(mapping.SetAccess({}), absl::OkStatus());
  EXPECT_EQ(faults.calls(), 0u);
  EXPECT_EQ(mapping.SetAccess({{Location::On(device), Access::kRead}}),
            absl::OkStatus());
  EXPECT_EQ(faults.CallsByEntry()["cuMemSetAccess"], 1u);
}

TEST_F(MappingTest, AccessThatTheDriverRefusesIsNamed) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const auto range = std::make_shared<const AddressRange>(
      Must(AddressRange::Reserve(faulty, kGranule)));
  Mapping mapping = Must(Mapping::Map(range, 0, Make(kGranule)));
  for (const auto& [access, words] :
       {std::pair(Access::kNone, " no access"),
        std::pair(Access::kRead, " read"),
        std::pair(Access::kReadWrite, " read-write")}) {
    faults.Arm(
        {.entry = "cuMemSetAccess", .result = CUDA_ERROR_INVALID_DEVICE});
    const absl::Status refused =
        mapping.SetAccess({{Location::On(device), access}});
    EXPECT_EQ(faults.Disarm().fired, 1u);
    EXPECT_EQ(platform::ResultOf(refused), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_THAT(refused.message(),
                HasSubstr(absl::StrCat(device.Describe(), words)));
  }
}

TEST_F(MappingTest, AnImportThatDoesNotFitWhereItIsToGoIsRefused) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = 2 * kGranule}));
  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  const auto open = [&](const Placement& at) {
    std::vector<ExportedHandle> handles;
    handles.push_back(Must(out.handle(0)));
    ImportOptions options;
    options.at = at;
    return ImportedAllocation::Open(driver(), out.ticket, handles, options);
  };
  const auto range = Reserve(3 * kGranule);
  for (const std::uint64_t offset : {2 * kGranule, 4 * kGranule}) {
    const absl::Status refused = open({range, offset}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("do not fit into an address"));
  }
  EXPECT_EQ(Must(open({range, kGranule})).address(), range->base() + kGranule);
}

TEST_F(MappingTest, NeighboursOfTwoPlacesAreNotAdoptedAsOne) {
  std::vector<Location> others = {Location::HostNuma(0)};
  if (const Device* const peer = Peer(); peer != nullptr) {
    others.push_back(Location::On(*peer));
  }
  for (const Location& other : others) {
    const auto range = Reserve(2 * kGranule);
    std::vector<Mapping> parts;
    for (const Location& where : {Location::On(device), other}) {
      auto memory =
          std::make_shared<PhysicalMemory>(Must(PhysicalMemory::Create(
              driver(), where, {kGranule, kGranule}, {kNativeKind})));
      parts.push_back(
          Must(Mapping::Map(range, parts.size() * kGranule, memory)));
      Must(parts.back().SetAccess({{Location::On(device), Access::kRead}}));
    }
    const absl::Status refused =
        AdoptedMemory::Adopt(driver(), range->base(), 2 * kGranule).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("Adopt them one by one"));
    EXPECT_EQ(
        Must(AdoptedMemory::Adopt(driver(), range->base(), kGranule)).size(),
        kGranule);
  }
}

// Who is given access later keeps it, too.
TEST_F(MappingTest, AccessGivenLaterIsGivenAgainByRemap) {
  const Device* const peer = Peer();
  if (peer == nullptr) return;
  Allocation memory = Must(Allocation::Create(device, {.size = kGranule}));
  const auto access_of_peer = [&] {
    const CUmemLocation where = Location::On(*peer).ToCuda();
    unsigned long long access = 0;
    EXPECT_EQ(driver()->cuMemGetAccess(&access, &where, memory.address()),
              CUDA_SUCCESS);
    return access;
  };
  for (const auto& [given, flags] :
       {std::pair(Access::kRead, CU_MEM_ACCESS_FLAGS_PROT_READ),
        std::pair(Access::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)}) {
    ASSERT_EQ(memory.SetAccess({{Location::On(*peer), given}}),
              absl::OkStatus());
    ASSERT_EQ(memory.Unmap(), absl::OkStatus());
    ASSERT_EQ(memory.Remap(), absl::OkStatus());
    EXPECT_EQ(access_of_peer(), flags);
  }
}

}  // namespace
}  // namespace vmm::testing
