// Nvml, on libraries made of functions: old ones, broken ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "fabric/nvml.h"
#include "platform/os/process.h"
#include "tests/support/must.h"

namespace vmm::fabric {
namespace {

using ::testing::HasSubstr;
using testing::Must;

// What the functions below answer, and what they were asked.
struct Library {
  int init = 0;
  int shutdowns = 0;
  std::string asked_uuid;
  int uuid_result = 0;
  std::string known_prefix = "GPU-";
  int mig_result = 0;
  unsigned mig = 0;
  unsigned asked_version = 0;
  int fabric_result = 0;
  int p2p = 0;
  int p2p_result = 0;
  int version_result = 0;
  int is_mig_result = 0;
  int parent_result = 0;
  unsigned confidential = 0;
  int confidential_result = 0;
};
Library library;

// Layouts as nvml.h documents them, written down a second time.
struct InfoV1 {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
struct InfoV2 {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};

int gpu_handle = 0;
int mig_handle = 0;

int Init() { return library.init; }
int Shutdown() {
  ++library.shutdowns;
  return 0;
}
const char* ErrorString(int result) {
  return result == 9 ? "Driver Not Loaded" : nullptr;
}
int DriverVersion(char* text, unsigned size) {
  std::strncpy(text, "580.159.04", size);
  return library.version_result;
}
struct ConfComputeState {
  unsigned environment;
  unsigned feature;
  unsigned dev_tools;
};
int Confidential(ConfComputeState* state) {
  *state = {1, library.confidential, 0};
  return library.confidential_result;
}
int ByUuid(const char* uuid, void** handle) {
  library.asked_uuid = uuid;
  if (library.uuid_result != 0) return library.uuid_result;
  if (std::string(uuid, 4) != library.known_prefix) return 6;
  *handle = library.known_prefix == "GPU-" ? &gpu_handle : &mig_handle;
  return 0;
}
int IsMig(void* handle, unsigned* is) {
  *is = handle == &mig_handle ? 1 : 0;
  return library.is_mig_result;
}
int GpuOfMig(void* handle, void** gpu) {
  if (handle != &mig_handle) return 2;
  *gpu = &gpu_handle;
  return library.parent_result;
}
int MigMode(void*, unsigned* current, unsigned* pending) {
  *current = *pending = library.mig;
  return library.mig_result;
}
int FabricV1(void*, InfoV1* info) {
  std::memset(info->cluster, 0x11, sizeof(info->cluster));
  info->status = 0;
  info->clique = 3;
  info->state = 2;
  return library.fabric_result;
}
int FabricV2(void* handle, InfoV2* info) {
  if (handle != &gpu_handle) return 2;
  library.asked_version = info->version;
  std::memset(info->cluster, 0x22, sizeof(info->cluster));
  info->status = 9;
  info->clique = 4;
  info->state = 3;
  info->health = 1;
  return library.fabric_result;
}
int P2pStatus(void*, void*, int index, int* status) {
  *status = index == 2 ? library.p2p : 6;
  return library.p2p_result;
}

std::map<std::string, void*> AllEntries() {
  return {
      {"nvmlInit_v2", reinterpret_cast<void*>(&Init)},
      {"nvmlShutdown", reinterpret_cast<void*>(&Shutdown)},
      {"nvmlErrorString", reinterpret_cast<void*>(&ErrorString)},
      {"nvmlSystemGetDriverVersion", reinterpret_cast<void*>(&DriverVersion)},
      {"nvmlSystemGetConfComputeState", reinterpret_cast<void*>(&Confidential)},
      {"nvmlDeviceGetHandleByUUID", reinterpret_cast<void*>(&ByUuid)},
      {"nvmlDeviceIsMigDeviceHandle", reinterpret_cast<void*>(&IsMig)},
      {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
       reinterpret_cast<void*>(&GpuOfMig)},
      {"nvmlDeviceGetMigMode", reinterpret_cast<void*>(&MigMode)},
      {"nvmlDeviceGetGpuFabricInfo", reinterpret_cast<void*>(&FabricV1)},
      {"nvmlDeviceGetGpuFabricInfoV", reinterpret_cast<void*>(&FabricV2)},
      {"nvmlDeviceGetP2PStatus", reinterpret_cast<void*>(&P2pStatus)},
  };
}

class NvmlTest : public ::testing::Test {
 protected:
  NvmlTest() { library = Library(); }

