// Stream-ordered pools: cuMemAllocFromPoolAsync, cuMemPoolExportPointer,
// cuMemPoolImportPointer. The pool's own handle travels once.
#include <limits>
#include <utility>

#include "bench/compare/route.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/handle_attributes.h"

namespace bench::compare {
namespace {

constexpr auto kKeepAll = std::numeric_limits<cuuint64_t>::max();

class StreamPoolOwner : public Owner {
 public:
  StreamPoolOwner(Gpu& gpu, CUmemoryPool pool) : Owner(gpu), pool_(pool) {}
  ~StreamPoolOwner() override {
    vmm::platform::ReportReleaseFailure(
        gpu_.Call(&Cu::cuMemPoolDestroy, pool_));
  }

  absl::StatusOr<Introduction> Introduce() override {
    std::intptr_t exported = 0;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemPoolExportToShareableHandle, &exported,
                              pool_, NativeType(), 0));
    Introduction introduction;
    introduction.handles.push_back(AdoptExported(exported));
    return introduction;
  }

  absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) override {
    Block block{0, size, 0};
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemAllocFromPoolAsync, &block.address,
                              size, pool_, stream));
    return block;
  }

  absl::Status Free(const Block& block, CUstream stream) override {
    return gpu_.Call(&Cu::cuMemFreeAsync, block.address, stream);
  }

  absl::Status Export(const Block& block, Outgoing* out) override {
    CUmemPoolPtrExportData exported;
    RETURN_IF_ERROR(
        gpu_.Call(&Cu::cuMemPoolExportPointer, &exported, block.address));
    out->Put(exported);
    return absl::OkStatus();
  }

  absl::Status Trim() override {
    RETURN_IF_ERROR(gpu_.Synchronize());
    return gpu_.Call(&Cu::cuMemPoolTrimTo, pool_, 0);
  }

 private:
  CUmemoryPool pool_;
};

class StreamPoolImporter : public Importer {
 public:
  using Importer::Importer;
  ~StreamPoolImporter() override {
    if (pool_ == nullptr) return;
    vmm::platform::ReportReleaseFailure(
        gpu_.Call(&Cu::cuMemPoolDestroy, pool_));
  }

  absl::Status Meet(const Introduction& owner) override {
    vmm::platform::Check(owner.handles.size() == 1,
                         "an introduction of another route");
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemPoolImportFromShareableHandle, &pool_,
                              reinterpret_cast<void*>(owner.handles[0].get()),
                              NativeType(), 0));
    const CUmemAccessDesc grant = gpu_.ReadAndWrite();
    return gpu_.Call(&Cu::cuMemPoolSetAccess, pool_, &grant, 1);
  }

  absl::StatusOr<Block> Import(Incoming in, Steps* steps) override {
    auto exported = in.Get<CUmemPoolPtrExportData>();
    Block block{0, in.size, 0};
    RETURN_IF_ERROR(Timed(steps, Step::kImport, [&] {
      return gpu_.Call(&Cu::cuMemPoolImportPointer, &block.address, pool_,
                       &exported);
    }));
    return block;
  }

  absl::Status Close(const Block& block) override {
    // The importer's free comes before the owner's, and must have passed.
    const absl::Status freed = gpu_.driver().Error(
        gpu_.cu().cuMemFreeAsync(block.address, gpu_.stream()),
        "cuMemFreeAsync(imported)");
    return freed.ok() ? gpu_.Synchronize() : freed;
  }

 private:
  CUmemoryPool pool_ = nullptr;
};

absl::Status NeedPools(const Gpu& gpu) {
  return gpu.Need<&Cu::cuMemPoolCreate, &Cu::cuMemPoolDestroy,
                  &Cu::cuMemAllocFromPoolAsync, &Cu::cuMemFreeAsync,
                  &Cu::cuMemPoolSetAttribute, &Cu::cuMemPoolSetAccess,
                  &Cu::cuMemPoolTrimTo, &Cu::cuMemPoolExportToShareableHandle,
                  &Cu::cuMemPoolImportFromShareableHandle,
                  &Cu::cuMemPoolExportPointer, &Cu::cuMemPoolImportPointer>();
}

absl::StatusOr<std::unique_ptr<Owner>> Own(Gpu& gpu) {
  RETURN_IF_ERROR(NeedPools(gpu));
  ASSIGN_OR_RETURN(void* attributes, vmm::platform::NativePoolAttributes());
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = NativeType();
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu.owner().cuda_device();
  properties.win32SecurityAttributes = attributes;
  CUmemoryPool pool = nullptr;
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemPoolCreate, &pool, &properties));
  auto owner = std::make_unique<StreamPoolOwner>(gpu, pool);
  // Otherwise it gives memory back at every synchronisation.
  cuuint64_t threshold = kKeepAll;
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemPoolSetAttribute, pool,
                           CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  return owner;
}

absl::StatusOr<std::unique_ptr<Importer>> MakeImporter(Gpu& gpu) {
  RETURN_IF_ERROR(NeedPools(gpu));
  return std::make_unique<StreamPoolImporter>(gpu);
}

}  // namespace

const Route routes::kStreamPoolIpc = {"pool-ipc", "stream-ordered pool IPC",
                                      false, &Own, &MakeImporter};

}  // namespace bench::compare
