// Two devices of one machine.
#include <utility>

#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

class TwoDevices : public Conformance {
 protected:
  void SetUp() override {
    if (DeviceCount() < 2) GTEST_SKIP() << "there is only one device here";
    int can = 0;
    ASSERT_EQ(cu.cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
    if (can == 0) GTEST_SKIP() << "devices 0 and 1 are no peers";
  }
};

TEST_F(TwoDevices, HaveMemoryOfTheirOwn) {
  const CUmemGenericAllocationHandle handle =
      CreateWith(Properties(kFd, CU_MEM_LOCATION_TYPE_DEVICE, 1));
  CUmemAllocationProp prop;
  EXPECT_EQ(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(prop.location.id, 1);
}

TEST_F(TwoDevices, SayWhatTheyCanDoWithEachOther) {
  if (cu.cuDeviceGetP2PAttribute == nullptr) GTEST_SKIP() << "not offered";
  int value = -1;
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(1, 0)}) {
    EXPECT_EQ(cu.cuDeviceGetP2PAttribute(
                  &value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, a, b),
              CUDA_SUCCESS);
    EXPECT_EQ(value, 1) << "they are peers";
    EXPECT_EQ(
        cu.cuDeviceGetP2PAttribute(
            &value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, a, b),
        CUDA_SUCCESS);
    EXPECT_TRUE(value == 0 || value == 1) << value;
  }
  const auto attribute = CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
  EXPECT_EQ(cu.cuDeviceGetP2PAttribute(&value, attribute, 0, 99),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuDeviceGetP2PAttribute(&value, attribute, 0, 0),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuDeviceGetP2PAttribute(
                &value, static_cast<CUdevice_P2PAttribute>(99), 0, 1),
            CUDA_ERROR_INVALID_VALUE);
}

using Pitfall20 = TwoDevices;

TEST_F(Pitfall20, AccessForTwoDevicesIsSetInOneCall) {
  const CUdeviceptr address = Reserve();
  Map(address, Create());
  const CUmemAccessDesc both[] = {Access(kReadWrite, 0), Access(kRead, 1)};
  EXPECT_EQ(cu.cuMemSetAccess(address, kGranule, both, 2), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(address, 0), 3u);
  EXPECT_EQ(AccessOf(address, 1), 1u);
}

TEST_F(TwoDevices, EachNeedsItsOwnAccess) {
  const CUdeviceptr address = Reserve();
  Map(address, CreateWith(Properties(kFd, CU_MEM_LOCATION_TYPE_DEVICE, 1)));
  SetAccess(address, kGranule, kReadWrite, 1);
  EXPECT_EQ(AccessOf(address, 0), 0u);
  // The current context is device 0's, which has none.
  EXPECT_EQ(cu.cuMemsetD8(address, 1, 8), CUDA_ERROR_INVALID_VALUE);
  SetAccess(address, kGranule, kReadWrite, 0);
  EXPECT_EQ(FillAndWait(cu, address, 1, 8), CUDA_SUCCESS);
  EXPECT_EQ(AccessOf(address, 1), 3u) << "the other's stays";
}

// args: descriptor. Sees the second device only, and the memory is on the
// first.
int HiddenImporter(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUmemGenericAllocationHandle handle = 0;
  checks.Expect("import",
                cu.cuMemImportFromShareableHandle(
                    &handle,
                    reinterpret_cast<void*>(
                        static_cast<std::intptr_t>(std::stoi(args[0]))),
                    kFd),
                CUDA_SUCCESS);
  if (checks.failures() != 0) return 100;
  CUmemAllocationProp prop;
  checks.Expect("properties",
                cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle),
                CUDA_SUCCESS);
  checks.ExpectTrue("on a device that is not seen", prop.location.id == -2);
  // CU_MEM_LOCATION_TYPE_INVISIBLE, documented.
  int version = 0;
  checks.Expect("version", cu.cuDriverGetVersion(&version), CUDA_SUCCESS);
  checks.ExpectTrue("of the type that the version has",
                    prop.location.type == (version >= 13020 ? 5 : 1));
  CUdeviceptr address = 0;
  const CUmemAccessDesc desc = Access(kReadWrite);
  checks.Expect("reserve", cu.cuMemAddressReserve(&address, kGranule, 0, 0, 0),
                CUDA_SUCCESS);
  checks.Expect("map", cu.cuMemMap(address, kGranule, 0, handle, 0),
                CUDA_SUCCESS);
  checks.Expect("set access", cu.cuMemSetAccess(address, kGranule, &desc, 1),
                CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, address, 6, kGranule), CUDA_SUCCESS);
  checks.Expect("synchronize", cu.cuCtxSynchronize(), CUDA_SUCCESS);
  checks.Expect("unmap", cu.cuMemUnmap(address, kGranule), CUDA_SUCCESS);
  checks.Expect("free", cu.cuMemAddressFree(address, kGranule), CUDA_SUCCESS);
  checks.Expect("release", cu.cuMemRelease(handle), CUDA_SUCCESS);
  return checks.failures();
}
const bool kHiddenImporter = RegisterChild("hidden_importer", &HiddenImporter);

using Pitfall19 = TwoDevices;

TEST_F(Pitfall19, MemoryOfAHiddenDeviceCanBeImported) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr address = Reserve();
  Map(address, handle);
  SetAccess(address, kGranule);
  ASSERT_EQ(FillAndWait(cu, address, 1, kGranule), CUDA_SUCCESS);
  const int fd = Inheritable(Export(handle));
  EXPECT_EQ(Child::Start("hidden_importer", {std::to_string(fd)},
                         {{"CUDA_VISIBLE_DEVICES", "1"}})
                .Wait(),
            0);
  CloseDescriptor(fd);
  EXPECT_EQ(Bytes(address, kGranule), std::vector<std::uint8_t>(kGranule, 6));
}

// args: the UUID's bytes, as text, that device 0 must have.
int OrdinalReader(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  CUuuid uuid;
  Checks checks;
  checks.Expect("uuid", cu.device_get_gpu_uuid(&uuid, 0), CUDA_SUCCESS);
  std::string text;
  for (const char byte : uuid.bytes) {
    text += std::to_string(static_cast<unsigned char>(byte)) + ".";
  }
  checks.ExpectTrue("the other process's device 1", text == args[0]);
  return checks.failures();
}
const bool kOrdinalReader = RegisterChild("ordinal_reader", &OrdinalReader);

TEST_F(Pitfall19, OrdinalsDifferBetweenProcessesAndUuidsDoNot) {
  CUuuid uuid;
  ASSERT_EQ(cu.device_get_gpu_uuid(&uuid, 1), CUDA_SUCCESS);
  std::string text;
  for (const char byte : uuid.bytes) {
    text += std::to_string(static_cast<unsigned char>(byte)) + ".";
  }
  EXPECT_EQ(
      Child::Start("ordinal_reader", {text}, {{"CUDA_VISIBLE_DEVICES", "1"}})
          .Wait(),
      0);
}

}  // namespace
}  // namespace vmm::testing
