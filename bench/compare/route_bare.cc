// The driver's virtual memory management, called directly.
#include <cstring>

#include "bench/compare/route.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/handle_attributes.h"

namespace bench::compare {
namespace {

using vmm::platform::OsHandle;

struct Mapped {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  std::uint64_t size = 0;  // Rounded up.
};

absl::StatusOr<CUdeviceptr> Map(Gpu& gpu, CUmemGenericAllocationHandle handle,
                                std::uint64_t size, Steps* steps) {
  CUdeviceptr address = 0;
  RETURN_IF_ERROR(gpu.Error(
      Timed(steps, Step::kMap,
            [&] {
              const CUresult reserved =
                  gpu.cu().cuMemAddressReserve(&address, size, 0, 0, 0);
              if (reserved != CUDA_SUCCESS) return reserved;
              return gpu.cu().cuMemMap(address, size, 0, handle, 0);
            }),
      "cuMemAddressReserve, cuMemMap()"));
  RETURN_IF_ERROR(Timed(steps, Step::kAccess, [&] {
    CUmemAccessDesc grant{};
    grant.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    grant.location.id = gpu.device().cuda_device();
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return gpu.Call(&Cu::cuMemSetAccess, address, size, &grant, 1);
  }));
  return address;
}

absl::Status Release(const Gpu& gpu, const Mapped& mapped) {
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemUnmap, mapped.address, mapped.size));
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemAddressFree, mapped.address, mapped.size));
  return gpu.Call(&Cu::cuMemRelease, mapped.handle);
}

class BareOwner : public Owner {
 public:
  BareOwner(Gpu& gpu, std::uint64_t granularity, CUmemAllocationProp properties)
      : gpu_(gpu), granularity_(granularity), properties_(properties) {}

  absl::StatusOr<Block> Create(std::uint64_t size,
                               CUstream /*stream*/) override {
    Mapped mapped;
    mapped.size = (size + granularity_ - 1) / granularity_ * granularity_;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemCreate, &mapped.handle, mapped.size,
                              &properties_, 0));
    ASSIGN_OR_RETURN(CUdeviceptr address,
                     Map(gpu_, mapped.handle, mapped.size, nullptr));
    return Block{address, size, mapped.handle};
  }

  absl::Status Free(const Block& block, CUstream /*stream*/) override {
    return Release(
        gpu_, {block.address, block.own,
               (block.size + granularity_ - 1) / granularity_ * granularity_});
  }

  absl::StatusOr<std::size_t> Export(const Block& block, BlobSpan /*blob*/,
                                     OsHandle* handle) override {
    // Wide enough for a descriptor and for a HANDLE.
    std::intptr_t exported = 0;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemExportToShareableHandle, &exported,
                              block.own, properties_.requestedHandleTypes, 0));
    if (vmm::platform::kNativeHandleIsPosixFd) {
      int descriptor = -1;
      std::memcpy(&descriptor, &exported, sizeof(descriptor));
      exported = descriptor;
    }
    *handle = OsHandle::Adopt(exported);
    return 0;
  }

 private:
  Gpu& gpu_;
  std::uint64_t granularity_;
  CUmemAllocationProp properties_;
};

class BareImporter : public Importer {
 public:
  BareImporter(Gpu& gpu, std::uint64_t granularity)
      : gpu_(gpu), granularity_(granularity) {}

  absl::StatusOr<Block> Import(std::uint64_t size,
                               absl::Span<const std::uint8_t> /*blob*/,
                               OsHandle handle, Steps* steps) override {
    CUmemGenericAllocationHandle imported = 0;
    RETURN_IF_ERROR(Timed(steps, Step::kImport, [&] {
      return gpu_.Call(&Cu::cuMemImportFromShareableHandle, &imported,
                       reinterpret_cast<void*>(handle.get()),
                       static_cast<CUmemAllocationHandleType>(NativeKind()));
    }));
    ASSIGN_OR_RETURN(CUdeviceptr address,
                     Map(gpu_, imported, Round(size), steps));
    return Block{address, size, imported};
  }

  absl::Status Close(const Block& block) override {
    return Release(gpu_, {block.address, block.own, Round(block.size)});
  }

 private:
  std::uint64_t Round(std::uint64_t size) const {
    return (size + granularity_ - 1) / granularity_ * granularity_;
  }

  Gpu& gpu_;
  std::uint64_t granularity_;
};

absl::StatusOr<CUmemAllocationProp> Properties(const Gpu& gpu) {
  ASSIGN_OR_RETURN(void* attributes, vmm::platform::NativeHandleAttributes());
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(NativeKind());
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu.owner().cuda_device();
  properties.win32HandleMetaData = attributes;
  return properties;
}

absl::StatusOr<std::uint64_t> Granularity(
    const Gpu& gpu, const CUmemAllocationProp& properties) {
  std::size_t granularity = 0;
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemGetAllocationGranularity, &granularity,
                           &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return granularity;
}

absl::StatusOr<std::unique_ptr<Owner>> Own(Gpu& gpu) {
  ASSIGN_OR_RETURN(CUmemAllocationProp properties, Properties(gpu));
  ASSIGN_OR_RETURN(std::uint64_t granularity, Granularity(gpu, properties));
  return std::make_unique<BareOwner>(gpu, granularity, properties);
}

absl::StatusOr<std::unique_ptr<Importer>> MakeImporter(Gpu& gpu) {
  ASSIGN_OR_RETURN(CUmemAllocationProp properties, Properties(gpu));
  ASSIGN_OR_RETURN(std::uint64_t granularity, Granularity(gpu, properties));
  return std::make_unique<BareImporter>(gpu, granularity);
}

}  // namespace

const Route routes::kBareCalls = {"bare", "bare VMM calls", true, &Own,
                                  &MakeImporter};

}  // namespace bench::compare
