#include "bench/compare/allocators.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// cuMemAllocAsync from the device's default pool.
class AsyncOwner : public Owner {
 public:
  AsyncOwner(Gpu& gpu, CUmemoryPool pool) : Owner(gpu), pool_(pool) {}

  absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) override {
    Block block{0, size, 0};
    RETURN_IF_ERROR(
        gpu_.Call(&Cu::cuMemAllocAsync, &block.address, size, stream));
    return block;
  }
  absl::Status Free(const Block& block, CUstream stream) override {
    return gpu_.Call(&Cu::cuMemFreeAsync, block.address, stream);
  }
  absl::Status Export(const Block& /*block*/, Outgoing* /*out*/) override {
    return absl::UnimplementedError("the default pool is not shared");
  }
  absl::Status Trim() override {
    return gpu_.Call(&Cu::cuMemPoolTrimTo, pool_, 0);
  }

 private:
  CUmemoryPool pool_;
};

absl::StatusOr<std::unique_ptr<Owner>> MakeAsync(Gpu& gpu) {
  RETURN_IF_ERROR(
      (gpu.Need<&Cu::cuMemAllocAsync, &Cu::cuMemFreeAsync,
                &Cu::cuDeviceGetDefaultMemPool, &Cu::cuMemPoolSetAttribute,
                &Cu::cuMemPoolTrimTo>()));
  CUmemoryPool pool = nullptr;
  RETURN_IF_ERROR(gpu.Call(&Cu::cuDeviceGetDefaultMemPool, &pool,
                           gpu.device().cuda_device()));
  cuuint64_t keep_all = std::numeric_limits<cuuint64_t>::max();
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemPoolSetAttribute, pool,
                           CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
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
