// Calls that vmmshare does not make, and programs beside it do: priorities of
// streams, copies that tell from the addresses what they copy.
#include <cstring>
#include <string>

#include "tests/conformance/host_driver_test.h"

namespace vmm::testing {
namespace {

class HostDriverForOthers : public Conformance {};

TEST_F(HostDriverForOthers, StreamsHavePriorities) {
  int least = 7;
  int greatest = 7;
  EXPECT_EQ(FindExport<decltype(::cuCtxGetStreamPriorityRange)>(
                "cuCtxGetStreamPriorityRange")(&least, &greatest),
            CUDA_SUCCESS);
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, -5);
  const auto make = FindExport<decltype(::cuStreamCreateWithPriority)>(
      "cuStreamCreateWithPriority");
  const auto priority_of =
      FindExport<decltype(::cuStreamGetPriority)>("cuStreamGetPriority");
  const auto flags_of =
      FindExport<decltype(::cuStreamGetFlags)>("cuStreamGetFlags");
  for (const auto& [asked, given] : {std::pair(-3, -3), {-9, -5}, {4, 0}}) {
    CUstream stream = nullptr;
    ASSERT_EQ(make(&stream, CU_STREAM_NON_BLOCKING, asked), CUDA_SUCCESS);
    int priority = 7;
    unsigned int flags = 7;
    EXPECT_EQ(priority_of(stream, &priority), CUDA_SUCCESS);
    EXPECT_EQ(priority, given);
    EXPECT_EQ(flags_of(stream, &flags), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  }
}

TEST_F(HostDriverForOthers, ManagedMemoryIsADevicesAndTheCpusAtOneAddress) {
  const auto allocate =
      FindExport<decltype(::cuMemAllocManaged)>("cuMemAllocManaged");
  CUdeviceptr p = 0;
  EXPECT_EQ(allocate(&p, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allocate(&p, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allocate(nullptr, 1, CU_MEM_ATTACH_HOST), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(allocate(&p, 5000, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  const auto get = [&](CUpointer_attribute attribute) {
    unsigned long long value = 0;
    EXPECT_EQ(cu.cuPointerGetAttribute(&value, attribute, p), CUDA_SUCCESS)
        << attribute;
    return value;
  };
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_IS_MANAGED), 1u);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_HOST_POINTER), p);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0u);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0u);
  CUipcMemHandle handle{};
  EXPECT_EQ(cu.cuIpcGetMemHandle(&handle, p), CUDA_ERROR_INVALID_VALUE);
  auto* const bytes = reinterpret_cast<volatile unsigned char*>(p);
  EXPECT_EQ(cu.cuMemsetD8(p, 7, 5000), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(bytes[4999], 7);
  bytes[0] = 8;
  unsigned char back = 0;
  EXPECT_EQ(cu.cuMemcpyDtoH(&back, p, 1), CUDA_SUCCESS);
  EXPECT_EQ(back, 8);
  EXPECT_EQ(cu.cuMemFreeHost(reinterpret_cast<void*>(p)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFree(p), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(
      cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p),
      CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostDriverForOthers, CopiesTellFromTheAddressesWhatTheyCopy) {
  const auto copy = FindExport<decltype(::cuMemcpyAsync)>("cuMemcpyAsync");
  const auto copy_now = FindExport<decltype(::cuMemcpy)>("cuMemcpy");
  const CUdeviceptr there = Memory();
  const CUstream stream = MakeStream();
  const std::string text = "device memory";
  char back[14] = "";
  char last[14] = "";
  const auto at = [](const void* data) {
    return reinterpret_cast<CUdeviceptr>(data);
  };
  EXPECT_EQ(copy(there, at(text.c_str()), sizeof(back), stream), CUDA_SUCCESS);
  EXPECT_EQ(copy(there + 64, there, sizeof(back), stream), CUDA_SUCCESS);
  EXPECT_EQ(copy(at(back), there + 64, sizeof(back), stream), CUDA_SUCCESS);
  EXPECT_EQ(copy(at(last), at(back), sizeof(back), stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(last, text);
  std::memset(back, 0, sizeof(back));
  EXPECT_EQ(copy_now(at(back), there, sizeof(back)), CUDA_SUCCESS);
  EXPECT_EQ(back, text);
  EXPECT_EQ(copy_now(there + 128, at(text.c_str()), 4), CUDA_SUCCESS);
  EXPECT_EQ(copy_now(there + 132, there + 4, 4), CUDA_SUCCESS);
  EXPECT_EQ(Word(there + 128), Word(there));
  CUdeviceptr block = 0;
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 64), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemAllocAsync(&pooled, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(copy_now(block, there, 8), CUDA_SUCCESS);
  EXPECT_EQ(copy_now(pooled, block, 8), CUDA_SUCCESS);
  EXPECT_EQ(Word(pooled), Word(there));
  EXPECT_EQ(cu.cuMemFreeAsync(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(copy_now(pooled, there, 8), CUDA_ERROR_INVALID_VALUE)
      << "the pool has it still";
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
  std::memset(last, 0, sizeof(last));
  EXPECT_EQ(copy_now(at(last), at(back), sizeof(back)), CUDA_SUCCESS);
  EXPECT_EQ(last, text);
  ASSERT_EQ(HostDriver().fail("cuMemcpy:1:UNKNOWN"), 0);
  EXPECT_EQ(copy_now(at(back), at(last), 1), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(HostDriver().fail(nullptr), 0);
  EXPECT_EQ(copy(at(back), at(last), 1, CU_STREAM_PER_THREAD),
            CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace vmm::testing
