// What drivers of other versions answer: location types, results and calls that
// this one's cuda.h does not have. Each in a process with such a driver.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "platform/hostdriver/host_driver.h"
#include "platform/os/library.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "vmm/memory/adopted_memory.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;
using Settings = std::map<std::string, std::string>;

class DriverVersions : public IpcTest {
 protected:
  void SetUp() override {
    IpcTest::SetUp();
    if (!OnHostMemoryDriver()) GTEST_SKIP() << "a driver has one version";
  }
  int Run(const std::string& child, const Settings& settings,
          const Args& args = {}) {
    return Child::Start(child, args, settings).Wait();
  }
};

int TellsItsVersion(const Args& args) {
  EXPECT_EQ(TestDriver().version(), std::stoi(args[0]));
  const Here here;
  EXPECT_TRUE(here.device.Probe(kNativeKind).ok());
  return 0;
}
const bool kTellsItsVersion = RegisterChild("tells-version", &TellsItsVersion);

TEST_F(DriverVersions, AreThoseThatTheSettingNames) {
  for (const auto& [text, number] :
       std::map<std::string, std::string>{{"12.0", "12000"},
                                          {"12.9", "12090"},
                                          {"13.1", "13010"},
                                          {"13.5", "13050"}}) {
    EXPECT_EQ(Run("tells-version", {{"VMMSHARE_HOST_VERSION", text}}, {number}),
              0)
        << text;
  }
}

// That runs between two versions are such runs.
TEST_F(DriverVersions, AChildsIsThePeersWhereThatIsNamed) {
  const char* const peer = std::getenv("VMMSHARE_TEST_PEER_VERSION");
  if (peer == nullptr) GTEST_SKIP() << "this run is of one version";
  EXPECT_STREQ(peer, "13.5");
  EXPECT_EQ(TestDriver().version(), 12040);
  EXPECT_EQ(Run("tells-version", {}, {"13050"}), 0);
}

// The pointer's device, and what comes of adopting it.
int ClassifiesDeviceMemory(const Args& args) {
  const Here here{Must(Device::ByOrdinal(TestDriver(), 1))};
  const Allocation memory =
      Must(Allocation::Create(here.device, {.size = 2 * kMiB}));
  const PointerInfo info = Must(Classify(TestDriver(), memory.address()));
  EXPECT_EQ(info.kind, PointerKind::kVmm);
  EXPECT_FALSE(info.host_numa_node.has_value());
  const absl::StatusOr<AdoptedMemory> adopted =
      AdoptedMemory::Adopt(TestDriver(), memory.address(), memory.size());
  if (args[0] == "known") {
    EXPECT_EQ(info.device_ordinal, 1);
    EXPECT_TRUE(info.adoptable);
    EXPECT_TRUE(adopted.ok()) << adopted.status();
    return 0;
  }
  EXPECT_FALSE(info.device_ordinal.has_value());
  EXPECT_EQ(adopted.status().code(), absl::StatusCode::kFailedPrecondition);
  if (args[0] == "unknown") {
    EXPECT_FALSE(info.adoptable);
    EXPECT_THAT(info.advice, HasSubstr("a location of type 7"));
    EXPECT_THAT(adopted.status().ToString(), HasSubstr("type 7"));
  } else {
    EXPECT_THAT(adopted.status().ToString(), HasSubstr("does not see"));
  }
  return 0;
}
const bool kClassifies =
    RegisterChild("classifies-device-memory", &ClassifiesDeviceMemory);

TEST_F(DriverVersions, APartOfADeviceIsThatDevices) {
  EXPECT_EQ(Run("classifies-device-memory", {{"VMMSHARE_HOST_LOCATION", "6"}},
                {"known"}),
            0);
}

TEST_F(DriverVersions, AnUnknownLocationIsToldAsSuch) {
  EXPECT_EQ(Run("classifies-device-memory", {{"VMMSHARE_HOST_LOCATION", "7"}},
                {"unknown"}),
            0);
}

TEST_F(DriverVersions, AnInvisibleLocationIsOnNoDeviceOfThisProcess) {
  EXPECT_EQ(Run("classifies-device-memory", {{"VMMSHARE_HOST_LOCATION", "5"}},
                {"invisible"}),
            0);
}

