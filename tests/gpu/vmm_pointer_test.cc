#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/os/library.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/mapping.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using platform::DriverTable;
using ::testing::HasSubstr;

ImportedAllocation ImportHere(const Shareable& memory,
                              const ImportOptions& options = {}) {
  const protocol::Outgoing out = Must(protocol::MakeOutgoing(memory));
  std::vector<ExportedHandle> handles;
  for (std::size_t i = 0; i < out.ticket.layout.count(); ++i) {
    handles.push_back(Must(out.handle(i)));
  }
  return Must(
      ImportedAllocation::Open(TestDriver(), out.ticket, handles, options));
}

class PointerTest : public DriverTest {
 protected:
  PointerInfo InfoOf(CUdeviceptr pointer) {
    return Must(Classify(driver(), pointer));
  }
  absl::Status AdoptFails(CUdeviceptr pointer, std::uint64_t size) {
    const auto adopted = AdoptedMemory::Adopt(driver(), pointer, size);
    EXPECT_FALSE(adopted.ok());
    return adopted.status();
  }

  // Side by side in one range: memory of each size, made with its kinds.
  struct Part {
    std::uint64_t size;
    HandleKindSet kinds = {kNativeKind};
  };
  CUdeviceptr MapParts(const std::vector<Part>& parts) {
    std::uint64_t total = 0;
    for (const Part& part : parts) total += part.size;
    auto range = std::make_shared<AddressRange>(
        Must(AddressRange::Reserve(driver(), total)));
    std::uint64_t offset = 0;
    for (const Part& part : parts) {
      auto memory = std::make_shared<PhysicalMemory>(
          Must(PhysicalMemory::Create(driver(), Location::On(device),
                                      {part.size, part.size}, part.kinds)));
      mappings_.push_back(Must(Mapping::Map(range, offset, memory)));
      Must(mappings_.back().SetAccess(
          {{Location::On(device), Access::kReadWrite}}));
      offset += part.size;
    }
    return range->base();
  }

  std::vector<Mapping> mappings_;
};

TEST_F(PointerTest, KnowsVmmMemoryThatCanBeShared) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  for (std::uint64_t offset :
       {std::uint64_t{0}, std::uint64_t{5}, kGranule - 1}) {
    const PointerInfo info = InfoOf(memory.address() + offset);
    EXPECT_EQ(info.kind, PointerKind::kVmm);
    EXPECT_EQ(info.kinds, HandleKindSet{kNativeKind});
    EXPECT_EQ(info.range_base, memory.address());
    EXPECT_EQ(info.range_size, kGranule);
    EXPECT_TRUE(info.adoptable);
    EXPECT_EQ(info.advice, "");
  }
}

TEST_F(PointerTest, KnowsVmmMemoryThatWasCreatedPrivate) {
  const Allocation memory = Must(Allocation::Create(
      device, {.size = kGranule, .sharing = SharePolicy::Private()}));
  const PointerInfo info = InfoOf(memory.address());
  EXPECT_EQ(info.kind, PointerKind::kVmm);
  EXPECT_TRUE(info.kinds.empty());
  EXPECT_FALSE(info.adoptable);
  EXPECT_THAT(info.advice, HasSubstr("without a shareable handle kind"));
  const absl::Status status = AdoptFails(memory.address(), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PointerTest, KnowsImportedMemoryWhichCannotBePassedOn) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  const ImportedAllocation imported = ImportHere(memory.shareable());
  const PointerInfo info = InfoOf(imported.address());
  EXPECT_EQ(info.kind, PointerKind::kVmm);
  EXPECT_EQ(info.host_numa_node, std::nullopt);
  EXPECT_EQ(info.device_ordinal, device.ordinal());
  EXPECT_FALSE(info.adoptable) << info.kinds.ToString();
  const absl::Status status = AdoptFails(imported.address(), kGranule);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("imported"));
}

TEST_F(PointerTest, KnowsWhichDeviceReachesWhat) {
  const auto reached_from = [&](CUdeviceptr pointer) {
    return Must(ReachedFrom(driver(), pointer, InfoOf(pointer)));
  };
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  EXPECT_EQ(reached_from(memory.address() + 5), device.ordinal());
  const int on_the_stack = 0;
  EXPECT_EQ(reached_from(reinterpret_cast<CUdeviceptr>(&on_the_stack)),
            std::nullopt);
  CUdeviceptr other = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&other, 5000), CUDA_SUCCESS);
  EXPECT_EQ(reached_from(other), device.ordinal());
  EXPECT_EQ(driver()->cuMemFree(other), CUDA_SUCCESS);
}

