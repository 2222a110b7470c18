// Allocations and pools over legacy IPC, for machines on which VMM has no kind of
// handle that can be shared.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/ipc/pool_peer.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/driver_block.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/restorable.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

const SharePolicy kLegacy = SharePolicy::Require(HandleKind::kLegacyIpc);
const ImportOptions kWritable = {.access = Access::kReadWrite};

class LegacyMemoryTest : public IpcTest {
 protected:
  Allocation MakeLegacy(std::uint64_t size) {
    return Must(Allocation::Create(device, {.size = size, .sharing = kLegacy}));
  }
  absl::Status Refusal(AllocationOptions options) {
    options.size = kGranule;
    options.sharing = kLegacy;
    return Allocation::Create(device, options).status();
  }
  std::unique_ptr<Endpoint> Start() {
    EndpointOptions options;
    options.listener.directory = listener_directory();
    return Must(Endpoint::Start(options));
  }
};

TEST_F(LegacyMemoryTest, EveryKindCanBeProbed) {
  EXPECT_TRUE(device.Probe(HandleKind::kLegacyIpc).ok())
      << device.Probe(HandleKind::kLegacyIpc);
  EXPECT_TRUE(absl::IsUnimplemented(device.Probe(HandleKind::kStreamPool)));
  EXPECT_TRUE(device.Probe(kNativeKind).ok());
}

TEST_F(LegacyMemoryTest, SaysWhatItIs) {
  const Allocation memory = MakeLegacy(kGranule + 1);
  EXPECT_EQ(memory.kinds(), HandleKindSet{HandleKind::kLegacyIpc});
  EXPECT_EQ(memory.size(), 2 * kGranule);
  EXPECT_EQ(memory.requested_size(), kGranule + 1);
  EXPECT_TRUE(memory.is_mapped());
  EXPECT_THAT(memory.weakness(), HasSubstr("legacy CUDA IPC"));
  EXPECT_EQ(memory.shareable().requested_size(), kGranule + 1);
  EXPECT_FALSE(Must(memory.IsRdmaCapable()));
  const Allocation stronger = Make(kGranule);
  EXPECT_EQ(stronger.weakness(), "");
  EXPECT_EQ(stronger.disclosed().size, 0u);
}

TEST_F(LegacyMemoryTest, HasNoFlagForNetworkCardsAndSaysSoWhereItIsAskedFor) {
  EXPECT_EQ(MakeLegacy(1).rdma_refusal(), absl::OkStatus());
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = 1, .sharing = kLegacy, .alignment = 256, .rdma = Rdma::kTry}));
  EXPECT_EQ(memory.address() % 256, 0u);
  EXPECT_FALSE(Must(memory.IsRdmaCapable()));
  EXPECT_TRUE(absl::IsFailedPrecondition(memory.rdma_refusal()));
  EXPECT_THAT(memory.rdma_refusal().message(),
              HasSubstr("memory of cuMemAlloc() has no flag"));
}

TEST_F(LegacyMemoryTest, DisclosesNothingElse) {
  // Small ones beside it, which the driver puts into blocks of its own.
  std::vector<CUdeviceptr> others(8);
  for (CUdeviceptr& other : others) {
    ASSERT_EQ(driver()->cuMemAlloc(&other, 5000), CUDA_SUCCESS);
  }
  const Allocation memory = MakeLegacy(5000);
  EXPECT_EQ(memory.disclosed(), (AddressSpan{memory.address(), memory.size()}));
  EXPECT_THAT(Must(Neighbours(driver(), *memory.shareable().block())),
              ::testing::IsEmpty());
  for (const CUdeviceptr other : others) {
    EXPECT_EQ(driver()->cuMemFree(other), CUDA_SUCCESS);
  }
}

TEST_F(LegacyMemoryTest, HoldsZerosAndNotWhatWasThere) {
  CUdeviceptr before = 0;
  ASSERT_EQ(driver()->cuMemAlloc(&before, kGranule), CUDA_SUCCESS);
  WritePattern(before, kGranule, 1);
  ASSERT_EQ(driver()->cuMemFree(before), CUDA_SUCCESS);
  const Allocation memory = MakeLegacy(kGranule);
  std::vector<std::uint8_t> bytes(kGranule, 1);
  ASSERT_EQ(driver()->cuMemcpyDtoH(bytes.data(), memory.address(), kGranule),
            CUDA_SUCCESS);
  EXPECT_TRUE(bytes == std::vector<std::uint8_t>(kGranule, 0));
}

