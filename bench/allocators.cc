#include "bench/allocators.h"

#include <limits>
#include <utility>

#include "bench/must.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/driver_table.h"
#include "vmm/pool/pool.h"

namespace bench {
namespace {

using vmm::platform::Driver;

class VmmsharePool : public Allocator {
 public:
  explicit VmmsharePool(std::unique_ptr<vmm::Pool> pool)
      : pool_(std::move(pool)) {}
  absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t size,
                                       CUstream stream) override {
    return pool_->Allocate(size, stream);
  }
  absl::Status Free(CUdeviceptr block, CUstream stream) override {
    return pool_->Free(block, stream);
  }
  std::uint64_t Reserved() override { return pool_->statistics().reserved; }

 private:
  std::unique_ptr<vmm::Pool> pool_;
};

class DriverPool : public Allocator {
 public:
  DriverPool(const Driver& driver, CUmemoryPool pool)
      : driver_(driver), pool_(pool) {}
  ~DriverPool() override {
    Must(driver_.Error(driver_->cuMemPoolDestroy(pool_), "cuMemPoolDestroy()"));
  }
  absl::StatusOr<CUdeviceptr> Allocate(std::uint64_t size,
                                       CUstream stream) override {
    CUdeviceptr block = 0;
    const CUresult result =
        driver_->cuMemAllocFromPoolAsync(&block, size, pool_, stream);
    if (result == CUDA_SUCCESS) return block;
    return driver_.Error(result, "cuMemAllocFromPoolAsync()");
  }
  absl::Status Free(CUdeviceptr block, CUstream stream) override {
    return driver_.Error(driver_->cuMemFreeAsync(block, stream),
                         "cuMemFreeAsync()");
  }
  std::uint64_t Reserved() override {
    cuuint64_t bytes = 0;
    Must(driver_.Error(driver_->cuMemPoolGetAttribute(
                           pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &bytes),
                       "cuMemPoolGetAttribute()"));
    return bytes;
  }

 private:
  const Driver driver_;
  const CUmemoryPool pool_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Allocator>> MakeVmmsharePool(
    const vmm::Device& device) {
  ASSIGN_OR_RETURN(std::unique_ptr<vmm::Pool> pool,
                   vmm::Pool::Create(device, {}));
  return std::make_unique<VmmsharePool>(std::move(pool));
}

absl::StatusOr<std::unique_ptr<Allocator>> MakeDriverPool(
    const vmm::Device& device) {
  const Driver& driver = device.driver();
  RETURN_IF_ERROR(
      driver.Need<&vmm::platform::DriverTable::cuMemAllocFromPoolAsync>());
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.cuda_device()};
  CUmemoryPool pool = nullptr;
  RETURN_IF_ERROR(driver.Error(driver->cuMemPoolCreate(&pool, &props),
                               "cuMemPoolCreate()"));
  auto made = std::make_unique<DriverPool>(driver, pool);
  cuuint64_t keep_all = std::numeric_limits<cuuint64_t>::max();
  RETURN_IF_ERROR(
      driver.Error(driver->cuMemPoolSetAttribute(
                       pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all),
                   "cuMemPoolSetAttribute()"));
  return made;
}

}  // namespace bench
