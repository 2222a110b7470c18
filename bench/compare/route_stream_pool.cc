// Stream-ordered pools: cuMemAllocFromPoolAsync, cuMemPoolExportPointer,
// cuMemPoolImportPointer. The pool's own handle travels once.
#include <cstring>
#include <limits>
#include <utility>

#include "bench/compare/route.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/handle_attributes.h"

namespace bench::compare {
namespace {

using vmm::platform::OsHandle;

constexpr auto kKeepAll = std::numeric_limits<cuuint64_t>::max();

CUmemAllocationHandleType Kind() {
  return static_cast<CUmemAllocationHandleType>(NativeKind());
}

class StreamPoolOwner : public Owner {
 public:
  StreamPoolOwner(Gpu& gpu, CUmemoryPool pool) : gpu_(gpu), pool_(pool) {}
  ~StreamPoolOwner() override {
    vmm::platform::ReportReleaseFailure(
        gpu_.Call(&Cu::cuMemPoolDestroy, pool_));
  }

  absl::StatusOr<Introduction> Introduce() override {
    std::intptr_t exported = 0;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemPoolExportToShareableHandle, &exported,
                              pool_, Kind(), 0));
    if (vmm::platform::kNativeHandleIsPosixFd) {
      int descriptor = -1;
      std::memcpy(&descriptor, &exported, sizeof(descriptor));
      exported = descriptor;
    }
    Introduction introduction;
    introduction.handles.push_back(OsHandle::Adopt(exported));
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

  absl::StatusOr<std::size_t> Export(const Block& block, BlobSpan blob,
                                     OsHandle* /*handle*/) override {
    CUmemPoolPtrExportData exported;
    RETURN_IF_ERROR(
        gpu_.Call(&Cu::cuMemPoolExportPointer, &exported, block.address));
    std::memcpy(blob.data(), &exported, sizeof(exported));
    return sizeof(exported);
  }

  absl::Status Trim() override {
    RETURN_IF_ERROR(gpu_.Synchronize());
    return gpu_.Call(&Cu::cuMemPoolTrimTo, pool_, 0);
  }

 private:
  Gpu& gpu_;
  CUmemoryPool pool_;
};

class StreamPoolImporter : public Importer {
 public:
  explicit StreamPoolImporter(Gpu& gpu) : gpu_(gpu) {}
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
                              Kind(), 0));
    CUmemAccessDesc grant{};
    grant.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    grant.location.id = gpu_.device().cuda_device();
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return gpu_.Call(&Cu::cuMemPoolSetAccess, pool_, &grant, 1);
  }

  absl::StatusOr<Block> Import(std::uint64_t size,
                               absl::Span<const std::uint8_t> blob,
                               OsHandle /*handle*/, Steps* steps) override {
    CUmemPoolPtrExportData exported;
    vmm::platform::Check(blob.size() == sizeof(exported),
                         "a blob of another route");
    std::memcpy(&exported, blob.data(), sizeof(exported));
    Block block{0, size, 0};
    RETURN_IF_ERROR(Timed(steps, Step::kImport, [&] {
      return gpu_.Call(&Cu::cuMemPoolImportPointer, &block.address, pool_,
                       &exported);
    }));
    return block;
  }

  absl::Status Close(const Block& block) override {
    // The importer's free comes before the owner's, and must have passed.
    const absl::Status freed =
        gpu_.Error(gpu_.cu().cuMemFreeAsync(block.address, gpu_.stream()),
                   "cuMemFreeAsync(imported)");
    return freed.ok() ? gpu_.Synchronize() : freed;
  }

 private:
  Gpu& gpu_;
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
  properties.handleTypes = Kind();
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