TEST_F(LegacyMemoryTest, IsTakenOnlyWhereNothingElseWorks) {
  for (const SharePolicy& policy :
       {SharePolicy::AnyOf({kNativeKind, HandleKind::kLegacyIpc}),
        SharePolicy::AnyOf({HandleKind::kLegacyIpc, kNativeKind})}) {
    const Allocation memory =
        Must(Allocation::Create(device, {.size = 1, .sharing = policy}));
    EXPECT_EQ(memory.kinds(), HandleKindSet{kNativeKind});
    ASSERT_EQ(memory.passed_over().size(), 1u);
    EXPECT_EQ(memory.passed_over()[0].kind, HandleKind::kLegacyIpc);
    EXPECT_THAT(std::string(memory.passed_over()[0].reason.message()),
                HasSubstr("the stronger of the two"));
  }
}

TEST_F(LegacyMemoryTest, IsNotTakenForAMomentsShortage) {
  const SharePolicy either =
      SharePolicy::AnyOf({kNativeKind, HandleKind::kLegacyIpc});
  for (const char* entry : {"cuMemCreate", "cuMemAddressReserve"}) {
    DriverFaults faults;
    const platform::Driver faulty = FaultyDriver(driver(), &faults);
    const Device mine = Must(Device::ByOrdinal(faulty, 0));
    faults.Arm({.point = {.nth = 0},
                .entry = entry,
                .result = CUDA_ERROR_OUT_OF_MEMORY});
    const absl::Status short_of =
        Allocation::Create(mine, {.size = 1, .sharing = either}).status();
    EXPECT_EQ(faults.Disarm().fired, 1u);
    EXPECT_TRUE(absl::IsResourceExhausted(short_of)) << short_of;
    const Allocation memory =
        Must(Allocation::Create(mine, {.size = 1, .sharing = either}));
    EXPECT_EQ(memory.kinds(), HandleKindSet{kNativeKind}) << entry;
  }
}

TEST_F(LegacyMemoryTest, IsNamedWhereItIsAllThereIs) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  faults.Arm({.point = {.nth = 0, .times = FaultPoint::kForEver},
              .entry = "cuMemCreate",
              .result = CUDA_ERROR_NOT_SUPPORTED});
  const absl::Status refused = Allocation::Create(mine, {.size = 1}).status();
  faults.Disarm();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("HandleKind::kLegacyIpc"));
}

TEST_F(LegacyMemoryTest, WhereNoKindWorksEachSaysWhyNot) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  for (const HandleKind other : {HandleKind::kLegacyIpc, HandleKind::kFabric}) {
    faults.Arm({.point = {.nth = 0, .times = FaultPoint::kForEver},
                .entry = other == HandleKind::kLegacyIpc ? "" : "cuMemCreate",
                .result = CUDA_ERROR_NOT_SUPPORTED});
    const absl::Status refused =
        Allocation::Create(
            mine,
            {.size = 1, .sharing = SharePolicy::AnyOf({kNativeKind, other})})
            .status();
    faults.Disarm();
    EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
    for (const HandleKind kind : {kNativeKind, other}) {
      EXPECT_THAT(
          std::string(refused.message()),
          HasSubstr(absl::StrCat("cannot be shared as ", NameOf(kind))));
    }
    // What was asked for already is no advice.
    EXPECT_EQ(absl::StrContains(refused.message(), "HandleKind::kLegacyIpc"),
              other != HandleKind::kLegacyIpc)
        << refused;
  }
}