// Memory of device 0, received where only device 1 is seen.
int ReceivesFromAHiddenDevice(const Args& args) {
  const Here here;
  platform::Channel channel = Dial(args[0]);
  const ImportedAllocation memory = Must(ReceiveAllocation(
      channel, TestDriver(),
      {.grants = {{Location::On(here.device), Access::kRead}}}, Late()));
  ExpectPattern(memory.address(), memory.size(), 3);
  const PointerInfo info = Must(Classify(TestDriver(), memory.address()));
  EXPECT_EQ(info.kind, PointerKind::kVmm);
  EXPECT_FALSE(info.device_ordinal.has_value());
  EXPECT_FALSE(info.adoptable);
  Tell(channel);
  return 0;
}
const bool kReceives =
    RegisterChild("receives-from-a-hidden-device", &ReceivesFromAHiddenDevice);

TEST_F(DriverVersions, MemoryOfAHiddenDeviceIsReceivedOnEach) {
  const Allocation memory = MakePattern(2 * kMiB, 3);
  for (const std::string version : {"12.0", "13.0", "13.2", "13.5"}) {
    Child child = Child::Start(
        "receives-from-a-hidden-device", {address()},
        {{"VMMSHARE_HOST_VERSION", version}, {"CUDA_VISIBLE_DEVICES", "1"}});
    platform::Channel channel = Accept();
    ASSERT_TRUE(SendAllocation(channel, memory.shareable(), Late()).ok());
    Hear(channel);
    EXPECT_EQ(child.Wait(), 0) << version;
  }
}

// Results that cuda.h of this build does not name, whether or not the driver
// does.
int MeetsNewerResults(const Args& args) {
  const Here here;
  const auto fail = reinterpret_cast<decltype(&::vmmshareHostFail)>(
      Must(platform::Library::OpenPath(HostDriverPath()))
          .Find("vmmshareHostFail"));
  EXPECT_EQ(fail("cuMemCreate:1:FABRIC_NOT_READY"), 0);
  const absl::Status not_ready = here.device.Probe(kNativeKind);
  EXPECT_EQ(not_ready.code(), absl::StatusCode::kUnavailable) << not_ready;
  EXPECT_EQ(platform::ResultOf(not_ready), static_cast<CUresult>(919));
  EXPECT_THAT(std::string(not_ready.message()), HasSubstr(args[0]));
  EXPECT_THAT(std::string(not_ready.message()), HasSubstr("919"));
  EXPECT_TRUE(here.device.Probe(kNativeKind).ok()) << "it was kept";
  EXPECT_EQ(fail("cuMemCreate:1:MULTICAST_RESOURCE_FULL"), 0);
  const absl::Status full =
      Allocation::Create(here.device, {.size = 2 * kMiB}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("47"));
  return 0;
}
const bool kMeets = RegisterChild("meets-newer-results", &MeetsNewerResults);

TEST_F(DriverVersions, NewerResultsHaveTheirCodes) {
  EXPECT_EQ(Run("meets-newer-results", {{"VMMSHARE_HOST_VERSION", "13.4"}},
                {"CUDA_ERROR_FABRIC_NOT_READY"}),
            0);
  EXPECT_EQ(Run("meets-newer-results", {{"VMMSHARE_HOST_VERSION", "13.0"}},
                {"a result this driver cannot name"}),
            0);
}

// Fabric handles where there are none yet, or none at all.
int AsksForFabricHandles(const Args& args) {
  const Here here;
  const absl::Status tried = here.device.Probe(HandleKind::kFabric);
  EXPECT_EQ(absl::StatusCodeToString(tried.code()), args[0]) << tried;
  const absl::StatusOr<Allocation> made =
      Allocation::Create(here.device, {.size = 2 * kMiB});
  EXPECT_TRUE(made.ok()) << made.status();
  return 0;
}
const bool kAsks = RegisterChild("asks-for-fabric", &AsksForFabricHandles);

TEST_F(DriverVersions, AFabricThatIsNotReadyIsWorthAnotherTry) {
  Settings settings = {
      {"VMMSHARE_HOST_FABRIC_ROOT", "/"},
      {"VMMSHARE_HOST_FABRIC_STATE", "in-progress"},
      {"VMMSHARE_HOST_FABRIC_CLUSTER", "f0613ff9-b933-c38b-3a87-83fbe59ca8a9"},
      {"VMMSHARE_HOST_VERSION", "13.4"}};
  EXPECT_EQ(Run("asks-for-fabric", settings, {"UNAVAILABLE"}), 0);
  settings["VMMSHARE_HOST_VERSION"] = "13.3";
  EXPECT_EQ(Run("asks-for-fabric", settings, {"PERMISSION_DENIED"}), 0);
}

TEST_F(DriverVersions, ADriverWithoutFabricHandlesSharesWithoutThem) {
  EXPECT_EQ(Run("asks-for-fabric", {{"VMMSHARE_HOST_VERSION", "12.0"}},
                {"INVALID_ARGUMENT"}),
            0);
}

}  // namespace
}  // namespace vmm::testing
