// Loading, errors, devices.
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "tests/conformance/conformance.h"
#include "tests/support/child.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

class Errors : public Conformance {};
class Devices : public Conformance {};

int BeforeInit(const std::vector<std::string>&) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  int n = 0;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = Properties();
  checks.Expect("cuDeviceGetCount", cu.cuDeviceGetCount(&n),
                CUDA_ERROR_NOT_INITIALIZED);
  checks.Expect("cuMemAddressReserve",
                cu.cuMemAddressReserve(&address, kGranule, 0, 0, 0),
                CUDA_ERROR_NOT_INITIALIZED);
  checks.Expect("cuMemCreate", cu.cuMemCreate(&handle, kGranule, &prop, 0),
                CUDA_ERROR_NOT_INITIALIZED);
  checks.Expect("cuDriverGetVersion", cu.cuDriverGetVersion(&n), CUDA_SUCCESS);
  checks.ExpectTrue("a version of at least 11.3", n >= 11030);
  checks.Expect("cuInit(1)", cu.cuInit(1), CUDA_ERROR_INVALID_VALUE);
  checks.Expect("cuInit", cu.cuInit(0), CUDA_SUCCESS);
  checks.Expect("cuInit again", cu.cuInit(0), CUDA_SUCCESS);
  return checks.failures();
}
const bool kBeforeInit = RegisterChild("before_init", &BeforeInit);

TEST(Loading, NothingWorksBeforeInitButTheVersion) {
  EXPECT_EQ(Child::Start("before_init", {}).Wait(), 0);
}

// args: what cuInit must answer, and how many devices there are then.
int Visible(const std::vector<std::string>& args) {
  const platform::DriverTable cu = UninitialisedDriver();
  Checks checks;
  checks.Expect("cuInit", cu.cuInit(0),
                static_cast<CUresult>(std::stoi(args[0])));
  int count = -1;
  const int expected = std::stoi(args[1]);
  checks.Expect("cuDeviceGetCount", cu.cuDeviceGetCount(&count),
                expected < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS);
  checks.ExpectTrue("the stated number of devices", count == expected);
  return checks.failures();
}
const bool kVisible = RegisterChild("visible", &Visible);

int InitWith(const std::string& visible, CUresult result, int devices) {
  return Child::Start("visible",
                      {std::to_string(result), std::to_string(devices)},
                      {{"CUDA_VISIBLE_DEVICES", visible}})
      .Wait();
}

TEST(Loading, AnEmptyVisibleDevicesLeavesNoDevice) {
  EXPECT_EQ(InitWith("", CUDA_ERROR_NO_DEVICE, -1), 0);
}

TEST(Loading, AnUnknownFirstVisibleDeviceLeavesNoDevice) {
  EXPECT_EQ(InitWith("99", CUDA_ERROR_NO_DEVICE, -1), 0);
  EXPECT_EQ(InitWith("-1", CUDA_ERROR_NO_DEVICE, -1), 0);
}

TEST(Loading, ADeviceNamedTwiceIsAnError) {
  EXPECT_EQ(InitWith("0,0", CUDA_ERROR_INVALID_DEVICE, -1), 0);
}

TEST(Loading, AnUnknownVisibleDeviceEndsTheList) {
  EXPECT_EQ(InitWith("0,99,1", CUDA_SUCCESS, 1), 0);
}

