#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "platform/cuda/driver.h"
#include "tests/gpu/stream.h"
#include "tests/gpu/vmm_driver_test.h"
#include "tests/support/child.h"
#include "tests/support/driver_faults.h"
#include "vmm/memory/adopted_memory.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/internal/spare_context.h"
#include "vmm/share/endpoint.h"
#include "vmm/share/imported_allocation.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/share/transfer.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;

class DeviceTest : public DriverTest {};

TEST_F(DeviceTest, IsFoundByOrdinalAndByUuid) {
  for (const Device& each : Must(Device::All(driver()))) {
    const Device by_ordinal = Must(Device::ByOrdinal(driver(), each.ordinal()));
    const Device by_uuid = Must(Device::ByUuid(driver(), each.uuid()));
    EXPECT_EQ(by_ordinal, each);
    EXPECT_EQ(by_uuid, each);
    EXPECT_EQ(by_uuid.ordinal(), each.ordinal());
    EXPECT_EQ(by_uuid.name(), each.name());
    EXPECT_NE(each.uuid(), DeviceUuid());
    EXPECT_FALSE(each.name().empty());
  }
}

TEST_F(DeviceTest, HasAUuidOfItsOwn) {
  const std::vector<Device> all = Must(Device::All(driver()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(all[i].uuid(), all[j].uuid());
      EXPECT_NE(all[i], all[j]);
    }
  }
}

TEST_F(DeviceTest, OfAnUnknownOrdinalSaysWhatIsThere) {
  for (int ordinal : {-1, 99}) {
    const absl::Status status = Device::ByOrdinal(driver(), ordinal).status();
    EXPECT_TRUE(absl::IsNotFound(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("no device has ordinal ", ordinal)));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(device.uuid().ToString()));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
}

TEST_F(DeviceTest, OfAnUnknownUuidSaysWhatIsThere) {
  DeviceUuid unknown;
  unknown.bytes.fill(0xee);
  const absl::Status status = Device::ByUuid(driver(), unknown).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(unknown.ToString()));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(device.uuid().ToString()));
}

TEST_F(DeviceTest, DescribesItself) {
  EXPECT_EQ(device.Describe(), absl::StrCat("device 0 (", device.name(), ", ",
                                            device.uuid().ToString(), ")"));
}

TEST_F(DeviceTest, ReachesItsOwnMemory) {
  EXPECT_TRUE(Must(device.CanAccess(device)));
}

TEST_F(DeviceTest, ProbesItsNativeKindAndRemembersTheAnswer) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(counted, 0));
  EXPECT_TRUE(mine.Probe(kNativeKind).ok());
  const std::uint64_t once = faults.CallsByEntry()["cuMemCreate"];
  EXPECT_EQ(once, 1u);
  EXPECT_TRUE(mine.Probe(kNativeKind).ok());
  const Device copy = mine;
  EXPECT_TRUE(copy.Probe(kNativeKind).ok());
  EXPECT_EQ(faults.CallsByEntry()["cuMemCreate"], once);
}

TEST_F(DeviceTest, ProbesAgainAfterRunningOutOfMemory) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  faults.Arm({.point = {.nth = 0},
              .entry = "cuMemCreate",
              .result = CUDA_ERROR_OUT_OF_MEMORY});
  const absl::Status first = mine.Probe(kNativeKind);
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(first)) << first;
  EXPECT_TRUE(mine.Probe(kNativeKind).ok())
      << "being out of memory says nothing about the kind";
}

TEST_F(DeviceTest, RemembersThatAKindIsRefused) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  faults.Arm({.point = {.nth = 0},
              .entry = "cuMemExportToShareableHandle",
              .result = CUDA_ERROR_NOT_SUPPORTED});
  const absl::Status first = mine.Probe(kNativeKind);
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsUnimplemented(first)) << first;
  EXPECT_EQ(mine.Probe(kNativeKind), first);
}

TEST_F(DeviceTest, ProbesAgainAfterAFailureWithoutAName) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  faults.Arm(
      {.point = {.nth = 0}, .entry = "cuMemMap", .result = CUDA_ERROR_UNKNOWN});
  const absl::Status first = mine.Probe(kNativeKind);
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_EQ(platform::ResultOf(first), CUDA_ERROR_UNKNOWN) << first;
  const absl::Status now = mine.Probe(kNativeKind);
  EXPECT_TRUE(now.ok()) << now;
}

