// Misuse of vmm/: a broken REQUIRES ends the program with a line that says so.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/must.h"
#include "tests/support/test_driver.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/keeper/internal/protocol.h"
#include "vmm/keeper/internal/record.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/mapping.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/restorable.h"
#include "vmm/share/ticket.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

constexpr std::uint64_t kGranule = 2 << 20;

Device FirstDevice() { return Must(Device::ByOrdinal(TestDriver(), 0)); }

Allocation Make() {
  return Must(Allocation::Create(FirstDevice(), {.size = kGranule}));
}

Mapping MakeMapping() {
  const Device device = FirstDevice();
  auto range = std::make_shared<AddressRange>(
      Must(AddressRange::Reserve(device.driver(), kGranule)));
  auto memory = std::make_shared<PhysicalMemory>(Must(PhysicalMemory::Create(
      device.driver(), Location::On(device), {kGranule, kGranule}, {})));
  return Must(Mapping::Map(std::move(range), 0, std::move(memory)));
}

TEST(VmmDeathTest, APolicyOfNoKindIsNotAnyOf) {
  EXPECT_DEATH(SharePolicy::AnyOf({}), "needs at least one handle kind");
}

TEST(VmmDeathTest, DiscardedMemoryCannotBeShared) {
  EXPECT_DEATH(
      {
        Allocation memory = Make();
        Must(memory.Discard());
        static_cast<void>(memory.shareable());
      },
      "the memory was dropped; Remap\\(\\) it first");
}

TEST(VmmDeathTest, OnlyMappedMemoryIsMadeRestorable) {
  EXPECT_DEATH(
      {
        const std::unique_ptr<Endpoint> endpoint = Must(Endpoint::Start({}));
        Allocation memory = Make();
        Must(memory.Unmap());
        Must(RestorableAllocation::Share(*endpoint, std::move(memory)));
      },
      "memory that is not mapped; Remap\\(\\) it first");
}

TEST(VmmDeathTest, AFenceThatWasGivenBackHasNoPlace) {
  EXPECT_DEATH(
      {
        const std::unique_ptr<FencePool> fences =
            Must(FencePool::Create(FirstDevice()));
        Fence fence = Must(fences->New());
        Must(fence.Release());
        static_cast<void>(fence.place());
      },
      "place\\(\\) of a fence that was given back");
}

TEST(VmmDeathTest, MemoryNeedsOneHandleForEveryChunk) {
  EXPECT_DEATH(PhysicalMemory::FromHandles({}, {4 * kGranule, kGranule},
                                           std::nullopt, {}),
               "one handle for every chunk");
}

TEST(VmmDeathTest, AMappingMovedFromCannotBeUsed) {
  EXPECT_DEATH(
      {
        Mapping mapping = MakeMapping();
        const Mapping taken = std::move(mapping);
        mapping.SetAccess({{Location::On(FirstDevice())}}).IgnoreError();
      },
      "SetAccess on a mapping moved from");
  EXPECT_DEATH(
      {
        Mapping mapping = MakeMapping();
        const Mapping taken = std::move(mapping);
        std::move(mapping).Unmap().IgnoreError();
      },
      "Unmap of a mapping moved from");
}

TEST(VmmDeathTest, MappedMemoryIsNeitherDroppedNorReplaced) {
  const auto region = [] {
    const Device device = FirstDevice();
    PhysicalMemory memory = Must(PhysicalMemory::Create(
        device.driver(), Location::On(device), {kGranule, kGranule}, {}));
    return Must(MappedRegion::Create(device.driver(), std::move(memory), 0,
                                     {{Location::On(device)}}));
  };
  EXPECT_DEATH(region().DropMemory(), "must be unmapped before it is dropped");
  EXPECT_DEATH(
      {
        MappedRegion mapped = region();
        const Device device = FirstDevice();
        Must(mapped.Unmap());
        mapped.DropMemory();
        mapped.ReplaceMemory(
            Must(PhysicalMemory::Create(device.driver(), Location::On(device),
                                        {2 * kGranule, kGranule}, {})));
      },
      "memory of the same size");
}

