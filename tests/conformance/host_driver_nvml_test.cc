// The stand-in NVML: what it refuses, and what it is made to fail with.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/host_driver_test.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNvmlNotFound = 6;
constexpr int kVersionMismatch = 25;

// The entry points, as NVML has them.
struct Nvml {
  using Device = const void*;
  int (*init)() = FindExport<int()>("nvmlInit_v2");
  int (*shutdown)() = FindExport<int()>("nvmlShutdown");
  const char* (*text)(int) = FindExport<const char*(int)>("nvmlErrorString");
  int (*version)(char*, unsigned) =
      FindExport<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  int (*confidential)(void*) =
      FindExport<int(void*)>("nvmlSystemGetConfComputeState");
  int (*by_uuid)(const char*, Device*) =
      FindExport<int(const char*, Device*)>("nvmlDeviceGetHandleByUUID");
  int (*is_mig)(Device, unsigned*) =
      FindExport<int(Device, unsigned*)>("nvmlDeviceIsMigDeviceHandle");
  int (*mig_mode)(Device, unsigned*, unsigned*) =
      FindExport<int(Device, unsigned*, unsigned*)>("nvmlDeviceGetMigMode");
  int (*fabric)(Device, void*) =
      FindExport<int(Device, void*)>("nvmlDeviceGetGpuFabricInfoV");
  int (*peers)(Device, Device, int, int*) =
      FindExport<int(Device, Device, int, int*)>("nvmlDeviceGetP2PStatus");
};

class HostNvml : public Conformance {
 protected:
  // "GPU-8-4-4-4-12"
  std::string UuidOf(int device) {
    CUuuid uuid{};
    EXPECT_EQ(cu.device_get_gpu_uuid(&uuid, device), CUDA_SUCCESS);
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x",
                    static_cast<unsigned char>(uuid.bytes[i]));
      if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      text += digits;
    }
    return text;
  }
  const void* Device(int device) {
    const void* found = nullptr;
    EXPECT_EQ(nvml.by_uuid(UuidOf(device).c_str(), &found), kNvmlSuccess);
    return found;
  }

  const Nvml nvml;
};

TEST_F(HostNvml, ResultsHaveNvidiasWords) {
  const std::array<std::pair<int, const char*>, 10> words = {{
      {0, "Success"},
      {1, "Uninitialized"},
      {2, "Invalid Argument"},
      {3, "Not Supported"},
      {4, "Insufficient Permissions"},
      {6, "Not Found"},
      {9, "Driver Not Loaded"},
      {15, "GPU is lost"},
      {25, "Argument version mismatch"},
      {-1, "Unknown Error"},
  }};
  for (const auto& [result, text] : words) {
    EXPECT_STREQ(nvml.text(result), text) << result;
  }
}

TEST_F(HostNvml, RefusesWhatItDoesNotKnow) {
  const void* const device = Device(0);
  const void* const peer = Device(1);
  const std::string uuid = UuidOf(0);
  const void* found = this;
  unsigned number = 7;
  int status = 7;
  std::array<unsigned char, 64> info{};  // Of version 0.
  struct Row {
    const char* what;
    int got;
    int wanted;
  };
  const std::vector<Row> rows = {
      {"no text", nvml.version(nullptr, 8), kInvalidArgument},
      {"no state", nvml.confidential(nullptr), kInvalidArgument},
      {"no UUID", nvml.by_uuid(nullptr, &found), kInvalidArgument},
      {"no device", nvml.by_uuid(uuid.c_str(), nullptr), kInvalidArgument},
      {"a strange UUID", nvml.by_uuid("GPU-0", &found), kNvmlNotFound},
      {"a strange device", nvml.is_mig(this, &number), kInvalidArgument},
      {"nowhere", nvml.is_mig(device, nullptr), kInvalidArgument},
      {"a strange device", nvml.mig_mode(this, &number, &number),
       kInvalidArgument},
      {"nowhere", nvml.mig_mode(device, nullptr, &number), kInvalidArgument},
      {"nowhere", nvml.mig_mode(device, &number, nullptr), kInvalidArgument},
      {"a strange device", nvml.fabric(this, info.data()), kInvalidArgument},
      {"nowhere", nvml.fabric(device, nullptr), kInvalidArgument},
      {"an older version", nvml.fabric(device, info.data()), kVersionMismatch},
      {"a strange device", nvml.peers(this, peer, 0, &status),
       kInvalidArgument},
      {"a strange peer", nvml.peers(device, this, 0, &status),
       kInvalidArgument},
      {"its own peer", nvml.peers(device, device, 0, &status),
       kInvalidArgument},
      {"nowhere", nvml.peers(device, peer, 0, nullptr), kInvalidArgument},
      {"before all", nvml.peers(device, peer, -1, &status), kInvalidArgument},
      {"behind all", nvml.peers(device, peer, 5, &status), kInvalidArgument},
  };
  for (const Row& row : rows) EXPECT_EQ(row.got, row.wanted) << row.what;
  EXPECT_EQ(found, this);
  EXPECT_EQ(number, 7u);
  EXPECT_EQ(status, 7);
  EXPECT_EQ(nvml.peers(device, peer, 4, &status), kNvmlSuccess);
  EXPECT_EQ(status, 0);
}

// The entry points of a call each, in the order of the environment below.
int FailsAsTold(const std::vector<std::string>&) {
  const Nvml nvml;
  char text[16] = "";
  unsigned number = 0;
  int status = 0;
  const void* device = nullptr;
  const int got[] = {nvml.init(),
                     nvml.shutdown(),
                     nvml.version(text, sizeof(text)),
                     nvml.confidential(text),
                     nvml.by_uuid("", &device),
                     nvml.is_mig(device, &number),
                     nvml.mig_mode(device, &number, &number),
                     nvml.fabric(device, text),
                     nvml.peers(device, device, 0, &status)};
  Checks checks;
  for (int i = 0; i < 9; ++i) {
    checks.Expect("fails with", static_cast<CUresult>(got[i]),
                  static_cast<CUresult>(100 + i));
  }
  return checks.failures();
}
const bool kFails = RegisterChild("nvml-fails-as-told", &FailsAsTold);

TEST_F(HostNvml, EachCallFailsAsTheEnvironmentSays) {
  EXPECT_EQ(Child::Start("nvml-fails-as-told", {},
                         {{"VMMSHARE_HOST_NVML_FAIL",
                           "nvmlInit_v2:100,nvmlShutdown:101,"
                           "nvmlSystemGetDriverVersion:102,"
                           "nvmlSystemGetConfComputeState:103,"
                           "nvmlDeviceGetHandleByUUID:104,"
                           "nvmlDeviceIsMigDeviceHandle:105,"
                           "nvmlDeviceGetMigMode:106,"
                           "nvmlDeviceGetGpuFabricInfoV:107,"
                           "nvmlDeviceGetP2PStatus:108"}})
                .Wait(),
            0);
}

}  // namespace
}  // namespace vmm::testing
