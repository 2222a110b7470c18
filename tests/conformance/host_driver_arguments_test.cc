// Arguments that the host-memory driver refuses. What a real driver says of them
// is not known, or it takes them as they come.
#include <array>
#include <cstdint>

#include "tests/conformance/host_driver_test.h"

namespace vmm::testing {
namespace {

class HostArguments : public Conformance {};

TEST_F(HostArguments, OfQuestionsAboutDevices) {
  char name[8];
  unsigned int flags = 0;
  int number = 0;
  std::size_t bytes = 0;
  ExpectAnswers({
      {"no free", cu.cuMemGetInfo(nullptr, &bytes), kInvalid},
      {"no total", cu.cuMemGetInfo(&bytes, nullptr), kInvalid},
      {"no such device", cu.cuDeviceGetName(name, sizeof(name), kNoDevice),
       CUDA_ERROR_INVALID_DEVICE},
      {"no room", cu.cuDeviceGetName(name, 0, 0), kInvalid},
      {"no flags", cu.cuDevicePrimaryCtxGetState(0, nullptr, &number),
       kInvalid},
      {"no state", cu.cuDevicePrimaryCtxGetState(0, &flags, nullptr), kInvalid},
      {"no context", cu.cuDevicePrimaryCtxRelease(kNoDevice),
       CUDA_ERROR_INVALID_DEVICE},
      {"one before all", cu.cuDevicePrimaryCtxRelease(-1),
       CUDA_ERROR_INVALID_DEVICE},
  });
  EXPECT_EQ(cu.cuDeviceGetName(name, sizeof(name), 1), CUDA_SUCCESS);
  EXPECT_STREQ(name, "vmmshar") << "cut to the room there is";
}

TEST_F(HostArguments, DevicesHaveTheNumbersOfTheModel) {
  const std::array<std::pair<CUdevice_attribute, int>, 9> numbers = {{
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1},
      {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 0},
  }};
  for (const auto& [attribute, number] : numbers) {
    int value = -1;
    EXPECT_EQ(cu.cuDeviceGetAttribute(&value, attribute, 0), CUDA_SUCCESS);
    EXPECT_EQ(value, number) << attribute;
  }
  int arrays = -1;
  EXPECT_EQ(
      cu.cuDeviceGetP2PAttribute(
          &arrays, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, 0, 1),
      CUDA_SUCCESS);
  EXPECT_EQ(arrays, 1);
}

TEST_F(HostArguments, OfMappings) {
  const CUdeviceptr address = Reserve(4 * kGranule);
  Map(address + kGranule, Create(2 * kGranule), 2 * kGranule);
  const CUmemAccessDesc desc = Access(kReadWrite);
  const CUmemLocation here = At(0);
  const CUmemLocation before = At(-1);
  const CUmemLocation nowhere = At(0, CU_MEM_LOCATION_TYPE_INVALID);
  const CUmemLocation host = At(0, CU_MEM_LOCATION_TYPE_HOST);
  const CUmemAllocationProp prop = Properties();
  const std::size_t too_far = std::size_t{0} - kGranule;
  unsigned long long flags = 0;
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  ExpectAnswers({
      {"the first half alone", cu.cuMemUnmap(address + kGranule, kGranule),
       kInvalid},
      {"the second half alone", cu.cuMemUnmap(address + 2 * kGranule, kGranule),
       kInvalid},
      {"at null", cu.cuMemUnmap(0, kGranule), kInvalid},
      {"no bytes", cu.cuMemUnmap(address, 0), kInvalid},
      {"half a granule", cu.cuMemUnmap(address, kGranule / 2), kInvalid},
      {"between granules", cu.cuMemUnmap(address + 1, kGranule), kInvalid},
      {"past the end of all", cu.cuMemUnmap(address, too_far), kInvalid},
      {"access past all", cu.cuMemSetAccess(address, too_far, &desc, 1),
       kInvalid},
      {"access to a half",
       cu.cuMemSetAccess(address + 2 * kGranule, kGranule, &desc, 1), kInvalid},
      {"no flags", cu.cuMemGetAccess(nullptr, &here, address), kInvalid},
      {"no location", cu.cuMemGetAccess(&flags, nullptr, address), kInvalid},
      {"no kind of location", cu.cuMemGetAccess(&flags, &nowhere, address),
       CUDA_ERROR_INVALID_DEVICE},
      {"a device before all", cu.cuMemGetAccess(&flags, &before, address),
       CUDA_ERROR_INVALID_DEVICE},
      {"the host's where nothing is", cu.cuMemGetAccess(&flags, &host, address),
       kInvalid},
      {"another kind of handle",
       cu.cuMemImportFromShareableHandle(&handle, nullptr,
                                         CU_MEM_HANDLE_TYPE_WIN32_KMT),
       CUDA_ERROR_NOT_SUPPORTED},
      {"no kind of handle",
       cu.cuMemImportFromShareableHandle(&handle, nullptr,
                                         CU_MEM_HANDLE_TYPE_NONE),
       kInvalid},
      {"no such granularity",
       cu.cuMemGetAllocationGranularity(
           &bytes, &prop, static_cast<CUmemAllocationGranularity_flags>(7)),
       kInvalid},
  });
  EXPECT_EQ(AccessOf(address + kGranule), 0u) << "nothing of it was done";
}

TEST_F(HostArguments, OfRangesAndPointers) {
  const CUdeviceptr address = Memory();
  constexpr CUmemRangeHandleType kDmaBuf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
  int fd = -1;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
  CUpointer_attribute unknown = CU_POINTER_ATTRIBUTE_P2P_TOKENS;
  std::uint64_t value = 0;
  void* out[] = {&value};
  void* nothing[] = {nullptr};
  const auto get = cu.cuMemGetHandleForAddressRange;
  const auto ask = cu.cuPointerGetAttributes;
  ExpectAnswers({
      {"no handle", get(nullptr, address, kGranule, kDmaBuf, 0), kInvalid},
      {"at null", get(&fd, 0, kGranule, kDmaBuf, 0), kInvalid},
      {"no bytes", get(&fd, address, 0, kDmaBuf, 0), kInvalid},
      {"past all", get(&fd, address, std::size_t{0} - 4096, kDmaBuf, 0),
       kInvalid},
      {"no such kind",
       get(&fd, address, kGranule, static_cast<CUmemRangeHandleType>(9), 0),
       kInvalid},
      {"no such flags", get(&fd, address, kGranule, kDmaBuf, 2), kInvalid},
      {"none", ask(0, &attribute, out, address), kInvalid},
      {"no attributes", ask(1, nullptr, out, address), kInvalid},
      {"no place", ask(1, &attribute, nullptr, address), kInvalid},
      {"a null place", ask(1, &attribute, nothing, address), kInvalid},
      {"an unknown one", ask(1, &unknown, out, address), kInvalid},
      {"an unknown one alone",
       cu.cuPointerGetAttribute(&value, unknown, address), kInvalid},
      {"of nothing asked", cu.cuMemGetAddressRange(nullptr, nullptr, address),
       CUDA_SUCCESS},
      {"a device's address", ask(1, &attribute, out, address), CUDA_SUCCESS},
  });
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(value, address);
}

TEST_F(HostArguments, OfFillsAndHostMemory) {
  const CUdeviceptr address = Memory();
  void* data = this;
  ExpectAnswers({
      {"between words", cu.cuMemsetD32(address + 2, 1, 1), kInvalid},
      {"more words than bytes", cu.cuMemsetD32(address, 1, SIZE_MAX / 2),
       kInvalid},
      {"all bytes there are", cu.cuMemHostAlloc(&data, SIZE_MAX, 0),
       CUDA_ERROR_OUT_OF_MEMORY},
      {"as managed memory",
       FindExport<decltype(::cuMemAllocManaged)>("cuMemAllocManaged")(
           reinterpret_cast<CUdeviceptr*>(&data), SIZE_MAX,
           CU_MEM_ATTACH_GLOBAL),
       CUDA_ERROR_OUT_OF_MEMORY},
  });
  EXPECT_EQ(data, this);
  EXPECT_EQ(Word(address), 0u);
}

}  // namespace
}  // namespace vmm::testing
