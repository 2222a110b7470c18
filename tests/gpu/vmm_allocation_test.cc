#include <gmock/gmock.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class AllocationTest : public DriverTest {
 protected:
  Allocation Make(const AllocationOptions& options) {
    return Must(Allocation::Create(device, options));
  }
  absl::Status Fails(const AllocationOptions& options) {
    const absl::StatusOr<Allocation> made = Allocation::Create(device, options);
    EXPECT_FALSE(made.ok());
    return made.status();
  }
};

TEST_F(AllocationTest, IsReadAndWrittenLikeAnyDeviceMemory) {
  const Allocation memory = Make({.size = kGranule});
  Fill(memory.address(), 0x5a, memory.size());
  EXPECT_TRUE(Holds(memory.address(), 0x5a, memory.size()));
  Write(memory.address() + 1000, {1, 2, 3});
  EXPECT_EQ(Read(memory.address() + 999, 5),
            (std::vector<std::uint8_t>{0x5a, 1, 2, 3, 0x5a}));
}

TEST_F(AllocationTest, RoundsItsSizeUpAndRemembersWhatWasAsked) {
  const std::uint64_t granularity = Must(PhysicalMemory::Granularity(
      driver(), Location::On(device), {kNativeKind}));
  for (std::uint64_t size :
       {std::uint64_t{1}, granularity - 1, granularity, granularity + 1}) {
    const Allocation memory = Make({.size = size});
    EXPECT_EQ(memory.requested_size(), size);
    EXPECT_EQ(memory.size(),
              (size + granularity - 1) / granularity * granularity);
    EXPECT_EQ(memory.device(), device);
    EXPECT_TRUE(memory.is_mapped());
    EXPECT_EQ(memory.kinds(), HandleKindSet{kNativeKind});
    EXPECT_TRUE(memory.passed_over().empty());
  }
}

TEST_F(AllocationTest, HasAnIdOfItsOwn) {
  const Allocation a = Make({.size = 1});
  const Allocation b = Make({.size = 1});
  EXPECT_NE(a.id(), b.id());
  EXPECT_EQ(a.id().owner, b.id().owner);
}

TEST_F(AllocationTest, OfSizeZeroIsRefusedBeforeTheDriverIsAsked) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  faults.ResetCounts();
  const absl::Status status = Allocation::Create(mine, {.size = 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("size is 0 bytes"));
  EXPECT_EQ(faults.CallsByEntry().count("cuMemCreate"), 0u);
}

TEST_F(AllocationTest, OverTheDevicesSizeIsRefusedAsExhausted) {
  std::size_t total = 0;
  ASSERT_EQ(driver()->cuDeviceTotalMem(&total, device.cuda_device()),
            CUDA_SUCCESS);
  for (const AllocationOptions& options :
       {AllocationOptions{.size = total + kGranule},
        AllocationOptions{.size = std::uint64_t{1} << 50}}) {
    const absl::Status status = Fails(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuMemCreate(size="));
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not fit"));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(OnHostMemoryDriver() ? "VMMSHARE_HOST_MEMORY"
                                               : "nvidia-smi"));
  }
}

// A list of so many chunks would not fit either.
TEST_F(AllocationTest, OfMoreChunksThanFitIsRefusedAsExhausted) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  Must(mine.Probe(kNativeKind));
  // Or a device would be filled with them.
  faults.Arm({.point = {.nth = 2},
              .entry = "cuMemCreate",
              .result = CUDA_ERROR_OUT_OF_MEMORY});
  const absl::Status status =
      Allocation::Create(
          mine, {.size = std::uint64_t{1} << 62, .max_chunk_size = kGranule})
          .status();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 3 of 2199"));
}

TEST_F(AllocationTest, OfAnImpossibleSizeIsRefused) {
  const absl::Status status =
      Fails({.size = std::numeric_limits<std::uint64_t>::max()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("overflows 64 bits"));
}

TEST_F(AllocationTest, WithAChunkLimitUnderTheGranularityIsRefused) {
  const absl::Status status = Fails({.size = kGranule, .max_chunk_size = 4096});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("max_chunk_size is 4096 bytes"));
}