TEST(VmmDeathTest, ATicketStringNeedsAnAddressThatFits) {
  EXPECT_DEATH(FormatTicketString({SampleTicket(), {}}), "1 to 1024 bytes");
  EXPECT_DEATH(
      FormatTicketString({SampleTicket(), {.address = std::string(1025, 'a')}}),
      "1 to 1024 bytes");
}

TEST(VmmDeathTest, ARequestHasOneToManyKeys) {
  EXPECT_DEATH(
      {
        auto pair = Must(platform::Channel::Pair());
        protocol::SendOpen(pair.first, {}, Late()).IgnoreError();
      },
      "a request has 1 to kMaxRequested keys");
  EXPECT_DEATH(
      {
        auto pair = Must(platform::Channel::Pair());
        const std::vector<ShareKey> keys(protocol::kMaxRequested + 1);
        protocol::SendOpen(pair.first, keys, Late()).IgnoreError();
      },
      "a request has 1 to kMaxRequested keys");
}

TEST(VmmDeathTest, AReturnNamesOneToManyAllocations) {
  for (const std::size_t count :
       {std::size_t{0}, protocol::kMaxRequested + 1}) {
    EXPECT_DEATH(
        {
          auto pair = Must(platform::Channel::Pair());
          const std::vector<MemoryId> ids(count);
          protocol::SendReturn(pair.first, ids, Late()).IgnoreError();
        },
        "a message names 1 to kMaxRequested allocations");
  }
}

TEST(VmmDeathTest, ARequestToAKeeperHasTheFieldsOfItsType) {
  const auto ticket = SampleTicket();
  for (const keeper::Request& bad : {
           keeper::Request{.type = keeper::kOk},
           keeper::Request{.type = keeper::kLock,
           .name = std::string(keeper::kMaxName + 1, 'x')},
           keeper::Request{.type = keeper::kPut, .name = "n"},
           keeper::Request{
               .type = keeper::kDrop, .name = "n", .ticket = ticket},
           keeper::Request{.type = keeper::kPut,
           .name = "n",
           .ticket = ticket,
           .replaces = ticket.id},
       }) {
    EXPECT_DEATH(keeper::EncodeRequest(bad), "a request to a keeper needs");
  }
}

TEST(VmmDeathTest, ARecordOfKeptMemoryHasANameAndAUserThatFit) {
  keeper::Record record;
  record.ticket = SampleTicket();
  record.name = std::string(keeper::kMaxName + 1, 'x');
  EXPECT_DEATH(keeper::EncodeRecord(record), "name and user must fit");
  record.name = "n";
  record.user = platform::UserId(std::string(keeper::kMaxUserText + 1, '1'));
  EXPECT_DEATH(keeper::EncodeRecord(record), "name and user must fit");
}

// What no program may do with device memory, or with host memory that the CPU
// was not granted: a fault, at once, and not a wrong value.
TEST(VmmDeathTest, AStrayAccessOfTheCpuToDeviceMemoryFaults) {
  EXPECT_EXIT(
      {
        const Allocation memory = Make();
        *reinterpret_cast<volatile int*>(
            static_cast<std::uintptr_t>(memory.address())) = 1;
      },
      EndedByAFault, "");
}

TEST(VmmDeathTest, AStrayAccessOfTheCpuToHostMemoryFaults) {
  EXPECT_EXIT(
      {
        const Allocation memory = Must(Allocation::Create(
            FirstDevice(), {.size = kGranule, .host_numa_node = 0}));
        *reinterpret_cast<volatile int*>(
            static_cast<std::uintptr_t>(memory.address())) = 1;
      },
      EndedByAFault, "");
}

}  // namespace
}  // namespace vmm::testing