// Trying it would make a context, and memory, that nobody needs.
TEST_F(LegacyMemoryTest, IsNotEvenTriedWhereAnotherKindWorks) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(TestDriver(), &faults);
  const SharePolicy policy =
      SharePolicy::AnyOf({HandleKind::kLegacyIpc, kNativeKind});
  const Device there = Must(Device::ByOrdinal(faulty, 0));
  for (const char* call : {"cuMemAlloc", "cuIpcGetMemHandle"}) {
    faults.Arm({.entry = call});
    const Allocation memory =
        Must(Allocation::Create(there, {.size = 1, .sharing = policy}));
    const std::unique_ptr<Pool> pool =
        Must(Pool::Create(there, {.sharing = policy}));
    const CUdeviceptr block = Must(pool->Allocate(1, nullptr));
    EXPECT_EQ(faults.Disarm().fired, 0u) << call;
    EXPECT_TRUE(pool->Free(block, nullptr).ok());
  }
  // They are what it is tried with.
  faults.Arm({.entry = "cuIpcGetMemHandle"});
  EXPECT_FALSE(there.Probe(HandleKind::kLegacyIpc).ok());
  EXPECT_EQ(faults.Disarm().fired, 1u);
}

// A driver that refuses to export VMM memory. What was asked for comes, and says
// why; what does not name the weaker kind fails.
int AllocateWithoutVmm(const Args&) {
  const Here here;
  const Allocation memory = Must(Allocation::Create(
      here.device,
      {.size = 1,
       .sharing = SharePolicy::AnyOf({kNativeKind, HandleKind::kLegacyIpc})}));
  EXPECT_EQ(memory.kinds(), HandleKindSet{HandleKind::kLegacyIpc});
  EXPECT_EQ(memory.passed_over().size(), 1u);
  EXPECT_THAT(std::string(memory.passed_over()[0].reason.message()),
              HasSubstr("cuMemExportToShareableHandle"));
  const auto alone = Allocation::Create(here.device, {.size = 1});
  EXPECT_FALSE(alone.ok());
  EXPECT_FALSE(Pool::Create(here.device, {}).ok());
  PoolOptions options;
  options.sharing = SharePolicy::AnyOf({kNativeKind, HandleKind::kLegacyIpc});
  const std::unique_ptr<Pool> pool = Must(Pool::Create(here.device, options));
  const CUdeviceptr block = Must(pool->Allocate(1, nullptr));
  EXPECT_EQ(pool->statistics().segments.at(0).kinds,
            HandleKindSet{HandleKind::kLegacyIpc});
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  return 0;
}
const bool kAllocateWithoutVmm =
    RegisterChild("allocate-without-vmm", &AllocateWithoutVmm);

TEST_F(LegacyMemoryTest, IsTakenWhereVmmHasNoShareableKind) {
  if (!driver().is_host_memory()) {
    GTEST_SKIP() << "this driver shares VMM memory";
  }
  EXPECT_EQ(Child::Start("allocate-without-vmm", {},
                         {{"VMMSHARE_HOST_FAIL",
                           "cuMemExportToShareableHandle:1+:NOT_SUPPORTED"}})
                .Wait(),
            0);
}

TEST_F(LegacyMemoryTest, WhatItCannotDoIsRefused) {
  const auto expect = [&](const AllocationOptions& options,
                          const std::string& what) {
    const absl::Status refused = Refusal(options);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(what));
  };
  expect({.host_numa_node = 0}, "host_numa_node");
  expect({.also = {{Location::On(device)}}}, "also");
  expect({.rdma = Rdma::kRequire}, "Rdma::kRequire");
  expect({.alignment = std::uint64_t{1} << 50}, "alignment");
  Allocation memory = MakeLegacy(1);
  EXPECT_TRUE(absl::IsUnimplemented(memory.Unmap()));
  EXPECT_TRUE(absl::IsUnimplemented(memory.Discard()));
  EXPECT_TRUE(absl::IsUnimplemented(memory.Remap()));
  EXPECT_TRUE(absl::IsUnimplemented(
      memory.SetAccess({{Location::On(device), Access::kRead}})));
  WritePattern(memory.address(), memory.size(), 1);
  ExpectPattern(memory.address(), memory.size(), 1);
  const std::unique_ptr<Endpoint> endpoint = Start();
  EXPECT_TRUE(absl::IsUnimplemented(
      RestorableAllocation::Share(*endpoint, std::move(memory)).status()));
  const Allocation shared = MakeLegacy(1);
  const Share share = Must(endpoint->Publish(shared.shareable()));
  const absl::Status restorable =
      RestorableImport::Open(driver(), share.ticket(), kWritable, Late())
          .status();
  EXPECT_TRUE(absl::IsUnimplemented(restorable)) << restorable;
  EXPECT_THAT(std::string(restorable.message()),
              ::testing::AllOf(HasSubstr("RestorableImport::Open"),
                               HasSubstr("legacy IPC handle")));
  EXPECT_TRUE(endpoint->Leases().empty()) << "nobody was asked";
  const absl::Status huge =
      Allocation::Create(device,
                         {.size = ~std::uint64_t{0}, .sharing = kLegacy})
          .status();
  EXPECT_TRUE(absl::IsResourceExhausted(huge)) << huge;
}