TEST_F(PointerTest, KnowsThatAnotherDeviceReachesImportedMemory) {
  const Device* peer = Peer();
  if (peer == nullptr) GTEST_SKIP();
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  const ImportedAllocation imported = ImportHere(
      memory.shareable(), {.grants = {{Location::On(*peer), Access::kRead}}});
  const PointerInfo info = InfoOf(imported.address());
  EXPECT_EQ(info.device_ordinal, device.ordinal());
  EXPECT_EQ(Must(ReachedFrom(driver(), imported.address(), info)),
            peer->ordinal());
  const ImportedAllocation by_both = ImportHere(
      memory.shareable(), {.grants = {{Location::On(*peer), Access::kRead},
                                      {Location::On(device), Access::kRead}}});
  EXPECT_EQ(
      Must(ReachedFrom(driver(), by_both.address(), InfoOf(by_both.address()))),
      device.ordinal());
}

CUcontext Current(const platform::Driver& driver) {
  CUcontext current = nullptr;
  EXPECT_EQ(driver->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  return current;
}

// Adopts it; the context that is current is so afterwards.
void ExpectAdopted(const platform::Driver& driver, CUdeviceptr pointer) {
  const CUcontext before = Current(driver);
  EXPECT_EQ(Must(AdoptedMemory::Adopt(driver, pointer, kGranule)).size(),
            kGranule);
  EXPECT_EQ(Current(driver), before);
}

TEST_F(PointerTest, AdoptsAnotherDevicesMemoryInWhateverContext) {
  const std::vector<Device> all = Must(Device::All(driver()));
  if (all.size() < 2) GTEST_SKIP() << "one device";
  const Allocation memory =
      Must(Allocation::Create(all[1], {.size = kGranule}));
  ExpectAdopted(driver(), memory.address());
  const PrimaryContext context = Must(PrimaryContext::Retain(all[1]));
  const CurrentContext current = Must(context.MakeCurrent());
  ExpectAdopted(driver(), memory.address());
}

TEST_F(PointerTest, AdoptsAnotherDevicesMemoryInTheContextThatHasAccess) {
  const std::vector<Device> all = Must(Device::All(driver()));
  if (all.size() < 2) GTEST_SKIP() << "one device";
  if (!Must(device.CanAccess(all[1]))) GTEST_SKIP() << "no peer access";
  Allocation memory = Must(Allocation::Create(all[1], {.size = kGranule}));
  Must(memory.SetAccess(
      {{{Location::On(device)}, {Location::On(all[1]), Access::kNone}}}));
  ExpectAdopted(driver(), memory.address());
}

TEST_F(PointerTest, WhatNeitherDeviceMayAccessIsNotAdopted) {
  const std::vector<Device> all = Must(Device::All(driver()));
  if (all.size() < 2) GTEST_SKIP() << "one device";
  Allocation memory = Must(Allocation::Create(all[1], {.size = kGranule}));
  Must(memory.SetAccess({{{Location::On(all[1]), Access::kNone}}}));
  const absl::Status blind = AdoptFails(memory.address(), kGranule);
  EXPECT_TRUE(absl::IsFailedPrecondition(blind)) << blind;
  EXPECT_EQ(platform::ResultOf(blind), CUDA_ERROR_NOT_FOUND);
  EXPECT_THAT(std::string(blind.message()),
              HasSubstr("make a context of one that has"));
}

TEST_F(PointerTest, KnowsHostMemoryOfVmm) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule, .host_numa_node = 0}));
  const PointerInfo info = InfoOf(memory.address());
  EXPECT_EQ(info.kind, PointerKind::kVmm);
  EXPECT_EQ(info.host_numa_node, 0);
  EXPECT_EQ(info.device_ordinal, std::nullopt);
  EXPECT_TRUE(info.adoptable);
}