TEST_F(AllocationTest, OfSeveralChunksIsOneRange) {
  const Allocation memory =
      Make({.size = 5 * kGranule, .max_chunk_size = 2 * kGranule});
  ASSERT_EQ(memory.shareable().layout().count(), 3u);
  Fill(memory.address(), 0x11, memory.size());
  // Across both borders between chunks, in one copy.
  const std::vector<std::uint8_t> across(3 * kGranule, 0x77);
  Write(memory.address() + kGranule, across);
  EXPECT_TRUE(Holds(memory.address(), 0x11, kGranule));
  EXPECT_TRUE(Holds(memory.address() + kGranule, 0x77, 3 * kGranule));
  EXPECT_TRUE(Holds(memory.address() + 4 * kGranule, 0x11, kGranule));
}

TEST_F(AllocationTest, IsAlignedAsAsked) {
  for (std::uint64_t alignment : {kGranule, 16 * kMiB, 1024 * kMiB}) {
    const Allocation memory = Make({.size = kGranule, .alignment = alignment});
    EXPECT_EQ(memory.address() % alignment, 0u);
  }
}

TEST_F(AllocationTest, WithAnAlignmentThatIsNoPowerOfTwoIsRefused) {
  const absl::Status status = Fails({.size = kGranule, .alignment = 3 * kMiB});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("alignment=3145728"));
}

