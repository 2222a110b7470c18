// Legacy CUDA IPC memory: cuIpcGetMemHandle, cuIpcOpenMemHandle. Measured is
// what TakesNoOtherMemory and ItsMakerCannotOpenIt say; the rest is documented.
#include <cstring>

#include "tests/conformance/bytes_as_text.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/descriptors.h"
#include "tests/support/child.h"

namespace vmm::testing {
namespace {

constexpr unsigned kLazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
constexpr std::size_t kSize = 3 * kMiB + 5;
// What cuIpcOpenMemHandle is documented to answer for a handle of nothing.
const std::vector<CUresult> kNoMemory = {
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_MAP_FAILED};

class LegacyIpc : public Conformance {
 protected:
  // cuMemAlloc, every byte `value`; freed at the end of the test.
  CUdeviceptr Allocate(unsigned char value, std::size_t size = kSize) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu.cuMemAlloc(&address, size), CUDA_SUCCESS);
    EXPECT_EQ(FillAndWait(cu, address, value, size), CUDA_SUCCESS);
    Later([this, address] { EXPECT_EQ(cu.cuMemFree(address), CUDA_SUCCESS); });
    return address;
  }
  CUipcMemHandle HandleOf(CUdeviceptr address) {
    CUipcMemHandle handle{};
    EXPECT_EQ(cu.cuIpcGetMemHandle(&handle, address), CUDA_SUCCESS);
    return handle;
  }
  CUresult GetHandle(CUdeviceptr address) {
    CUipcMemHandle handle{};
    return cu.cuIpcGetMemHandle(&handle, address);
  }
};

