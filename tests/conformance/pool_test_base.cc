#include "tests/conformance/pool_test_base.h"

#include <cstring>

namespace vmm::testing {

CUmemPoolProps PoolProperties(int handle_types, int device) {
  CUmemPoolProps props;
  std::memset(&props, 0, sizeof(props));
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device;
  return props;
}

CUmemoryPool PoolTest::MakePool(int handle_types, int device) {
  return MakePoolWith(PoolProperties(handle_types, device));
}

CUmemoryPool PoolTest::MakePoolWith(const CUmemPoolProps& props) {
  CUmemoryPool pool = nullptr;
  const CUresult result = cu.cuMemPoolCreate(&pool, &props);
  EXPECT_EQ(result, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) {
    Later([this, pool] { EXPECT_EQ(cu.cuMemPoolDestroy(pool), CUDA_SUCCESS); });
  }
  return pool;
}

CUmemoryPool PoolTest::DefaultPool(int device) {
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cu.cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
  return pool;
}

CUdeviceptr PoolTest::Take(CUmemoryPool pool, std::size_t size,
                           CUstream stream) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&address, size, pool, stream),
            CUDA_SUCCESS);
  return address;
}

std::uint64_t PoolTest::Get(CUmemoryPool pool, CUmemPool_attribute attribute) {
  std::uint64_t value = 77;
  EXPECT_EQ(cu.cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
  return value;
}

int PoolTest::GetFlag(CUmemoryPool pool, CUmemPool_attribute attribute) {
  int value = 77;
  EXPECT_EQ(cu.cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
  return value;
}

CUresult PoolTest::Set(CUmemoryPool pool, CUmemPool_attribute attribute,
                       std::uint64_t value) {
  return cu.cuMemPoolSetAttribute(pool, attribute, &value);
}

}  // namespace vmm::testing
