// What a pointer is: cuPointerGetAttribute(s), cuMemGetAddressRange,
// cuMemRetainAllocationHandle.
#include "tests/conformance/conformance.h"

namespace vmm::testing {
namespace {

class Pointers : public Conformance {
 protected:
  template <typename T>
  T Get(CUdeviceptr address, CUpointer_attribute attribute) {
    T value{};
    EXPECT_EQ(cu.cuPointerGetAttribute(&value, attribute, address),
              CUDA_SUCCESS)
        << "attribute " << attribute;
    return value;
  }
  CUresult Result(CUdeviceptr address, CUpointer_attribute attribute) {
    unsigned long long space[8] = {};
    return cu.cuPointerGetAttribute(space, attribute, address);
  }
  void ExpectUnknown(CUdeviceptr address) {
    for (const CUpointer_attribute attribute :
         {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT,
          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
          CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
          CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
          CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED,
          CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_BUFFER_ID,
          CU_POINTER_ATTRIBUTE_HOST_POINTER,
          CU_POINTER_ATTRIBUTE_ACCESS_FLAGS}) {
      EXPECT_EQ(Result(address, attribute), CUDA_ERROR_INVALID_VALUE)
          << "attribute " << attribute;
    }
    CUdeviceptr base = 0;
    std::size_t size = 0;
    EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, address),
              CUDA_ERROR_NOT_FOUND);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu.cuMemRetainAllocationHandle(&handle,
                                             reinterpret_cast<void*>(address)),
              CUDA_ERROR_INVALID_VALUE);
    // The call for several answers zeros and no error.
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    unsigned type = 7;
    unsigned char managed = 7;
    unsigned long long types = 7;
    void* out[] = {&type, &managed, &types};
    EXPECT_EQ(cu.cuPointerGetAttributes(3, attributes, out, address),
              CUDA_SUCCESS);
    EXPECT_EQ(type, 0u);
    EXPECT_EQ(managed, 0u);
    EXPECT_EQ(types, 0u);
  }
};

TEST_F(Pointers, ToReservedAddressesTellTheReservationAndNoMemory) {
  const CUdeviceptr address = Reserve(2 * kGranule);
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  unsigned type = 7;
  CUdeviceptr start = 7;
  std::size_t size = 7;
  void* out[] = {&type, &start, &size};
  for (const std::size_t offset : {std::size_t{0}, kGranule + 5}) {
    EXPECT_EQ(cu.cuPointerGetAttributes(3, attributes, out, address + offset),
              CUDA_SUCCESS);
    EXPECT_EQ(type, 0u);
    EXPECT_EQ(start, address);
    EXPECT_EQ(size, 2 * kGranule);
  }
}

