#include "bench/compare/allocators.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace bench::compare {
namespace {

using Table = vmm::platform::DriverTable;

// cuMemAllocAsync from the device's default pool.
class AsyncOwner : public Owner {
 public:
  AsyncOwner(Gpu& gpu, CUmemoryPool pool) : gpu_(gpu), pool_(pool) {}

  absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) override {
    Block block{0, size, 0};
    const CUresult r = gpu_.cu().cuMemAllocAsync(&block.address, size, stream);
    if (r != CUDA_SUCCESS) return gpu_.Error(r, "cuMemAllocAsync()");
    return block;
  }
  absl::Status Free(const Block& block, CUstream stream) override {
    return gpu_.Error(gpu_.cu().cuMemFreeAsync(block.address, stream),
                      "cuMemFreeAsync()");
  }
  absl::StatusOr<std::size_t> Export(
      const Block& /*block*/, BlobSpan /*blob*/,
      vmm::platform::OsHandle* /*handle*/) override {
    return absl::UnimplementedError("the default pool is not shared");
  }
  absl::Status Trim() override {
    return gpu_.Error(gpu_.cu().cuMemPoolTrimTo(pool_, 0), "cuMemPoolTrimTo()");
  }

 private:
  Gpu& gpu_;
  CUmemoryPool pool_;
};

absl::StatusOr<std::unique_ptr<Owner>> MakeAsync(Gpu& gpu) {
  for (const absl::Status& needed :
       {gpu.driver().Need<&Table::cuMemAllocAsync>(),
        gpu.driver().Need<&Table::cuMemFreeAsync>(),
        gpu.driver().Need<&Table::cuDeviceGetDefaultMemPool>(),
        gpu.driver().Need<&Table::cuMemPoolSetAttribute>(),
        gpu.driver().Need<&Table::cuMemPoolTrimTo>()}) {
    if (!needed.ok()) return needed;
  }
  CUmemoryPool pool = nullptr;
  CUresult r =
      gpu.cu().cuDeviceGetDefaultMemPool(&pool, gpu.device().cuda_device());
  if (r != CUDA_SUCCESS) return gpu.Error(r, "cuDeviceGetDefaultMemPool()");
  cuuint64_t keep_all = std::numeric_limits<cuuint64_t>::max();
  r = gpu.cu().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                     &keep_all);
  if (r != CUDA_SUCCESS) return gpu.Error(r, "cuMemPoolSetAttribute()");
  return std::make_unique<AsyncOwner>(gpu, pool);
}

}  // namespace

absl::StatusOr<std::vector<Allocator>> MakeAllocators(Bench& bench) {
  std::vector<Allocator> allocators;
  const auto add = [&](const std::string& name, const std::string& label,
                       absl::StatusOr<std::unique_ptr<Owner>> owner) {
    if (owner.ok()) {
      allocators.push_back({name, label, *std::move(owner)});
      return;
    }
    bench.progress.Step(absl::StrCat("alloc: ", label, " is not available: ",
                                     std::string(owner.status().message())));
  };
  add(routes::kLegacyIpc.name, "cuMemAlloc", routes::kLegacyIpc.own(bench.gpu));
  add(kAsyncAllocator, "cuMemAllocAsync", MakeAsync(bench.gpu));
  add(routes::kPool.name, routes::kPool.label, routes::kPool.own(bench.gpu));
  return allocators;
}

}  // namespace bench::compare