TEST_F(PointerTest, KnowsPinnedHostMemory) {
  void* host = nullptr;
  ASSERT_EQ(driver()->cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
  const auto pointer = reinterpret_cast<CUdeviceptr>(host);
  const PointerInfo info = InfoOf(pointer);
  EXPECT_EQ(info.kind, PointerKind::kPinnedHost);
  EXPECT_FALSE(info.adoptable);
  EXPECT_EQ(info.range_base, pointer);
  const absl::Status status = AdoptFails(pointer, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pinned host memory"));
  EXPECT_EQ(driver()->cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(PointerTest, RefusesManagedMemory) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "its pages move, and nothing of ours is to make them";
  }
  const auto library = Must(platform::Library::OpenPath(HostDriverPath()));
  const auto allocate = reinterpret_cast<decltype(&::cuMemAllocManaged)>(
      library.Find("cuMemAllocManaged"));
  CUdeviceptr pointer = 0;
  ASSERT_EQ(allocate(&pointer, 5000, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  const PointerInfo info = InfoOf(pointer + 100);
  EXPECT_EQ(info.kind, PointerKind::kManaged);
  EXPECT_TRUE(info.kinds.empty());
  EXPECT_FALSE(info.adoptable);
  EXPECT_EQ(info.range_base, pointer);
  // By consent neither: no kind is one of it.
  for (const HandleKindSet& accept :
       {HandleKindSet(),
        HandleKindSet{HandleKind::kLegacyIpc, HandleKind::kStreamPool}}) {
    const absl::Status refused =
        AdoptedMemory::Adopt(driver(), pointer, 5000, {.accept = accept})
            .status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("is managed memory and cannot be shared. Its pages "
                          "move between the host and devices, so it has no "
                          "handle. Copy into memory allocated with vmmshare"));
  }
  EXPECT_EQ(driver()->cuMemFree(pointer), CUDA_SUCCESS);
}

TEST_F(PointerTest, KnowsMemoryOfAPool) {
  if (!driver().Need<&DriverTable::cuMemAllocAsync>().ok()) {
    GTEST_SKIP() << "this driver has no pools";
  }
  CUdeviceptr pointer = 0;
  ASSERT_EQ(driver()->cuMemAllocAsync(&pointer, 5000, nullptr), CUDA_SUCCESS);
  const PointerInfo info = InfoOf(pointer);
  EXPECT_EQ(info.kind, PointerKind::kPool);
  EXPECT_FALSE(info.adoptable);
  EXPECT_THAT(info.advice, HasSubstr("stream-ordered pool"));
  // The default pool's: by consent neither.
  const absl::Status refused =
      AdoptedMemory::Adopt(driver(), pointer, 5000,
                           {.accept = {HandleKind::kStreamPool}})
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("was not made exportable"));
  EXPECT_EQ(driver()->cuMemFreeAsync(pointer, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(PointerTest, KnowsWhatIsNoMemoryOfCuda) {
  const int on_the_stack = 0;
  const auto range = Must(AddressRange::Reserve(driver(), kGranule));
  for (CUdeviceptr pointer :
       {CUdeviceptr{0}, reinterpret_cast<CUdeviceptr>(&on_the_stack),
        CUdeviceptr{0x123456789000}, range.base(), range.base() + 5}) {
    const PointerInfo info = InfoOf(pointer);
    EXPECT_EQ(info.kind, PointerKind::kNotCuda) << pointer;
    EXPECT_EQ(info.range_size, 0u);
    EXPECT_FALSE(info.adoptable);
    EXPECT_THAT(info.advice, HasSubstr("does not know this address"));
    EXPECT_TRUE(absl::IsFailedPrecondition(AdoptFails(pointer, 1)));
  }
}

class Pitfall24 : public DriverTest {};
TEST_F(Pitfall24, AskingOfACudaMallocPointerLeavesNoErrorBehind) {
  CUdeviceptr pointer = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&pointer, 5000), CUDA_SUCCESS);
  const PointerInfo info = Must(Classify(driver(), pointer + 100));
  EXPECT_EQ(info.kind, PointerKind::kDeviceAlloc);
  EXPECT_EQ(info.range_base, pointer);
  EXPECT_EQ(info.range_size, 5000u);
  EXPECT_FALSE(info.adoptable);
  const absl::Status status =
      AdoptedMemory::Adopt(driver(), pointer, 5000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("legacy CUDA IPC"));
  EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  Fill(pointer, 1, 5000);
  EXPECT_EQ(driver()->cuMemFree(pointer), CUDA_SUCCESS);
}

TEST_F(PointerTest, AdoptsVmmMemoryOfSomebodyElse) {
  const CUdeviceptr base = MapParts({{2 * kGranule}});
  Fill(base, 0x3c, 2 * kGranule);
  const AdoptedMemory adopted =
      Must(AdoptedMemory::Adopt(driver(), base, 2 * kGranule));
  EXPECT_EQ(adopted.offset(), 0u);
  EXPECT_EQ(adopted.size(), 2 * kGranule);
  const ImportedAllocation imported = ImportHere(adopted.shareable());
  EXPECT_TRUE(Holds(imported.address(), 0x3c, imported.size()));
  EXPECT_EQ(imported.ticket().device, device.uuid());
}

TEST_F(PointerTest, AdoptsAroundAPointerIntoAnAllocation) {
  const CUdeviceptr base = MapParts({{2 * kGranule}});
  Write(base + 12345, {4, 5, 6});
  const AdoptedMemory adopted =
      Must(AdoptedMemory::Adopt(driver(), base + 12345, 3));
  EXPECT_EQ(adopted.offset(), 12345u);
  // A handle gives all of the chunk, whatever was asked for.
  EXPECT_EQ(adopted.disclosed(), (AddressSpan{base, adopted.size()}));
  EXPECT_EQ(adopted.weakness(), "");
  EXPECT_EQ(adopted.size(), 2 * kGranule);
  const ImportedAllocation imported = ImportHere(adopted.shareable());
  EXPECT_EQ(Read(imported.address() + adopted.offset(), 3),
            (std::vector<std::uint8_t>{4, 5, 6}));
}

TEST_F(PointerTest, AdoptsSeveralChunksSideBySide) {
  const CUdeviceptr base =
      MapParts({{2 * kGranule}, {2 * kGranule}, {kGranule}});
  Fill(base, 0x3d, 5 * kGranule);
  const AdoptedMemory adopted =
      Must(AdoptedMemory::Adopt(driver(), base + kGranule, 4 * kGranule));
  EXPECT_EQ(adopted.offset(), kGranule);
  EXPECT_EQ(adopted.size(), 5 * kGranule);
  EXPECT_EQ(adopted.shareable().layout(),
            (ChunkLayout{5 * kGranule, 2 * kGranule}));
  const ImportedAllocation imported = ImportHere(adopted.shareable());
  EXPECT_TRUE(Holds(imported.address(), 0x3d, 5 * kGranule));
}

TEST_F(PointerTest, AdoptsOnlyTheChunksOfTheRangeAskedFor) {
  const CUdeviceptr base = MapParts({{kGranule}, {kGranule}, {kGranule}});
  const AdoptedMemory adopted =
      Must(AdoptedMemory::Adopt(driver(), base + kGranule, kGranule));
  EXPECT_EQ(adopted.offset(), 0u);
  EXPECT_EQ(adopted.size(), kGranule);
  const AdoptedMemory two =
      Must(AdoptedMemory::Adopt(driver(), base + 2 * kGranule - 1, 2));
  EXPECT_EQ(two.offset(), kGranule - 1);
  EXPECT_EQ(two.size(), 2 * kGranule);
}

TEST_F(PointerTest, RefusesChunksThatOneLayoutCannotDescribe) {
  for (const std::vector<Part>& parts :
       {std::vector<Part>{{kGranule}, {2 * kGranule}},
        std::vector<Part>{{2 * kGranule}, {kGranule}, {2 * kGranule}},
        std::vector<Part>{{2 * kGranule}, {kGranule}, {kGranule}}}) {
    std::uint64_t total = 0;
    for (const Part& part : parts) total += part.size;
    const absl::Status status = AdoptFails(MapParts(parts), total);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("all but the last must have the same size"));
  }
}

TEST_F(PointerTest, RefusesARangeWithAChunkThatCannotBeExported) {
  const CUdeviceptr base = MapParts({{kGranule}, {kGranule, {}}});
  const absl::Status status = AdoptFails(base, 2 * kGranule);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("handle kind"));
  EXPECT_TRUE(AdoptedMemory::Adopt(driver(), base, kGranule).ok());
}

TEST_F(PointerTest, RefusesARangeThatLeavesTheMappedMemory) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  for (std::uint64_t size :
       {std::uint64_t{0}, kGranule + 1, ~std::uint64_t{0}}) {
    const absl::Status status = AdoptFails(memory.address(), size);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << size << ": " << status;
  }
}

