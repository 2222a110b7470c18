// The driver's virtual memory management, called directly.
#include "bench/compare/route.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/handle_attributes.h"

namespace bench::compare {
namespace {

struct Mapped {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  std::uint64_t size = 0;  // Rounded up.
};

absl::StatusOr<CUdeviceptr> Map(Gpu& gpu, CUmemGenericAllocationHandle handle,
                                std::uint64_t size, Steps* steps) {
  CUdeviceptr address = 0;
  RETURN_IF_ERROR(gpu.driver().Error(
      Timed(steps, Step::kMap,
            [&] {
              const CUresult reserved =
                  gpu.cu().cuMemAddressReserve(&address, size, 0, 0, 0);
              if (reserved != CUDA_SUCCESS) return reserved;
              return gpu.cu().cuMemMap(address, size, 0, handle, 0);
            }),
      "cuMemAddressReserve, cuMemMap()"));
  RETURN_IF_ERROR(Timed(steps, Step::kAccess, [&] {
    const CUmemAccessDesc grant = gpu.ReadAndWrite();
    return gpu.Call(&Cu::cuMemSetAccess, address, size, &grant, 1);
  }));
  return address;
}

absl::Status Release(const Gpu& gpu, const Mapped& mapped) {
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemUnmap, mapped.address, mapped.size));
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemAddressFree, mapped.address, mapped.size));
  return gpu.Call(&Cu::cuMemRelease, mapped.handle);
}

// What memory on the owner's device is asked for with.
struct Kind {
  static absl::StatusOr<Kind> Of(const Gpu& gpu) {
    ASSIGN_OR_RETURN(void* attributes, vmm::platform::NativeHandleAttributes());
    Kind kind;
    kind.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.properties.requestedHandleTypes = NativeType();
    kind.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.properties.location.id = gpu.owner().cuda_device();
    kind.properties.win32HandleMetaData = attributes;
    RETURN_IF_ERROR(gpu.Call(&Cu::cuMemGetAllocationGranularity,
                             &kind.granularity, &kind.properties,
                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return kind;
  }
  std::uint64_t Round(std::uint64_t size) const {
    return (size + granularity - 1) / granularity * granularity;
  }

  CUmemAllocationProp properties{};
  std::size_t granularity = 0;
};

class BareOwner : public Owner {
 public:
  BareOwner(Gpu& gpu, const Kind& kind) : Owner(gpu), kind_(kind) {}

  absl::StatusOr<Block> Create(std::uint64_t size,
                               CUstream /*stream*/) override {
    Mapped mapped;
    mapped.size = kind_.Round(size);
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemCreate, &mapped.handle, mapped.size,
                              &kind_.properties, 0));
    ASSIGN_OR_RETURN(CUdeviceptr address,
                     Map(gpu_, mapped.handle, mapped.size, nullptr));
    return Block{address, size, mapped.handle};
  }

  absl::Status Free(const Block& block, CUstream /*stream*/) override {
    return Release(gpu_, {block.address, block.own, kind_.Round(block.size)});
  }

  absl::Status Export(const Block& block, Outgoing* out) override {
    std::intptr_t exported = 0;
    RETURN_IF_ERROR(gpu_.Call(&Cu::cuMemExportToShareableHandle, &exported,
                              block.own, kind_.properties.requestedHandleTypes,
                              0));
    out->handle = AdoptExported(exported);
    return absl::OkStatus();
  }

 private:
  Kind kind_;
};

class BareImporter : public Importer {
 public:
  BareImporter(Gpu& gpu, const Kind& kind) : Importer(gpu), kind_(kind) {}

  absl::StatusOr<Block> Import(Incoming in, Steps* steps) override {
    CUmemGenericAllocationHandle imported = 0;
    RETURN_IF_ERROR(Timed(steps, Step::kImport, [&] {
      return gpu_.Call(&Cu::cuMemImportFromShareableHandle, &imported,
                       reinterpret_cast<void*>(in.handle.get()), NativeType());
    }));
    ASSIGN_OR_RETURN(CUdeviceptr address,
                     Map(gpu_, imported, kind_.Round(in.size), steps));
    return Block{address, in.size, imported};
  }

  absl::Status Close(const Block& block) override {
    return Release(gpu_, {block.address, block.own, kind_.Round(block.size)});
  }

 private:
  Kind kind_;
};

template <typename Made>
absl::StatusOr<std::unique_ptr<typename Made::Half>> MakeBare(Gpu& gpu) {
  ASSIGN_OR_RETURN(const Kind kind, Kind::Of(gpu));
  return std::make_unique<Made>(gpu, kind);
}

}  // namespace

const Route routes::kBareCalls = {"bare", "bare VMM calls", true,
                                  &MakeBare<BareOwner>,
                                  &MakeBare<BareImporter>};

}  // namespace bench::compare