TEST_F(AllocationTest, ReadOnlyMemoryIsReadAndNotWritten) {
  Allocation memory = Make({.size = kGranule});
  Fill(memory.address(), 9, kGranule);
  ASSERT_TRUE(memory.SetAccess({{Location::On(device), Access::kRead}}).ok());
  EXPECT_TRUE(Holds(memory.address(), 9, 64));
  EXPECT_EQ(driver()->cuMemsetD8(memory.address(), 1, 64),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_TRUE(
      memory.SetAccess({{Location::On(device), Access::kReadWrite}}).ok());
  Fill(memory.address(), 1, 64);
}

TEST_F(AllocationTest, MemoryWithoutAccessIsNotEvenRead) {
  Allocation memory = Make({.size = kGranule});
  ASSERT_TRUE(memory.SetAccess({{Location::On(device), Access::kNone}}).ok());
  std::uint8_t byte = 0;
  EXPECT_EQ(driver()->cuMemcpyDtoH(&byte, memory.address(), 1),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(AllocationTest, UnmapAndRemapKeepAddressContentAndAccess) {
  Allocation memory = Make({.size = 2 * kGranule, .max_chunk_size = kGranule});
  const CUdeviceptr address = memory.address();
  const MemoryId id = memory.id();
  Fill(address, 0x33, memory.size());
  ASSERT_TRUE(memory.SetAccess({{Location::On(device), Access::kRead}}).ok());
  ASSERT_TRUE(memory.Unmap().ok());
  EXPECT_FALSE(memory.is_mapped());
  EXPECT_EQ(memory.address(), address);
  std::uint8_t byte = 0;
  EXPECT_EQ(driver()->cuMemcpyDtoH(&byte, address, 1),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_TRUE(memory.Remap().ok());
  EXPECT_EQ(memory.address(), address);
  EXPECT_EQ(memory.id(), id);
  EXPECT_TRUE(Holds(address, 0x33, memory.size()));
  EXPECT_EQ(driver()->cuMemsetD8(address, 1, 64), CUDA_ERROR_INVALID_VALUE)
      << "it was read-only before";
}

TEST_F(AllocationTest, RemapGivesADeviceThatWasNamedTwiceWhatItHadLast) {
  Allocation memory = Make(
      {.size = kGranule, .also = {{Location::On(device), Access::kReadWrite}}});
  Fill(memory.address(), 0x33, kGranule);
  Must(memory.SetAccess({{Location::On(device), Access::kRead}}));
  Must(memory.Unmap());
  Must(memory.Remap());
  unsigned long long access = 0;
  const CUmemLocation here = Location::On(device).ToCuda();
  ASSERT_EQ(driver()->cuMemGetAccess(&access, &here, memory.address()),
            CUDA_SUCCESS);
  EXPECT_EQ(access, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_TRUE(Holds(memory.address(), 0x33, kGranule));
}

TEST_F(AllocationTest, DiscardAndRemapGiveNewZeroedMemoryAtTheSameAddress) {
  Allocation memory = Make({.size = 2 * kGranule, .max_chunk_size = kGranule});
  const CUdeviceptr address = memory.address();
  const MemoryId old = memory.id();
  Fill(address, 0x44, memory.size());
  ASSERT_TRUE(memory.Discard().ok());
  EXPECT_FALSE(memory.is_mapped());
  EXPECT_EQ(memory.size(), 2 * kGranule);
  ASSERT_TRUE(memory.Remap().ok());
  EXPECT_EQ(memory.address(), address);
  EXPECT_EQ(memory.shareable().layout().count(), 2u);
  EXPECT_TRUE(Holds(address, 0, memory.size()));
  EXPECT_EQ(memory.id().number, old.number);
  EXPECT_EQ(memory.id().generation, old.generation + 1);
}

TEST_F(AllocationTest, DiscardGivesTheMemoryBackAtOnce) {
  constexpr std::uint64_t kSize = 256 * kMiB;
  const auto free_bytes = [this] {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(driver()->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  const std::size_t before = free_bytes();
  Allocation memory = Make({.size = kSize});
  EXPECT_LE(free_bytes(), before - kSize);
  ASSERT_TRUE(memory.Discard().ok());
  EXPECT_EQ(free_bytes(), before);
  ASSERT_TRUE(memory.Remap().ok());
  EXPECT_LE(free_bytes(), before - kSize);
}

TEST_F(AllocationTest, DiscardOfUnmappedMemoryWorksToo) {
  Allocation memory = Make({.size = kGranule});
  ASSERT_TRUE(memory.Unmap().ok());
  EXPECT_TRUE(memory.Discard().ok());
  EXPECT_TRUE(memory.Remap().ok());
  Fill(memory.address(), 1, kGranule);
}

TEST_F(AllocationTest, UnmapAndRemapInTheWrongOrderAreErrors) {
  Allocation memory = Make({.size = kGranule});
  absl::Status status = memory.Remap();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("memory that is mapped"));
  ASSERT_TRUE(memory.Unmap().ok());
  status = memory.Unmap();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not mapped"));
  status = memory.SetAccess({{Location::On(device), Access::kRead}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Remap() it first"));
  EXPECT_TRUE(memory.Remap().ok());
  EXPECT_FALSE(memory.Remap().ok());
  ASSERT_TRUE(memory.Discard().ok());
  EXPECT_FALSE(memory.Unmap().ok());
}

TEST_F(AllocationTest, RemapThatFailsCanBeTriedAgain) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  Allocation memory = Must(Allocation::Create(mine, {.size = kGranule}));
  for (const char* entry : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    ASSERT_TRUE(memory.Discard().ok());
    faults.Arm({.point = {.nth = 0},
                .entry = entry,
                .result = CUDA_ERROR_OUT_OF_MEMORY});
    const absl::Status failed = memory.Remap();
    EXPECT_EQ(faults.Disarm().fired, 1u) << entry;
    EXPECT_TRUE(absl::IsResourceExhausted(failed)) << entry << failed;
    EXPECT_FALSE(memory.is_mapped());
    ASSERT_TRUE(memory.Remap().ok()) << entry;
    Fill(memory.address(), 1, kGranule);
  }
}

TEST_F(AllocationTest, MovedKeepsItsMemory) {
  Allocation memory = Make({.size = kGranule});
  const CUdeviceptr address = memory.address();
  Fill(address, 0x21, kGranule);
  Allocation moved = std::move(memory);
  EXPECT_EQ(moved.address(), address);
  EXPECT_TRUE(Holds(address, 0x21, kGranule));
  moved = Make({.size = kGranule});
  EXPECT_NE(moved.address(), 0u);
  Fill(moved.address(), 1, kGranule);
}

TEST_F(AllocationTest, OnTheHostIsWrittenByTheCpuAndReadByTheDevice) {
  const Allocation memory =
      Make({.size = kGranule,
            .host_numa_node = 0,
            .also = {{Location::HostNuma(0), Access::kReadWrite}}});
  auto* const words = reinterpret_cast<volatile std::uint32_t*>(
      static_cast<std::uintptr_t>(memory.address()));
  words[0] = 0x01020304;
  words[kGranule / 4 - 1] = 0x0a0b0c0d;
  EXPECT_EQ(Read(memory.address(), 4), (std::vector<std::uint8_t>{4, 3, 2, 1}));
  EXPECT_EQ(Read(memory.address() + kGranule - 4, 4),
            (std::vector<std::uint8_t>{0xd, 0xc, 0xb, 0xa}));
  Fill(memory.address(), 0xee, kGranule);
  EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(words[1], 0xeeeeeeeeu);
}

// That of chunks of the host's memory that the CPU reaches: each is filled by
// itself, and copies know no border.
TEST_F(AllocationTest, OnTheHostIsFilledOverABorderOnlyWhereTheCpuHasNoAccess) {
  AllocationOptions options{
      .size = 2 * kGranule, .max_chunk_size = kGranule, .host_numa_node = 0};
  const Allocation of_the_device = Make(options);
  Fill(of_the_device.address(), 0x31, 2 * kGranule);
  EXPECT_TRUE(Holds(of_the_device.address(), 0x31, 2 * kGranule));

  options.also = {{Location::HostNuma(0), Access::kReadWrite}};
  const Allocation memory = Make(options);
  ASSERT_EQ(memory.shareable().layout().count(), 2u);
  const CUdeviceptr border = memory.address() + kGranule;
  EXPECT_EQ(driver()->cuMemsetD8(border - 4, 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver()->cuMemsetD32(border - 4, 1, 2), CUDA_ERROR_INVALID_VALUE);
  Fill(memory.address(), 0x32, kGranule);
  Fill(border, 0x33, kGranule);
  EXPECT_TRUE(Holds(memory.address(), 0x32, kGranule));
  EXPECT_TRUE(Holds(border, 0x33, kGranule));
  Write(border - 4, std::vector<std::uint8_t>(8, 0x34));
  EXPECT_TRUE(Holds(border - 4, 0x34, 8));
}

TEST_F(AllocationTest, OnANodeThatIsNotThereIsRefused) {
  const absl::Status status = Fails({.size = kGranule, .host_numa_node = 9999});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("host NUMA node 9999"));
}

TEST_F(AllocationTest, OfDeviceMemoryCannotBeGrantedToTheCpu) {
  const absl::Status status = Fails(
      {.size = kGranule, .also = {{Location::HostNuma(0), Access::kRead}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the CPU cannot be granted access"));
}

TEST_F(AllocationTest, PrivateMemoryCannotBeShared) {
  const Allocation memory =
      Make({.size = kGranule, .sharing = SharePolicy::Private()});
  EXPECT_TRUE(memory.kinds().empty());
  Fill(memory.address(), 1, kGranule);
  auto [owner, importer] = Must(platform::Channel::Pair());
  const absl::Status sent = SendAllocation(owner, memory.shareable(), Late());
  EXPECT_EQ(sent.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(sent.message()), HasSubstr("created private"));
  const auto received = ReceiveAllocation(importer, driver(), {}, Late());
  EXPECT_EQ(received.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(importer.is_open());
}

TEST_F(AllocationTest, OfAKindThisBuildLacksIsRefused) {
  const absl::Status status =
      Fails({.size = kGranule, .sharing = SharePolicy::Require(kForeignKind)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::string(NameOf(kForeignKind))));
}

TEST_F(AllocationTest, AccessOfSeveralDevicesIsSetInOneCall) {
  const Device* const peer = Peer();
  if (peer == nullptr) GTEST_SKIP();
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(counted, 0));
  const Device other = Must(Device::ByOrdinal(counted, 1));
  Must(mine.Probe(kNativeKind));
  faults.ResetCounts();
  Allocation memory = Must(Allocation::Create(
      mine, {.size = 2 * kGranule,
             .max_chunk_size = kGranule,
             .also = {{Location::On(other), Access::kRead}}}));
  EXPECT_EQ(faults.CallsByEntry()["cuMemSetAccess"], 1u);
  Fill(memory.address(), 0x66, memory.size());
  {
    const PrimaryContext context = Must(PrimaryContext::Retain(*peer));
    const CurrentContext current = Must(context.MakeCurrent());
    EXPECT_TRUE(Holds(memory.address(), 0x66, memory.size()));
    EXPECT_EQ(driver()->cuMemsetD8(memory.address(), 1, 64),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_TRUE(memory
                    .SetAccess({{Location::On(other), Access::kReadWrite},
                                {Location::On(mine), Access::kRead}})
                    .ok());
    Fill(memory.address(), 0x67, 64);
    EXPECT_EQ(driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_TRUE(Holds(memory.address(), 0x67, 64));
  // And Remap() remembers both.
  ASSERT_TRUE(memory.Unmap().ok());
  ASSERT_TRUE(memory.Remap().ok());
  EXPECT_EQ(driver()->cuMemsetD8(memory.address(), 1, 64),
            CUDA_ERROR_INVALID_VALUE);
}

// Of the host-memory driver with devices that are no peers.
int GrantToADeviceThatIsNoPeer(const std::vector<std::string>&) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(TestDriver(), &faults);
  const Device mine = Must(Device::ByOrdinal(counted, 0));
  const Device other = Must(Device::ByOrdinal(counted, 1));
  EXPECT_FALSE(Must(other.CanAccess(mine)));
  faults.ResetCounts();
  const absl::Status status =
      Allocation::Create(mine,
                         {.size = kGranule, .also = {{Location::On(other)}}})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(absl::StrCat(other.Describe(), " has no peer access to ",
                             mine.Describe())));
  EXPECT_EQ(faults.CallsByEntry().count("cuMemCreate"), 0u);

  Allocation memory = Must(Allocation::Create(mine, {.size = kGranule}));
  faults.ResetCounts();
  EXPECT_TRUE(absl::IsFailedPrecondition(
      memory.SetAccess({{Location::On(other), Access::kRead}})));
  EXPECT_EQ(faults.CallsByEntry().count("cuMemSetAccess"), 0u);

  const protocol::Outgoing out =
      Must(protocol::MakeOutgoing(memory.shareable()));
  std::vector<ExportedHandle> handles;
  handles.push_back(Must(out.handle(0)));
  faults.ResetCounts();
  const absl::Status opened =
      ImportedAllocation::Open(counted, out.ticket, handles,
                               {.grants = {{Location::On(other)}}})
          .status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << opened;
  EXPECT_EQ(faults.CallsByEntry().count("cuMemImportFromShareableHandle"), 0u);
  return 0;
}
const bool kNoPeer = RegisterChild("grant-to-a-device-that-is-no-peer",
                                   &GrantToADeviceThatIsNoPeer);

TEST(Pitfall20, AMissingPeerIsFoundBeforeAnythingIsAllocatedOrMapped) {
  if (!OnHostMemoryDriver()) {
    GTEST_SKIP() << "real devices cannot be told to be no peers";
  }
  EXPECT_EQ(Child::Start("grant-to-a-device-that-is-no-peer", {},
                         {{"VMMSHARE_HOST_PEERS", "none"},
                          {"VMMSHARE_HOST_DEVICES", "2"}})
                .Wait(),
            0);
}

// Each reason is a sentence or more, and each ends once.
TEST_F(AllocationTest, ThatNoKindWorksForGivesEveryReasonAndWhatElseThereIs) {
  DriverFaults faults;
  const Device refusing =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  faults.Arm({.point = {.times = FaultPoint::kForEver},
              .entry = "cuMemCreate",
              .result = CUDA_ERROR_NOT_PERMITTED});
  const absl::Status status =
      Allocation::Create(
          refusing,
          {.size = kGranule,
           .sharing = SharePolicy::AnyOf(
               {SharePolicy::Native().kinds().front(), HandleKind::kFabric})})
          .status();
  faults.Disarm();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("none of the handle kinds asked for can be used "
                              "here: memory of device 0"),
                    HasSubstr("cannot be shared as fabric handle: "),
                    HasSubstr(". Or accept legacy CUDA IPC"),
                    Not(HasSubstr(".. ")), Not(HasSubstr(".;"))));
}

class Pitfall01 : public DriverTest {};
TEST_F(Pitfall01, AFabricAttributeOfOneIsNotTakenForAUsableFabric) {
  int attribute = -1;
  ASSERT_EQ(driver()->cuDeviceGetAttribute(
                &attribute, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
                device.cuda_device()),
            CUDA_SUCCESS);
  const absl::Status probed = device.Probe(HandleKind::kFabric);
  if (probed.ok()) GTEST_SKIP() << "this machine hands out fabric handles";
  if (OnHostMemoryDriver()) {
    EXPECT_EQ(attribute, 1);
    EXPECT_EQ(platform::ResultOf(probed), CUDA_ERROR_NOT_PERMITTED);
  }
  const auto required = Allocation::Create(
      device,
      {.size = kGranule, .sharing = SharePolicy::Require(HandleKind::kFabric)});
  EXPECT_EQ(required.status().code(), probed.code());
  EXPECT_THAT(std::string(required.status().message()),
              HasSubstr("none of the handle kinds asked for can be used here"));
  EXPECT_THAT(std::string(required.status().message()), HasSubstr("fabric"));
  if (platform::ResultOf(probed) == CUDA_ERROR_NOT_PERMITTED) {
    EXPECT_THAT(std::string(required.status().message()), HasSubstr("IMEX"));
  }
}

class Pitfall05 : public DriverTest {};
TEST_F(Pitfall05, AKindThatIsRefusedAfterItsProbeLeavesNoneAndIsAnError) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  Must(mine.Probe(kNativeKind));
  faults.Arm({.point = {.nth = 0},
              .entry = "cuMemCreate",
              .result = CUDA_ERROR_NOT_SUPPORTED});
  const auto made = Allocation::Create(mine, {.size = kGranule});
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(Pitfall05, AKindLeftOutCannotBeAddedAndTheErrorSaysSo) {
  const Allocation memory = Must(Allocation::Create(device, {.size = 1}));
  const absl::Status status =
      MakeTicket(memory.shareable(), HandleKind::kFabric).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("created for ", NameOf(kNativeKind))));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("kinds cannot be added later"));
}

class Pitfall07 : public DriverTest {};
TEST_F(Pitfall07, AKindThatIsPassedOverIsNamedWithItsReason) {
  const absl::Status probed = device.Probe(HandleKind::kFabric);
  if (probed.ok()) GTEST_SKIP() << "this machine hands out fabric handles";
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = kGranule,
       .sharing = SharePolicy::AnyOf({HandleKind::kFabric, kNativeKind})}));
  EXPECT_EQ(memory.kinds(), HandleKindSet{kNativeKind});
  ASSERT_EQ(memory.passed_over().size(), 1u);
  EXPECT_EQ(memory.passed_over()[0].kind, HandleKind::kFabric);
  EXPECT_EQ(memory.passed_over()[0].reason, probed);
}

class Pitfall18 : public DriverTest {};
TEST_F(Pitfall18, TheGranularityIsAskedForTheKindsAndThePlace) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  Must(mine.Probe(kNativeKind));
  faults.ResetCounts();
  const Allocation memory = Must(Allocation::Create(mine, {.size = 1}));
  EXPECT_EQ(faults.CallsByEntry()["cuMemGetAllocationGranularity"], 1u);
  EXPECT_EQ(memory.size(),
            Must(PhysicalMemory::Granularity(mine.driver(), Location::On(mine),
                                             memory.kinds())));
}

class Pitfall35 : public DriverTest {};
TEST_F(Pitfall35, AChunkLimitKeepsEveryDriverHandleUnderIt) {
  DriverFaults faults;
  const Device mine =
      Must(Device::ByOrdinal(FaultyDriver(driver(), &faults), 0));
  Must(mine.Probe(kNativeKind));
  faults.ResetCounts();
  const Allocation memory = Must(Allocation::Create(
      mine, {.size = 7 * kGranule, .max_chunk_size = 3 * kGranule - 1}));
  EXPECT_EQ(faults.CallsByEntry()["cuMemCreate"], 4u);
  EXPECT_EQ(faults.CallsByEntry()["cuMemAddressReserve"], 1u);
  Fill(memory.address(), 7, memory.size());
  EXPECT_TRUE(Holds(memory.address(), 7, memory.size()));
}

}  // namespace
}  // namespace vmm::testing