// args: ticket text, address to dial. Reads, writes, and waits to be told to go on.
int UseLegacy(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[1]);
  const ImportedAllocation memory =
      Must(OpenTicket(TestDriver(), args[0], kWritable, Late()));
  EXPECT_NE(memory.weakness(), "");
  EXPECT_EQ(memory.disclosed().size, memory.size());
  ExpectPattern(memory.address(), memory.requested_size(), 1);
  WritePattern(memory.address(), memory.requested_size(), 2);
  Tell(channel);
  Hear(channel);
  ExpectPattern(memory.address(), memory.requested_size(), 2);
  return 0;
}
const bool kUseLegacy = RegisterChild("use-legacy", &UseLegacy);

TEST_F(LegacyMemoryTest, AShareKeepsItWhenItsAllocationIsGone) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  std::optional<Allocation> memory = MakeLegacy(3 * kGranule);
  WritePattern(memory->address(), memory->size(), 1);
  const CUdeviceptr at = memory->address();
  const MemoryId id = memory->id();
  std::optional<Share> share = Must(endpoint->Publish(memory->shareable()));
  memory.reset();
  Child user = Child::Start("use-legacy", {share->ticket(), address()});
  platform::Channel channel = Accept();
  Hear(channel);
  ExpectPattern(at, 3 * kGranule, 2);
  EXPECT_EQ(endpoint->Leases().size(), 1u);
  Tell(channel);
  EXPECT_EQ(user.Wait(), 0);
  const absl::Status returned = endpoint->WaitUntilReturned(id, Late());
  EXPECT_TRUE(returned.ok()) << returned;
  share.reset();
  EXPECT_NE(driver()->cuMemsetD8(at, 1, 1), CUDA_SUCCESS)
      << "it is there still";
}

TEST_F(LegacyMemoryTest, AShareThatWasAssignedKeepsItToo) {
  const std::unique_ptr<Endpoint> endpoint = Start();
  std::optional<Allocation> memory = MakeLegacy(kGranule);
  const CUdeviceptr at = memory->address();
  std::optional<Share> share = Must(endpoint->Publish(memory->shareable()));
  std::optional<Share> second = Must(endpoint->Publish(memory->shareable()));
  *share = *std::move(second);
  second.reset();
  memory.reset();
  EXPECT_EQ(driver()->cuMemsetD8(at, 1, 1), CUDA_SUCCESS) << "it is gone";
  share.reset();
  EXPECT_NE(driver()->cuMemsetD8(at, 1, 1), CUDA_SUCCESS)
      << "it is there still";
}

TEST_F(LegacyMemoryTest, WhicheverCallFailsNothingStays) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(TestDriver(), &faults);
  const Device there = Must(Device::ByOrdinal(faulty, 0));
  ASSERT_TRUE(there.Probe(HandleKind::kLegacyIpc).ok());
  const auto free_bytes = [&] {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  const std::size_t before = free_bytes();
  std::set<std::string> calls;
  for (std::uint64_t nth = 0;; ++nth) {
    faults.Arm({.point = {.nth = nth}});
    const absl::Status made =
        Allocation::Create(there, {.size = kGranule, .sharing = kLegacy})
            .status();
    const DriverFaults::Outcome outcome = faults.Disarm();
    EXPECT_EQ(free_bytes(), before)
        << nth << " " << (outcome.fired == 0 ? "" : outcome.failed[0]);
    if (outcome.fired == 0) {
      EXPECT_TRUE(made.ok()) << made;
      break;
    }
    calls.insert(outcome.failed[0]);
    // That mode is changed where it can be; and the last push of a context is
    // for freeing, which does without.
    if (outcome.failed[0] != "cuThreadExchangeStreamCaptureMode" &&
        outcome.failed[0] != "cuCtxPushCurrent") {
      EXPECT_FALSE(made.ok()) << outcome.failed[0];
    }
  }
  // Zeroed too, which a driver whose memory is new each time does not show.
  EXPECT_THAT(calls,
              ::testing::IsSupersetOf({"cuMemAlloc", "cuMemsetD8Async"}));
}