// args: handle. Expects kSize bytes of 1 and writes 8 over them.
int Opener(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  const auto handle = FromText<CUipcMemHandle>(args[0]);
  CUdeviceptr address = 0;
  CUdeviceptr again = 0;
  checks.Expect("open", cu.cuIpcOpenMemHandle(&address, handle, kLazy),
                CUDA_SUCCESS);
  if (checks.failures() != 0) return 100;
  std::vector<std::uint8_t> bytes(kSize);
  checks.Expect("read", cu.cuMemcpyDtoH(bytes.data(), address, kSize),
                CUDA_SUCCESS);
  checks.ExpectTrue("all ones", bytes == std::vector<std::uint8_t>(kSize, 1));
  unsigned type = 0;
  int device = -1;
  checks.Expect("type",
                cu.cuPointerGetAttribute(
                    &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
                CUDA_SUCCESS);
  checks.ExpectTrue("device memory", type == CU_MEMORYTYPE_DEVICE);
  checks.Expect("device",
                cu.cuPointerGetAttribute(
                    &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
                CUDA_SUCCESS);
  checks.ExpectTrue("of device 0", device == 0);

  checks.Expect("open again", cu.cuIpcOpenMemHandle(&again, handle, kLazy),
                CUDA_SUCCESS);
  checks.ExpectTrue("at the same address", again == address);
  checks.Expect("close", cu.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  checks.Expect("write what is open still", FillAndWait(cu, address, 8, kSize),
                CUDA_SUCCESS);
  checks.Expect("close again", cu.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  checks.ExpectOneOf("close once too often", cu.cuIpcCloseMemHandle(address),
                     kNoMemory);
  checks.Expect("use what is closed", cu.cuMemsetD8(address, 9, 1),
                CUDA_ERROR_INVALID_VALUE);
  return checks.failures();
}
const bool kOpener = RegisterChild("ipc_opener", &Opener);

TEST_F(LegacyIpc, SharesDeviceMemoryBothWays) {
  const CUdeviceptr address = Allocate(1);
  EXPECT_EQ(Child::Start("ipc_opener", {ToText(HandleOf(address))}).Wait(), 0);
  EXPECT_EQ(Bytes(address, kSize), std::vector<std::uint8_t>(kSize, 8));
}

TEST_F(LegacyIpc, TheHandleOfAnyAddressIsThatOfTheWholeAllocation) {
  const CUdeviceptr address = Allocate(1);
  const CUipcMemHandle inside = HandleOf(address + kSize - 1);
  EXPECT_EQ(Child::Start("ipc_opener", {ToText(inside)}).Wait(), 0);
  EXPECT_EQ(Bytes(address, 1)[0], 8);
}

TEST_F(LegacyIpc, TwoProcessesOpenOneAfterTheOther) {
  const CUdeviceptr address = Allocate(1);
  const std::string handle = ToText(HandleOf(address));
  EXPECT_EQ(Child::Start("ipc_opener", {handle}).Wait(), 0);
  ASSERT_EQ(FillAndWait(cu, address, 1, kSize), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("ipc_opener", {handle}).Wait(), 0);
}

TEST_F(LegacyIpc, TakesNoOtherMemory) {
  EXPECT_EQ(GetHandle(Memory()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(GetHandle(Reserve()), CUDA_ERROR_INVALID_VALUE);
  const int on_the_stack = 0;
  EXPECT_EQ(GetHandle(reinterpret_cast<CUdeviceptr>(&on_the_stack)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(GetHandle(0), CUDA_ERROR_INVALID_VALUE);
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(GetHandle(reinterpret_cast<CUdeviceptr>(host)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cu.cuMemAllocAsync(&pooled, 5000, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(GetHandle(pooled), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
}

TEST_F(LegacyIpc, ItsMakerCannotOpenIt) {
  const CUipcMemHandle handle = HandleOf(Allocate(1));
  CUdeviceptr address = 0;
  EXPECT_EQ(cu.cuIpcOpenMemHandle(&address, handle, kLazy),
            CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(LegacyIpc, ClosesOnlyWhatWasOpened) {
  const CUdeviceptr address = Allocate(1);
  EXPECT_THAT(kNoMemory, ::testing::Contains(cu.cuIpcCloseMemHandle(address)));
  EXPECT_EQ(Bytes(address, 1)[0], 1) << "it is there still";
}

// args: handle. Expects that it cannot be opened.
int Refused(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUdeviceptr address = 0;
  checks.ExpectOneOf(
      "open",
      cu.cuIpcOpenMemHandle(&address, FromText<CUipcMemHandle>(args[0]), kLazy),
      kNoMemory);
  return checks.failures();
}
const bool kRefused = RegisterChild("ipc_refused", &Refused);

TEST_F(LegacyIpc, WhatIsFreedCannotBeOpened) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuMemAlloc(&address, 4 * kMiB), CUDA_SUCCESS);
  const CUipcMemHandle handle = HandleOf(address);
  ASSERT_EQ(cu.cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(Child::Start("ipc_refused", {ToText(handle)}).Wait(), 0);
}

// args: handle. Expects that it cannot be opened, or opens memory of 7s.
int NothingOrNew(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUdeviceptr address = 0;
  const CUresult opened =
      cu.cuIpcOpenMemHandle(&address, FromText<CUipcMemHandle>(args[0]), kLazy);
  if (opened == CUDA_SUCCESS) {
    std::uint8_t byte = 0;
    checks.Expect("read", cu.cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
    checks.ExpectTrue("the new memory's", byte == 7);
    checks.Expect("close", cu.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  } else if (opened != CUDA_ERROR_NOT_PERMITTED) {  // Measured as well.
    checks.ExpectOneOf("open", opened, kNoMemory);
  }
  return checks.failures();
}
const bool kNothingOrNew = RegisterChild("ipc_nothing_or_new", &NothingOrNew);

// Measured: a handle of freed memory opens what lies there by then, or is
// refused, from one run to the next.
TEST_F(LegacyIpc, AnOldHandleOpensNothingOrWhatIsThereNow) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuMemAlloc(&address, 4 * kMiB), CUDA_SUCCESS);
  const CUipcMemHandle handle = HandleOf(address);
  ASSERT_EQ(cu.cuMemFree(address), CUDA_SUCCESS);
  const CUdeviceptr now = Allocate(7, 4 * kMiB);  // There, as likely as not.
  if (now != address) GTEST_SKIP() << "the new memory lies elsewhere";
  EXPECT_EQ(Child::Start("ipc_nothing_or_new", {ToText(handle)}).Wait(), 0);
}

TEST_F(LegacyIpc, NewMemoryAtAnOldAddressHasAnotherHandle) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuMemAlloc(&address, 4 * kMiB), CUDA_SUCCESS);
  const CUipcMemHandle before = HandleOf(address);
  ASSERT_EQ(cu.cuMemFree(address), CUDA_SUCCESS);
  const CUipcMemHandle after = HandleOf(Allocate(1, 4 * kMiB));
  EXPECT_NE(std::memcmp(&before, &after, sizeof(before)), 0);
}

// args: socket. Makes memory of 1s, sends its handle, and waits for its end.
int Maker(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  const int socket = std::stoi(args[0]);
  Checks checks;
  CUdeviceptr address = 0;
  CUipcMemHandle handle{};
  checks.Expect("allocate", cu.cuMemAlloc(&address, kSize), CUDA_SUCCESS);
  checks.Expect("fill", FillAndWait(cu, address, 1, kSize), CUDA_SUCCESS);
  checks.Expect("handle", cu.cuIpcGetMemHandle(&handle, address), CUDA_SUCCESS);
  checks.ExpectTrue("sent", SendBytes(socket, &handle, sizeof(handle)));
  char end = 0;
  ReceiveBytes(socket, &end, 1);  // Killed meanwhile.
  return 1;
}
const bool kMaker = RegisterChild("ipc_maker", &Maker);

TEST_F(LegacyIpc, WhatAKilledProcessMadeCannotBeOpened) {
  const SocketPair sockets = MakeSocketPair();
  Child maker = Child::Start("ipc_maker", {std::to_string(sockets.childs)});
  CloseDescriptor(sockets.childs);
  CUipcMemHandle handle{};
  ASSERT_TRUE(ReceiveBytes(sockets.mine, &handle, sizeof(handle)));
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuIpcOpenMemHandle(&address, handle, kLazy), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(address, kSize), std::vector<std::uint8_t>(kSize, 1));
  EXPECT_EQ(cu.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  maker.Kill();
  EXPECT_EQ(maker.Wait(), Child::kKilled);
  CloseDescriptor(sockets.mine);
  EXPECT_THAT(kNoMemory, ::testing::Contains(
                             cu.cuIpcOpenMemHandle(&address, handle, kLazy)));
}

// args: handle. Opens it for device 1, as a peer of the memory's device.
int PeerOpener(const std::vector<std::string>& args) {
  const platform::DriverTable& cu = DriverWithContext();
  Checks checks;
  CUcontext context = nullptr;
  checks.Expect("retain", cu.cuDevicePrimaryCtxRetain(&context, 1),
                CUDA_SUCCESS);
  checks.Expect("set", cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  checks.Expect(
      "open",
      cu.cuIpcOpenMemHandle(&address, FromText<CUipcMemHandle>(args[0]), kLazy),
      CUDA_SUCCESS);
  if (checks.failures() != 0) return 100;
  std::uint8_t byte = 0;
  checks.Expect("read", cu.cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
  checks.ExpectTrue("a one", byte == 1);
  checks.Expect("write", FillAndWait(cu, address, 8, kSize), CUDA_SUCCESS);
  checks.Expect("close", cu.cuIpcCloseMemHandle(address), CUDA_SUCCESS);
  return checks.failures();
}
const bool kPeerOpener = RegisterChild("ipc_peer_opener", &PeerOpener);

TEST_F(LegacyIpc, APeerDeviceUsesIt) {
  int can = 0;
  if (DeviceCount() < 2 ||
      cu.cuDeviceCanAccessPeer(&can, 0, 1) != CUDA_SUCCESS || can == 0) {
    GTEST_SKIP() << "there are no two devices that are peers";
  }
  const CUdeviceptr address = Allocate(1);
  EXPECT_EQ(Child::Start("ipc_peer_opener", {ToText(HandleOf(address))}).Wait(),
            0);
  EXPECT_EQ(Bytes(address, kSize), std::vector<std::uint8_t>(kSize, 8));
}

}  // namespace
}  // namespace vmm::testing
