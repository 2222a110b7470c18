// What the tests of stream-ordered pools share.
#ifndef VMMSHARE_TESTS_CONFORMANCE_POOL_TEST_BASE_H_
#define VMMSHARE_TESTS_CONFORMANCE_POOL_TEST_BASE_H_

#include "tests/conformance/conformance.h"

namespace vmm::testing {

CUmemPoolProps PoolProperties(int handle_types = 0, int device = 0);
// cuMemPoolExportToShareableHandle, for kFd, with a descriptor in an int.
CUresult ExportPoolTo(const platform::DriverTable& cu, int* fd,
                      CUmemoryPool pool);

class PoolTest : public Conformance {
 protected:
  // A pool that is destroyed at the end of the test.
  CUmemoryPool MakePool(int handle_types = 0, int device = 0);
  CUmemoryPool MakePoolWith(const CUmemPoolProps& props);
  CUmemoryPool DefaultPool(int device = 0);
  // Memory of `pool`, for the caller to free.
  CUdeviceptr Take(CUmemoryPool pool, std::size_t size,
                   CUstream stream = nullptr);
  std::uint64_t Get(CUmemoryPool pool, CUmemPool_attribute attribute);
  int GetFlag(CUmemoryPool pool, CUmemPool_attribute attribute);
  CUresult Set(CUmemoryPool pool, CUmemPool_attribute attribute,
               std::uint64_t value);
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_CONFORMANCE_POOL_TEST_BASE_H_