class LegacyPoolTest : public LegacyMemoryTest {
 protected:
  std::unique_ptr<Pool> MakePool() {
    return Must(Pool::Create(device, {.sharing = kLegacy,
                                      .first_segment_size = 2 * kGranule,
                                      .max_segment_size = 2 * kGranule}));
  }
};

TEST_F(LegacyPoolTest, SegmentsStayWhileAnybodyIsSubscribed) {
  const std::unique_ptr<Pool> pool = MakePool();
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Serve(*pool));
  const CUdeviceptr block = Must(pool->Allocate(5000, nullptr));
  WritePattern(block, 5000, 1);
  PoolPeer peer = PoolPeer::Start(listener());
  EXPECT_EQ(peer.Subscribe(share.ticket(), "rw"), "OK");
  EXPECT_EQ(peer.Import(Must(pool->Export(block))), "OK");
  EXPECT_EQ(peer.Expect(0, 1, 1), "OK");
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  ASSERT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Must(pool->Trim()), 0u);
  EXPECT_EQ(peer.Segments(), 1u);
  EXPECT_EQ(peer.Unsubscribe(), "OK");
  ExpectSoon([&] { return pool->statistics().peers == 0; });
  ExpectSoon([&] { return Must(pool->Trim()) == 2 * kGranule; });
  EXPECT_EQ(pool->statistics().reserved, 0u);
  EXPECT_EQ(peer.End(), 0);
  EXPECT_TRUE(pool->CheckInvariants().ok());
}

TEST_F(LegacyPoolTest, BothSidesAreToldWhatIsWeaker) {
  const std::unique_ptr<Pool> pool = MakePool();
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Serve(*pool));
  PoolPeer peer = PoolPeer::Start(listener());
  EXPECT_EQ(peer.Subscribe(share.ticket(), "rw"), "OK");
  EXPECT_EQ(pool->weakness(), "");
  EXPECT_EQ(peer.Weakness(), "");
  for (const char* disclosed :
       {"legacy CUDA IPC, which discloses 4194304 bytes at 0x",
        "legacy CUDA IPC, which discloses 8388608 bytes in 2 pieces, the first "
        "at 0x"}) {
    const CUdeviceptr block = Must(pool->Allocate(2 * kGranule, nullptr));
    EXPECT_EQ(peer.Import(Must(pool->Export(block))), "OK");
    EXPECT_THAT(pool->weakness(), HasSubstr(disclosed));
    EXPECT_THAT(peer.Weakness(), HasSubstr(disclosed));
    EXPECT_THAT(peer.Weakness(), HasSubstr("Its owner must keep it"));
  }
  EXPECT_EQ(peer.ReleaseAll(), "OK");
  EXPECT_EQ(peer.End(), 0);
}

TEST_F(LegacyPoolTest, NothingIsWeakerOfMemoryOfVmm) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(
      device,
      {.sharing = SharePolicy::AnyOf({kNativeKind, HandleKind::kLegacyIpc})}));
  const std::unique_ptr<Endpoint> endpoint = Start();
  const Share share = Must(endpoint->Serve(*pool));
  PoolPeer peer = PoolPeer::Start(listener());
  EXPECT_EQ(peer.Subscribe(share.ticket(), "rw"), "OK");
  const CUdeviceptr block = Must(pool->Allocate(1, nullptr));
  EXPECT_EQ(peer.Import(Must(pool->Export(block))), "OK");
  EXPECT_EQ(peer.Segments(), 1u);
  EXPECT_EQ(pool->weakness(), "");
  EXPECT_EQ(peer.Weakness(), "");
  EXPECT_EQ(peer.End(), 0);
}

}  // namespace
}  // namespace vmm::testing