  absl::StatusOr<Nvml> Load(const std::string& without = "",
                            const std::string& also_without = "") {
    std::map<std::string, void*> entries = AllEntries();
    entries.erase(without);
    entries.erase(also_without);
    return Nvml::LoadFromLookup("a library", [entries](const char* symbol) {
      const auto found = entries.find(symbol);
      return found == entries.end() ? nullptr : found->second;
    });
  }
  Nvml::Gpu Gpu(const Nvml& nvml) { return Must(nvml.Find(uuid_)); }

  const Uuid uuid_ = {0xf0, 0x61, 0x3f, 0xf9, 0xb9, 0x33, 0xc3, 0x8b,
                      0x3a, 0x87, 0x83, 0xfb, 0xe5, 0x9c, 0xa8, 0xa9};
};

TEST_F(NvmlTest, IsShutDownOnceWithItsLastCopy) {
  {
    const Nvml nvml = Must(Load());
    const Nvml copy = nvml;
    EXPECT_EQ(Must(copy.DriverVersion()), "580.159.04");
    EXPECT_EQ(library.shutdowns, 0);
  }
  EXPECT_EQ(library.shutdowns, 1);
}

TEST_F(NvmlTest, ThatDoesNotStartSaysWhyAndIsNotShutDown) {
  library.init = 9;
  const absl::Status status = Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("nvmlInit_v2() of a library answered 9 (Driver Not "
                        "Loaded)"));
  EXPECT_EQ(library.shutdowns, 0);
}

TEST_F(NvmlTest, FindsAGpuByTheUuidThatNvidiaSmiPrints) {
  EXPECT_FALSE(Gpu(Must(Load())).is_mig_instance);
  EXPECT_EQ(library.asked_uuid, "GPU-f0613ff9-b933-c38b-3a87-83fbe59ca8a9");
}

TEST_F(NvmlTest, FindsTheGpuOfAMigInstance) {
  library.known_prefix = "MIG-";
  const Nvml nvml = Must(Load());
  const Nvml::Gpu gpu = Gpu(nvml);
  EXPECT_TRUE(gpu.is_mig_instance);
  EXPECT_EQ(gpu.handle, &gpu_handle);
  EXPECT_TRUE(Must(nvml.InMigMode(gpu)));
  EXPECT_EQ(Must(nvml.Fabric(gpu)).clique, 4u);
}

TEST_F(NvmlTest, OfAnUnknownGpuNamesIt) {
  library.uuid_result = 6;
  const absl::Status status = Must(Load()).Find(uuid_).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU-f0613ff9"));
}

TEST_F(NvmlTest, AsksForTheVersionedFabricInformation) {
  const Nvml nvml = Must(Load());
  const FabricInfo info = Must(nvml.Fabric(Gpu(nvml)));
  EXPECT_EQ(library.asked_version, 0x02000024u) << "nvmlGpuFabricInfo_v2";
  EXPECT_EQ(info.state, FabricState::kCompleted);
  EXPECT_EQ(info.status, 9);
  EXPECT_EQ(info.status_text, "Driver Not Loaded");
  EXPECT_EQ(info.clique, 4u);
  EXPECT_EQ(UuidText(info.cluster), "22222222-2222-2222-2222-222222222222");
  EXPECT_TRUE(info.in_a_cluster());
  EXPECT_TRUE(info.degraded());
  EXPECT_FALSE(info.joined());
}

TEST_F(NvmlTest, OfAnOlderDriverAnswersWithoutHealth) {
  const Nvml nvml = Must(Load("nvmlDeviceGetGpuFabricInfoV"));
  const FabricInfo info = Must(nvml.Fabric(Gpu(nvml)));
  EXPECT_EQ(info.state, FabricState::kInProgress);
  EXPECT_EQ(info.clique, 3u);
  EXPECT_FALSE(info.degraded());
  EXPECT_EQ(info.status_text, "no description");
}

TEST_F(NvmlTest, WithoutAnEntryPointNamesItAndAnswersTheRest) {
  for (const char* entry :
       {"nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetMigMode", "nvmlDeviceGetP2PStatus"}) {
    const Nvml nvml = Must(Load(entry));
    const absl::StatusOr<Nvml::Gpu> gpu = nvml.Find(uuid_);
    const Nvml::Gpu known = gpu.ok() ? *gpu : Nvml::Gpu{&gpu_handle, false};
    int missing = 0;
    for (const absl::Status& status :
         {nvml.DriverVersion().status(), gpu.status(),
          nvml.InMigMode(known).status(), nvml.Fabric(known).status(),
          nvml.JoinedByNvLink(known, known).status()}) {
      if (status.ok()) continue;
      ++missing;
      EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(entry));
    }
    EXPECT_EQ(missing, 1) << entry;
  }
}

TEST_F(NvmlTest, WithNeitherFabricEntrySaysSo) {
  const Nvml nvml =
      Must(Load("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"));
  EXPECT_TRUE(absl::IsUnimplemented(nvml.Fabric(Gpu(nvml)).status()));
}

TEST_F(NvmlTest, WithoutErrorTextsOrShutdownStillWorks) {
  const Nvml nvml = Must(Load("nvmlErrorString", "nvmlShutdown"));
  library.fabric_result = 999;
  const absl::Status status = nvml.Fabric(Gpu(nvml)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("answered 999 (no description)"));
}

TEST_F(NvmlTest, ThatIsAnotherLibraryIsRefused) {
  const absl::Status status = Load("nvmlInit_v2").status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nvmlInit_v2"));
}

TEST_F(NvmlTest, TakesAGpuThatCannotBeSplitForOneThatIsNot) {
  library.mig_result = 3;
  const Nvml nvml = Must(Load());
  EXPECT_FALSE(Must(nvml.InMigMode(Gpu(nvml))));
  library.mig_result = 0;
  library.mig = 1;
  EXPECT_TRUE(Must(nvml.InMigMode(Gpu(nvml))));
}

TEST_F(NvmlTest, TellsNvLinkFromOtherLinks) {
  const Nvml nvml = Must(Load());
  EXPECT_TRUE(Must(nvml.JoinedByNvLink(Gpu(nvml), Gpu(nvml))));
  library.p2p = 5;
  EXPECT_FALSE(Must(nvml.JoinedByNvLink(Gpu(nvml), Gpu(nvml))));
}

TEST_F(NvmlTest, GivesEachOfItsResultsACode) {
  const std::map<int, absl::StatusCode> codes = {
      {2, absl::StatusCode::kInvalidArgument},
      {3, absl::StatusCode::kUnimplemented},
      {4, absl::StatusCode::kPermissionDenied},
      {6, absl::StatusCode::kNotFound},
      {9, absl::StatusCode::kFailedPrecondition},
      {10, absl::StatusCode::kDeadlineExceeded},
      {13, absl::StatusCode::kUnimplemented},
      {15, absl::StatusCode::kUnavailable},
      {18, absl::StatusCode::kFailedPrecondition},
      {25, absl::StatusCode::kUnimplemented},
      {999, absl::StatusCode::kInternal}};
  const Nvml nvml = Must(Load());
  const Nvml::Gpu gpu = Gpu(nvml);
  for (const auto& [result, code] : codes) {
    library.fabric_result = result;
    EXPECT_EQ(nvml.Fabric(gpu).status().code(), code) << result;
  }
}

// Of each call that can fail: its name and NVML's own words.
TEST_F(NvmlTest, OfACallThatFailsNamesItAndTheResult) {
  const Nvml nvml = Must(Load());
  const Nvml::Gpu gpu = Gpu(nvml);
  library.version_result = library.confidential_result = library.mig_result =
      library.fabric_result = library.p2p_result = 9;
  for (const auto& [status, call] :
       {std::pair{nvml.DriverVersion().status(),
                  "nvmlSystemGetDriverVersion()"},
        {nvml.ConfidentialComputing().status(),
         "nvmlSystemGetConfComputeState()"},
        {nvml.InMigMode(gpu).status(), "nvmlDeviceGetMigMode()"},
        {nvml.Fabric(gpu).status(), "nvmlDeviceGetGpuFabricInfoV()"},
        {nvml.JoinedByNvLink(gpu, gpu).status(),
         "nvmlDeviceGetP2PStatus(NVLink)"}}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(
        status.message(),
        std::string(call) + " of a library answered 9 (Driver Not Loaded)");
  }
}

TEST_F(NvmlTest, OfAnOlderDriverThatFailsNamesTheCallOfThatOne) {
  const Nvml nvml = Must(Load("nvmlDeviceGetGpuFabricInfoV"));
  library.fabric_result = 4;
  const absl::Status status = nvml.Fabric(Gpu(nvml)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(status.message(),
            "nvmlDeviceGetGpuFabricInfo() of a library answered 4 (no "
            "description)");
}

TEST_F(NvmlTest, OfAFabricWithoutErrorTextsHasNoDescription) {
  const Nvml nvml = Must(Load("nvmlErrorString"));
  EXPECT_EQ(Must(nvml.Fabric(Gpu(nvml))).status_text, "no description");
}

TEST_F(NvmlTest, TellsOfConfidentialComputing) {
  const Nvml nvml = Must(Load());
  EXPECT_EQ(nvml.origin(), "a library");
  EXPECT_FALSE(Must(nvml.ConfidentialComputing()));
  library.confidential = 1;
  EXPECT_TRUE(Must(nvml.ConfidentialComputing()));
  // Neither GPUs without the mode nor a library from before it have it on.
  library.confidential_result = 3;
  EXPECT_FALSE(Must(nvml.ConfidentialComputing()));
  library.confidential_result = 0;
  EXPECT_FALSE(Must(
      Must(Load("nvmlSystemGetConfComputeState")).ConfidentialComputing()));
}

TEST_F(NvmlTest, OfAMigInstanceWhoseGpuIsNotToldSaysWhy) {
  library.known_prefix = "MIG-";
  const absl::Status missing =
      Must(Load("nvmlDeviceGetDeviceHandleFromMigDeviceHandle"))
          .Find(uuid_)
          .status();
  EXPECT_TRUE(absl::IsUnimplemented(missing)) << missing;
  library.parent_result = 15;
  const absl::Status lost = Must(Load()).Find(uuid_).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()),
              HasSubstr("nvmlDeviceGetDeviceHandleFromMigDeviceHandle("
                        "MIG-f0613ff9-b933-c38b-3a87-83fbe59ca8a9)"));
}