// It says nothing about the kind, neither that it does not work nor that legacy
// IPC has to do.
TEST_F(DeviceTest, RemembersNothingThatTheCaptureOfAStreamRefused) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  const DriverFault refusal = {.point = {.nth = 0},
                               .entry = "cuStreamSynchronize",
                               .result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
  faults.Arm(refusal);
  const absl::Status first = mine.Probe(kNativeKind);
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_EQ(platform::ResultOf(first), refusal.result) << first;
  faults.Arm(refusal);
  const absl::Status made =
      Allocation::Create(mine, {.size = kGranule,
                                .sharing = SharePolicy::AnyOf(
                                    {kNativeKind, HandleKind::kLegacyIpc})})
          .status();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_EQ(platform::ResultOf(made), refusal.result) << made;
  const absl::Status now = mine.Probe(kNativeKind);
  EXPECT_TRUE(now.ok()) << now;
}

// The try is in the program's own context. What a kernel of the program did there
// says nothing about the kind either.
TEST_F(DeviceTest, RemembersNothingThatIsOfTheContextOrOfAMoment) {
  DriverFaults faults;
  for (const CUresult result :
       {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_TIMEOUT}) {
    const platform::Driver faulty = FaultyDriver(driver(), &faults);
    const Device mine = Must(Device::ByOrdinal(faulty, 0));
    faults.Arm(
        {.point = {.nth = 0}, .entry = "cuStreamCreate", .result = result});
    const absl::Status first = mine.Probe(kNativeKind);
    EXPECT_EQ(faults.Disarm().fired, 1u);
    EXPECT_EQ(platform::ResultOf(first), result) << first;
    const absl::Status now = mine.Probe(kNativeKind);
    EXPECT_TRUE(now.ok()) << result << ": " << now;
  }
}

// A driver whose attribute says yes and whose cuMemCreate says yes, and that
// refuses the export: only a try to the end finds it.
TEST_F(DeviceTest, ProbesToTheEnd) {
  DriverFaults faults;
  for (const char* entry :
       {"cuMemCreate", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
        "cuMemSetAccess", "cuStreamCreate", "cuMemsetD32Async",
        "cuMemcpyDtoHAsync", "cuStreamSynchronize"}) {
    // A driver of which nothing is remembered yet.
    const platform::Driver faulty = FaultyDriver(driver(), &faults);
    const Device mine = Must(Device::ByOrdinal(faulty, 0));
    faults.Arm({.point = {.nth = 0},
                .entry = entry,
                .result = CUDA_ERROR_NOT_PERMITTED});
    const absl::Status probed = mine.Probe(kNativeKind);
    EXPECT_EQ(faults.Disarm().fired, 1u) << entry;
    EXPECT_TRUE(absl::IsPermissionDenied(probed)) << entry << ": " << probed;
    EXPECT_THAT(std::string(probed.message()), HasSubstr(entry));
    EXPECT_EQ(platform::ResultOf(probed), CUDA_ERROR_NOT_PERMITTED);
  }
}

class Pitfall02 : public DriverTest {};
TEST_F(Pitfall02, AnExportThatFailsAfterCreateSucceededIsFoundByTheProbe) {
  DriverFaults faults;
  const platform::Driver faulty = FaultyDriver(driver(), &faults);
  const Device mine = Must(Device::ByOrdinal(faulty, 0));
  faults.Arm({.point = {.nth = 0},
              .entry = "cuMemExportToShareableHandle",
              .result = CUDA_ERROR_NOT_SUPPORTED});
  const absl::Status status =
      Allocation::Create(mine, {.size = kGranule}).status();
  EXPECT_EQ(faults.Disarm().fired, 1u);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::string(NameOf(kNativeKind))));
}

