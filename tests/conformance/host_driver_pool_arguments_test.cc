// What the host-memory driver's pools refuse, where no measurement says what a real
// driver does.
#include <cstdint>

#include "tests/conformance/host_driver_test.h"
#include "tests/conformance/pool_test_base.h"

namespace vmm::testing {
namespace {

class HostPoolArguments : public PoolTest {};

TEST_F(HostPoolArguments, OfWhatPoolsAreMadeOfAndSharedBy) {
  CUmemoryPool pool = nullptr;
  const auto make = [&](int types, CUmemLocationType type, int id) {
    CUmemPoolProps props = PoolProperties(types);
    props.location = At(id, type);
    return cu.cuMemPoolCreate(&pool, &props);
  };
  constexpr CUmemLocationType kDevice = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemPoolProps managed = PoolProperties();
  managed.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  ExpectAnswers({
      {"not pinned", cu.cuMemPoolCreate(&pool, &managed), kInvalid},
      {"for another system's", make(kForeignFd, kDevice, 0), kInvalid},
      {"of the host", make(0, CU_MEM_LOCATION_TYPE_HOST, 0),
       CUDA_ERROR_NOT_SUPPORTED},
      {"of a node of the host", make(0, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
       CUDA_ERROR_NOT_SUPPORTED},
      {"of nothing", make(0, CU_MEM_LOCATION_TYPE_INVALID, 0), kInvalid},
      {"of no device", make(0, kDevice, kNoDevice), kInvalid},
      {"of one before all", make(0, kDevice, -1), kInvalid},
  });
  EXPECT_EQ(pool, nullptr);
  const CUmemoryPool first = MakePool(kFd);
  const CUmemoryPool second = MakePool(0, 1);
  int fd = -1;
  char bytes[64] = {};
  ExpectAnswers({
      {"none", cu.cuDeviceSetMemPool(0, nullptr), kInvalid},
      {"another device's", cu.cuDeviceSetMemPool(0, second), kInvalid},
      {"nowhere", cu.cuMemPoolExportToShareableHandle(nullptr, first, kFd, 0),
       kInvalid},
      {"no pool", cu.cuMemPoolExportToShareableHandle(&fd, nullptr, kFd, 0),
       kInvalid},
      {"flags", cu.cuMemPoolExportToShareableHandle(&fd, first, kFd, 1),
       kInvalid},
      {"not asked for", ExportPoolTo(cu, &fd, second), kInvalid},
      {"of two kinds",
       cu.cuMemPoolExportToShareableHandle(
           &fd, first, static_cast<CUmemAllocationHandleType>(kFd | 4), 0),
       kInvalid},
      {"for a fabric", make(CU_MEM_HANDLE_TYPE_FABRIC, kDevice, 0),
       CUDA_SUCCESS},
      {"and its export",
       cu.cuMemPoolExportToShareableHandle(bytes, pool,
                                           CU_MEM_HANDLE_TYPE_FABRIC, 0),
       CUDA_ERROR_NOT_PERMITTED},
      {"its end", cu.cuMemPoolDestroy(pool), CUDA_SUCCESS},
      {"no pool to import",
       cu.cuMemPoolImportFromShareableHandle(nullptr, nullptr, kFd, 0),
       kInvalid},
      {"flags", cu.cuMemPoolImportFromShareableHandle(&pool, nullptr, kFd, 1),
       kInvalid},
      {"another kind",
       cu.cuMemPoolImportFromShareableHandle(&pool, nullptr, kForeignFd, 0),
       kInvalid},
  });
  EXPECT_EQ(fd, -1);
  CUdeviceptr address = 0;
  CUmemPoolPtrExportData data{};
  ExpectAnswers({
      {"no place", cu.cuMemPoolImportPointer(nullptr, first, &data), kInvalid},
      {"no pool", cu.cuMemPoolImportPointer(&address, nullptr, &data),
       kInvalid},
      {"no data", cu.cuMemPoolImportPointer(&address, first, nullptr),
       kInvalid},
      {"its own", cu.cuMemPoolImportPointer(&address, first, &data), kInvalid},
      {"a block", cu.cuMemAlloc(&address, 1), CUDA_SUCCESS},
      {"a block of no pool", cu.cuMemFreeAsync(address, nullptr), kInvalid},
      {"as it was made", cu.cuMemFree(address), CUDA_SUCCESS},
      {"what is low", cu.cuMemFreeAsync(4096, nullptr), kInvalid},
      {"what is high", cu.cuMemFreeAsync(CUdeviceptr{1} << 62, nullptr),
       kInvalid},
      {"what is reserved", cu.cuMemFreeAsync(Reserve(), nullptr), kInvalid},
  });
}

TEST_F(HostPoolArguments, OfWhatPoolsAreAskedAndTold) {
  const CUmemoryPool pool = MakePool();
  const auto unknown = static_cast<CUmemPool_attribute>(99);
  constexpr auto kUsed = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
  std::uint64_t value = 7;
  const CUmemAccessDesc all = Access(kReadWrite);
  CUmemAccess_flags flags = kRead;
  CUmemLocation here = At(0);
  CUmemLocation before = At(-1);
  CUmemLocation behind = At(kNoDevice);
  CUmemLocation host = At(0, CU_MEM_LOCATION_TYPE_HOST);
  const auto set = [&](CUmemAccess_flags access, int device,
                       CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
    const CUmemAccessDesc desc = Access(access, device, type);
    return cu.cuMemPoolSetAccess(pool, &desc, 1);
  };
  ExpectAnswers({
      {"unknown", cu.cuMemPoolGetAttribute(pool, unknown, &value), kInvalid},
      {"no value", cu.cuMemPoolGetAttribute(pool, kUsed, nullptr), kInvalid},
      {"set unknown", Set(pool, unknown, 0), kInvalid},
      {"set what is counted", Set(pool, kUsed, 0), kInvalid},
      {"set nothing", cu.cuMemPoolSetAttribute(pool, kUsed, nullptr), kInvalid},
      {"the host's access", set(kReadWrite, 0, CU_MEM_LOCATION_TYPE_HOST),
       CUDA_ERROR_NOT_SUPPORTED},
      {"access of no kind", set(static_cast<CUmemAccess_flags>(2), 1),
       kInvalid},
      {"of no device", set(kReadWrite, kNoDevice), CUDA_ERROR_INVALID_DEVICE},
      {"before all", set(kReadWrite, -1), CUDA_ERROR_INVALID_DEVICE},
      {"what its own device has", set(kReadWrite, 0), CUDA_SUCCESS},
      {"less than that", set(kRead, 0), CUDA_ERROR_NOT_SUPPORTED},
      {"none", cu.cuMemPoolSetAccess(pool, nullptr, 1), kInvalid},
      {"none at all", cu.cuMemPoolSetAccess(pool, &all, 0), CUDA_SUCCESS},
      {"no flags", cu.cuMemPoolGetAccess(nullptr, pool, &here), kInvalid},
      {"no location", cu.cuMemPoolGetAccess(&flags, pool, nullptr), kInvalid},
      {"no pool", cu.cuMemPoolGetAccess(&flags, nullptr, &here), kInvalid},
      {"of no device", cu.cuMemPoolGetAccess(&flags, pool, &behind), kInvalid},
      {"before all", cu.cuMemPoolGetAccess(&flags, pool, &before), kInvalid},
  });
  EXPECT_EQ(value, 7u);
  EXPECT_EQ(flags, kRead);
  EXPECT_EQ(cu.cuMemPoolGetAccess(&flags, pool, &host), CUDA_SUCCESS);
  EXPECT_EQ(flags, kNoAccess);
  EXPECT_EQ(cu.cuMemPoolGetAccess(&flags, pool, &here), CUDA_SUCCESS);
  EXPECT_EQ(flags, kReadWrite);
}

}  // namespace
}  // namespace vmm::testing