// A library that cannot tell a MIG instance is one from before them.
TEST_F(NvmlTest, ThatCannotTellMigInstancesTakesAllForGpus) {
  library.known_prefix = "MIG-";
  EXPECT_FALSE(Gpu(Must(Load("nvmlDeviceIsMigDeviceHandle"))).is_mig_instance);
  library.is_mig_result = 3;
  EXPECT_FALSE(Gpu(Must(Load())).is_mig_instance);
}

TEST(SystemNvml, IsThereOrSaysHowAContainerGetsIt) {
  const absl::StatusOr<Nvml> nvml = Nvml::LoadSystem();
  if (nvml.ok()) {
    EXPECT_THAT(nvml->origin(), HasSubstr(platform::SystemNvmlName()));
    EXPECT_NE(nvml->origin(), platform::SystemNvmlName()) << "expected a path";
    return;
  }
  EXPECT_THAT(std::string(nvml.status().message()), HasSubstr("NVML"));
  if (absl::IsNotFound(nvml.status())) {
    EXPECT_THAT(std::string(nvml.status().message()),
                HasSubstr("NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
  }
}

TEST(FabricStates, HaveNamesUnknownOnesToo) {
  EXPECT_EQ(NameOf(FabricState::kNotStarted), "not started");
  EXPECT_EQ(NameOf(static_cast<FabricState>(9)), "unknown (9)");
}

}  // namespace
}  // namespace vmm::fabric