std::string UuidText(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x",
                  static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

TEST_F(Devices, CanBeMadeVisibleByUuid) {
  CUuuid uuid;
  ASSERT_EQ(cu.device_get_gpu_uuid(&uuid, 0), CUDA_SUCCESS);
  EXPECT_EQ(InitWith(UuidText(uuid), CUDA_SUCCESS, 1), 0);
}

TEST_F(Errors, AreNamed) {
  const char* text = nullptr;
  EXPECT_EQ(cu.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cu.cuGetErrorName(CUDA_SUCCESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_SUCCESS");
  EXPECT_EQ(cu.cuGetErrorString(CUDA_ERROR_NOT_PERMITTED, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "operation not permitted");
  EXPECT_EQ(cu.cuGetErrorString(CUDA_ERROR_CONTEXT_IS_DESTROYED, &text),
            CUDA_SUCCESS);
  EXPECT_STREQ(text, "context is destroyed");
}

TEST_F(Errors, UnknownOnesHaveNoName) {
  const char* text = "";
  EXPECT_EQ(cu.cuGetErrorName(static_cast<CUresult>(12345), &text),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(cu.cuGetErrorString(static_cast<CUresult>(12345), &text),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Devices, OrdinalsOutOfRangeAreInvalid) {
  CUdevice device = 0;
  EXPECT_EQ(cu.cuDeviceGet(&device, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuDeviceGet(&device, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuDeviceGet(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuDeviceGetCount(nullptr), CUDA_ERROR_INVALID_VALUE);
  CUuuid uuid;
  EXPECT_EQ(cu.device_get_gpu_uuid(&uuid, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.device_get_gpu_uuid(&uuid, -1), CUDA_ERROR_INVALID_DEVICE);
  int can = -1;
  EXPECT_EQ(cu.cuDeviceCanAccessPeer(&can, 0, 99), CUDA_ERROR_INVALID_DEVICE);
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(cu.cuDevicePrimaryCtxGetState(99, &flags, &active),
            CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(Devices, HaveDistinctUuids) {
  std::set<std::string> seen;
  for (int i = 0; i < DeviceCount(); ++i) {
    CUuuid uuid;
    ASSERT_EQ(cu.device_get_gpu_uuid(&uuid, i), CUDA_SUCCESS);
    EXPECT_TRUE(seen.insert(UuidText(uuid)).second) << UuidText(uuid);
    CUuuid again;
    ASSERT_NE(cu.device_get_mig_uuid, nullptr);
    EXPECT_EQ(cu.device_get_mig_uuid(&again, i), CUDA_SUCCESS);
  }
}

TEST_F(Devices, AreNotTheirOwnPeers) {
  int can = -1;
  EXPECT_EQ(cu.cuDeviceCanAccessPeer(&can, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
}

TEST_F(Devices, CutTheirNamesToTheBuffer) {
  char name[8] = "xxxxxxx";
  EXPECT_EQ(cu.cuDeviceGetName(name, 5, 0), CUDA_SUCCESS);
  EXPECT_EQ(std::strlen(name), 4u);
}

TEST_F(Devices, SayWhatTheyCanDo) {
  const auto attribute = [this](CUdevice_attribute which) {
    int value = -1;
    EXPECT_EQ(cu.cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
            1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
  EXPECT_EQ(
      attribute(
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
      kFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED),
            kFd == CU_MEM_HANDLE_TYPE_WIN32);
  EXPECT_EQ(
      attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
      1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED), 0);
  // Of memory of the host on a NUMA node, since cuda.h of 12.9.
  constexpr auto kHostNumaMemory = static_cast<CUdevice_attribute>(141);
  int version = 0;
  EXPECT_EQ(cu.cuDriverGetVersion(&version), CUDA_SUCCESS);
  if (version >= 12090) {
    EXPECT_EQ(attribute(kHostNumaMemory), 1);
    return;
  }
  int value = -1;
  EXPECT_EQ(cu.cuDeviceGetAttribute(&value, kHostNumaMemory, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Devices, RefuseUnknownAttributes) {
  int value = 0;
  EXPECT_EQ(
      cu.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(9999), 0),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuDeviceGetAttribute(
                &value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 99),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuDeviceGetAttribute(
                nullptr, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Devices, HaveMoreMemoryInTotalThanFree) {
  std::size_t bytes = 0;
  EXPECT_EQ(cu.cuDeviceTotalMem(&bytes, 0), CUDA_SUCCESS);
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cu.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, bytes);
  EXPECT_LE(free, total);
}

}  // namespace
}  // namespace vmm::testing