class Pitfall04 : public DriverTest {};
TEST_F(Pitfall04, EveryRefusalOfOneKindLeavesTheOthersUsable) {
  for (CUresult result : {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED,
                          CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE,
                          CUDA_ERROR_UNKNOWN, CUDA_ERROR_SYSTEM_NOT_READY}) {
    DriverFaults faults;
    const platform::Driver faulty = FaultyDriver(driver(), &faults);
    const Device mine = Must(Device::ByOrdinal(faulty, 0));
    // Its first call: the granularity of memory of the preferred kind.
    faults.Arm({.point = {.nth = 0},
                .entry = "cuMemGetAllocationGranularity",
                .result = result});
    const auto made = Allocation::Create(
        mine,
        {.size = kGranule,
         .sharing = SharePolicy::AnyOf({HandleKind::kFabric, kNativeKind})});
    EXPECT_EQ(faults.Disarm().fired, 1u);
    ASSERT_TRUE(made.ok()) << result << ": " << made.status();
    EXPECT_EQ(made->kinds(), HandleKindSet{kNativeKind});
    ASSERT_EQ(made->passed_over().size(), 1u);
    EXPECT_EQ(platform::ResultOf(made->passed_over()[0].reason), result);
  }
}

// Runs without a context and asks afterwards whether there is one.
int UseEverythingWithoutAContext(const std::vector<std::string>&) {
  const platform::Driver& driver = TestDriver();
  const Device device = FirstDevice();
  Must(device.Probe(kNativeKind));
  Allocation memory = Must(Allocation::Create(
      device, {.size = 3 * kGranule, .max_chunk_size = kGranule}));
  Must(Classify(driver, memory.address()).status());
  auto [a, b] = Must(platform::Channel::Pair());
  const protocol::Outgoing outgoing =
      Must(protocol::MakeOutgoing(memory.shareable()));
  std::vector<ExportedHandle> handles;
  for (std::size_t i = 0; i < 3; ++i)
    handles.push_back(Must(outgoing.handle(i)));
  const ImportedAllocation imported =
      Must(ImportedAllocation::Open(driver, outgoing.ticket, handles, {}));
  EXPECT_NE(imported.address(), memory.address());
  Must(memory.Unmap());
  Must(memory.Remap());
  Must(memory.Discard());
  Must(memory.Remap());
  for (const Device& each : Must(Device::All(driver))) {
    EXPECT_FALSE(Must(PrimaryContext::IsActive(each))) << each.Describe();
  }
  // And the question can be answered with yes.
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  EXPECT_TRUE(Must(PrimaryContext::IsActive(device)));
  return 0;
}
const bool kNoContext = RegisterChild("use-everything-without-a-context",
                                      &UseEverythingWithoutAContext);

TEST(Context, IsNeverCreatedByAllocatingSharingOrImporting) {
  EXPECT_EQ(Child::Start("use-everything-without-a-context", {}).Wait(), 0);
}

// A stream of the program's own needs no context, and none is made for it.
TEST_F(DeviceTest, ASpareContextIsForDefaultStreamsOfThreadsWithoutOne) {
  SpareContext spare(device);
  const Stream stream;
  EXPECT_FALSE(Must(spare.EnterFor(nullptr)).has_value());
  std::thread([&] {
    EXPECT_FALSE(Must(spare.EnterFor(stream.get())).has_value());
    for (CUstream of_default : {CUstream{nullptr}, CU_STREAM_LEGACY}) {
      EXPECT_TRUE(Must(spare.EnterFor(of_default)).has_value());
      CUcontext current = nullptr;
      EXPECT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
      EXPECT_EQ(current, nullptr);
    }
  }).join();
}

TEST_F(DeviceTest, PrimaryContextIsMadeCurrentForAScope) {
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  CUcontext before = nullptr, within = nullptr, after = nullptr;
  EXPECT_EQ(driver()->cuCtxGetCurrent(&before), CUDA_SUCCESS);
  EXPECT_EQ(driver()->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  {
    const CurrentContext current = Must(context.MakeCurrent());
    EXPECT_EQ(driver()->cuCtxGetCurrent(&within), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver()->cuCtxGetCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(within, context.context());
  EXPECT_EQ(after, nullptr);
  EXPECT_EQ(driver()->cuCtxSetCurrent(before), CUDA_SUCCESS);
}

}  // namespace
}  // namespace vmm::testing