TEST_F(PointerTest, AdoptsHostMemory) {
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = 2 * kGranule, .max_chunk_size = kGranule, .host_numa_node = 0}));
  Fill(memory.address(), 0x3e, memory.size());
  const AdoptedMemory adopted =
      Must(AdoptedMemory::Adopt(driver(), memory.address(), memory.size()));
  EXPECT_EQ(adopted.offset(), 0u);
  EXPECT_EQ(adopted.size(), memory.size());
  EXPECT_TRUE(adopted.shareable().where().is_host());
  const ImportedAllocation imported =
      ImportHere(adopted.shareable(), {.grants = {{Location::On(device)}}});
  EXPECT_TRUE(Holds(imported.address(), 0x3e, imported.size()));
}

TEST_F(PointerTest, AdoptedMemoryOutlivesItsMapping) {
  const CUdeviceptr base = MapParts({{kGranule}});
  Fill(base, 0x3f, kGranule);
  const AdoptedMemory adopted =
      Must(AdoptedMemory::Adopt(driver(), base, kGranule));
  mappings_.clear();
  const ImportedAllocation imported = ImportHere(adopted.shareable());
  EXPECT_TRUE(Holds(imported.address(), 0x3f, kGranule));
}

TEST_F(PointerTest, AdoptsOnAThreadWithoutAContext) {
  const Allocation memory =
      Must(Allocation::Create(device, {.size = kGranule}));
  std::thread([&] { ExpectAdopted(driver(), memory.address()); }).join();
}

}  // namespace
}  // namespace vmm::testing