TEST_F(Pointers, ToVmmMemorySayAllThatAdoptionNeeds) {
  const CUdeviceptr address = Reserve(4 * kGranule);
  Map(address, Create());
  Map(address + kGranule, Create(kGranule, 0));
  SetAccess(address, 2 * kGranule);
  for (const std::size_t offset : {0, 5}) {
    const CUdeviceptr p = address + offset;
    EXPECT_EQ(Get<unsigned>(p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
              static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    EXPECT_EQ(Get<int>(p, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
    EXPECT_FALSE(Get<bool>(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
    EXPECT_EQ(
        Get<unsigned long long>(p, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
        static_cast<unsigned long long>(kFd));
    EXPECT_EQ(Get<void*>(p, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), nullptr);
    EXPECT_TRUE(Get<bool>(p, CU_POINTER_ATTRIBUTE_MAPPED));
    EXPECT_FALSE(Get<bool>(p, CU_POINTER_ATTRIBUTE_IS_MANAGED));
    EXPECT_EQ(Get<void*>(p, CU_POINTER_ATTRIBUTE_CONTEXT), nullptr);
    EXPECT_EQ(Get<unsigned>(p, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS), 3u);
    EXPECT_EQ(Result(p, CU_POINTER_ATTRIBUTE_HOST_POINTER),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(Get<unsigned long long>(address + kGranule,
                                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
            0u);
  EXPECT_NE(Get<unsigned long long>(address, CU_POINTER_ATTRIBUTE_BUFFER_ID),
            Get<unsigned long long>(address + kGranule,
                                    CU_POINTER_ATTRIBUTE_BUFFER_ID));
}

using Pitfall17 = Pointers;

// One handle covers one cuMemCreate, and the calls that describe a range
// disagree about what the range is.
TEST_F(Pitfall17, TheRangeIsTheReservationButTheAddressRangeIsOneMapping) {
  const CUdeviceptr address = Reserve(4 * kGranule);
  const CUmemGenericAllocationHandle first = Create();
  const CUmemGenericAllocationHandle second = Create();
  Map(address, first);
  Map(address + kGranule, second);
  SetAccess(address, 2 * kGranule);
  const CUdeviceptr p = address + kGranule + 5;
  EXPECT_EQ(Get<CUdeviceptr>(p, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
            address);
  EXPECT_EQ(Get<std::size_t>(p, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4 * kGranule);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, p), CUDA_SUCCESS);
  EXPECT_EQ(base, address + kGranule);
  EXPECT_EQ(size, kGranule);
  CUmemGenericAllocationHandle retained = 0;
  EXPECT_EQ(
      cu.cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(p)),
      CUDA_SUCCESS);
  EXPECT_EQ(retained, second);
  EXPECT_EQ(cu.cuMemRelease(retained), CUDA_SUCCESS);
}

TEST_F(Pointers, WithoutAccessHaveNoAddressRange) {
  const CUdeviceptr address = Reserve();
  Map(address, Create());
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, address),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(Result(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CUDA_SUCCESS);
}

TEST_F(Pointers, ToReservedAddressesAreUnknown) { ExpectUnknown(Reserve()); }

TEST_F(Pointers, ToTheStackAreUnknown) {
  int local = 0;
  ExpectUnknown(reinterpret_cast<CUdeviceptr>(&local));
}

TEST_F(Pointers, ToNothingAreUnknown) {
  ExpectUnknown(0);
  ExpectUnknown(0x123456789000);
}

using Pitfall24 = Pointers;

TEST_F(Pitfall24, ABlockOfCuMemAllocIsToldFromVmmMemory) {
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 5000), CUDA_SUCCESS);
  const CUdeviceptr p = block + 5;
  EXPECT_EQ(Get<unsigned>(p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
            static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_TRUE(Get<bool>(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
  EXPECT_EQ(
      Get<unsigned long long>(p, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
      0u);
  EXPECT_EQ(Get<CUdeviceptr>(p, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), block);
  EXPECT_EQ(Get<std::size_t>(p, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 5000u);
  EXPECT_EQ(Get<CUcontext>(p, CU_POINTER_ATTRIBUTE_CONTEXT), Current());
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, p), CUDA_SUCCESS);
  EXPECT_EQ(base, block);
  EXPECT_EQ(size, 5000u);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(p)),
            CUDA_ERROR_INVALID_VALUE);
  // The failure is not sticky.
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(Pointers, ToHostBlocksAreHostMemory) {
  void* host = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
  const auto p = reinterpret_cast<CUdeviceptr>(host);
  EXPECT_EQ(Get<unsigned>(p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
            static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(Get<void*>(p, CU_POINTER_ATTRIBUTE_HOST_POINTER), host);
  EXPECT_EQ(Get<int>(p, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
  EXPECT_FALSE(Get<bool>(p, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
  EXPECT_EQ(Get<std::size_t>(p, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4096u);
  EXPECT_EQ(cu.cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(Pointers, ToNumaMemoryAreHostMemoryThatCanBeExported) {
  const CUdeviceptr address = Reserve();
  const CUmemGenericAllocationHandle handle =
      CreateWith(Properties(kFd, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0));
  Map(address, handle);
  SetAccess(address, kGranule);
  const CUmemAccessDesc host =
      Access(kReadWrite, 0, CU_MEM_LOCATION_TYPE_HOST_NUMA);
  ASSERT_EQ(cu.cuMemSetAccess(address, kGranule, &host, 1), CUDA_SUCCESS);
  EXPECT_EQ(Get<unsigned>(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
            static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(Get<unsigned long long>(address,
                                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
            static_cast<unsigned long long>(kFd));
  EXPECT_EQ(Get<std::size_t>(address, CU_POINTER_ATTRIBUTE_RANGE_SIZE),
            kGranule);
  EXPECT_EQ(Result(address, CU_POINTER_ATTRIBUTE_HOST_POINTER), CUDA_SUCCESS);
  std::size_t size = 0;
  CUdeviceptr base = 0;
  EXPECT_EQ(cu.cuMemGetAddressRange(&base, &size, address), CUDA_SUCCESS);
  EXPECT_EQ(size, kGranule);
}

TEST_F(Pointers, WithoutAccessAreNoneOfADevice) {
  const CUdeviceptr address = Memory();
  EXPECT_EQ(Get<CUdeviceptr>(address + 4, CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
            address + 4);
  SetAccess(address, kGranule, kNoAccess);
  EXPECT_EQ(Result(address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
            CUDA_ERROR_INVALID_VALUE);
  CUcontext context = nullptr;
  ASSERT_EQ(cu.cuCtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(Result(address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
            CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cu.cuCtxPushCurrent(context), CUDA_SUCCESS);
}

TEST_F(Pointers, TellTheMemoryThatTheyAreAPartOf) {
  constexpr auto kSize = CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
  constexpr auto kBase = CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
  constexpr auto kBlock = CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
  const CUdeviceptr range = Reserve(4 * kGranule);
  const CUdeviceptr address = range + kGranule;
  Map(address, Create(2 * kGranule), 2 * kGranule);
  EXPECT_EQ(Get<std::size_t>(address + 5, kSize), 2 * kGranule);
  EXPECT_EQ(Get<CUdeviceptr>(address + 5, kBase), address);
  Map(range, Create());
  EXPECT_NE(Get<unsigned long long>(range, kBlock),
            Get<unsigned long long>(address, kBlock));
  EXPECT_EQ(Get<unsigned long long>(address + kGranule, kBlock),
            Get<unsigned long long>(address, kBlock));
}

TEST_F(Pointers, AreOfNetworkCardsWhereThatWasAskedFor) {
  constexpr auto kRdma = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
  const CUdeviceptr range = Reserve(2 * kGranule);
  CUmemAllocationProp prop = Properties();
  Map(range, CreateWith(prop));
  EXPECT_EQ(Get<unsigned char>(range, kRdma), 0);
  prop.allocFlags.gpuDirectRDMACapable = 1;
  Map(range + kGranule, CreateWith(prop));
  EXPECT_EQ(Get<unsigned char>(range + kGranule, kRdma), 1);
  CUdeviceptr block = 0;
  ASSERT_EQ(cu.cuMemAlloc(&block, 1), CUDA_SUCCESS);
  EXPECT_EQ(Get<unsigned char>(block, kRdma), 1);
  EXPECT_EQ(cu.cuMemFree(block), CUDA_SUCCESS);
}

TEST_F(Pointers, HaveNoUnknownAttributes) {
  EXPECT_EQ(Result(Memory(), static_cast<CUpointer_attribute>(999)),
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vmm::testing
