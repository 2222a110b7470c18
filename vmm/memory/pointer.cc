#include "vmm/memory/pointer.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace vmm {
namespace {

using platform::Driver;

std::string Words(CUdeviceptr pointer) {
  return absl::StrCat("pointer 0x", absl::Hex(pointer));
}

struct Attributes {
  unsigned memory_type = 0;
  // The driver writes a whole word for a bool (observed), so give it one.
  unsigned is_managed = 0;
  unsigned is_legacy_ipc_capable = 0;
  unsigned long long handle_types = 0;
  CUmemoryPool pool = nullptr;
  CUdeviceptr range_base = 0;
  std::size_t range_size = 0;
};

// One call for all: unknown addresses answer success and zeros (measured),
// where the call for a single attribute answers an error.
absl::StatusOr<Attributes> Read(const Driver& driver, CUdeviceptr pointer) {
  Attributes a;
  std::array<CUpointer_attribute, 7> names = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::array<void*, 7> values = {
      &a.memory_type,  &a.is_managed, &a.is_legacy_ipc_capable,
      &a.handle_types, &a.pool,       &a.range_base,
      &a.range_size};
  if (CUresult r = driver->cuPointerGetAttributes(names.size(), names.data(),
                                                  values.data(), pointer);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuPointerGetAttributes(", Words(pointer), ")"));
  }
  return a;
}

// A reference to the VMM chunk at `pointer`; empty for other memory.
absl::StatusOr<OwnedMemoryHandle> Retain(const Driver& driver,
                                         CUdeviceptr pointer) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver->cuMemRetainAllocationHandle(
      &handle, reinterpret_cast<void*>(pointer));
  if (result == CUDA_ERROR_INVALID_VALUE) return OwnedMemoryHandle();
  if (result != CUDA_SUCCESS) {
    return driver.Error(result, absl::StrCat("cuMemRetainAllocationHandle(",
                                             Words(pointer), ")"));
  }
  return OwnedMemoryHandle::Adopt({driver, handle});
}

std::string AdviceFor(PointerKind kind, HandleKindSet kinds) {
  switch (kind) {
    case PointerKind::kNotCuda:
      return "The driver does not know this address: it is plain host memory "
             "or nothing is mapped there. Allocate it with vmmshare.";
    case PointerKind::kVmm:
      return kinds.empty()
                 ? "It was created without a shareable handle kind, or was "
                   "imported from another process. Its creator must ask for a "
                   "kind when creating it; who imported it passes on the "
                   "original handle."
                 : "";
    case PointerKind::kPool:
      return "It comes from a stream-ordered pool (cuMemAllocAsync). Share the "
             "pool, or copy into memory allocated with vmmshare.";
    case PointerKind::kDeviceAlloc:
      return "It comes from cuMemAlloc or cudaMalloc, which only legacy CUDA "
             "IPC can share (cuIpcGetMemHandle). Copy into memory allocated "
             "with vmmshare; in PyTorch set "
             "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.";
    case PointerKind::kManaged:
      return "It is managed memory, which cannot be shared. Copy into memory "
             "allocated with vmmshare.";
    case PointerKind::kPinnedHost:
      return "It is pinned host memory, which cannot be shared as a handle. "
             "Allocate with AllocationOptions::host_numa_node.";
  }
  return "";
}

PointerKind KindOf(const Attributes& a, bool is_vmm) {
  if (is_vmm) return PointerKind::kVmm;
  if (a.memory_type == 0) return PointerKind::kNotCuda;
  if ((a.is_managed & 0xff) != 0) return PointerKind::kManaged;
  if (a.pool != nullptr) return PointerKind::kPool;
  if (a.memory_type == CU_MEMORYTYPE_HOST) return PointerKind::kPinnedHost;
  return PointerKind::kDeviceAlloc;
}

}  // namespace

absl::string_view NameOf(PointerKind kind) {
  switch (kind) {
    case PointerKind::kNotCuda:
      return "not CUDA memory";
    case PointerKind::kVmm:
      return "VMM memory";
    case PointerKind::kPool:
      return "stream-ordered pool memory";
    case PointerKind::kDeviceAlloc:
      return "cuMemAlloc memory";
    case PointerKind::kManaged:
      return "managed memory";
    case PointerKind::kPinnedHost:
      return "pinned host memory";
  }
  return "unknown memory";
}

absl::StatusOr<PointerInfo> Classify(const Driver& driver,
                                     CUdeviceptr pointer) {
  absl::StatusOr<Attributes> attributes = Read(driver, pointer);
  if (!attributes.ok()) return attributes.status();
  absl::StatusOr<OwnedMemoryHandle> chunk = Retain(driver, pointer);
  if (!chunk.ok()) return chunk.status();
  PointerInfo info;
  info.kind = KindOf(*attributes, chunk->has_value());
  if (info.kind == PointerKind::kVmm) {
    info.kinds = HandleKindSet::FromBits(
        static_cast<unsigned>(attributes->handle_types));
    CUmemAllocationProp properties{};
    if (CUresult r = driver->cuMemGetAllocationPropertiesFromHandle(
            &properties, chunk->get().handle);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemGetAllocationPropertiesFromHandle()");
    }
    if (properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      info.host_numa_node = properties.location.id;
    } else if (properties.location.id >= 0) {
      // Of a device that this process does not see: -2 (measured).
      info.device_ordinal = properties.location.id;
    }
  }
  // Of addresses that are only reserved the driver tells the range all the same
  // (measured).
  if (info.kind != PointerKind::kNotCuda) {
    info.range_base = attributes->range_base;
    info.range_size = attributes->range_size;
  }
  info.adoptable = info.kind == PointerKind::kVmm && !info.kinds.empty();
  info.advice = AdviceFor(info.kind, info.kinds);
  return info;
}

namespace {

struct Extent {
  CUdeviceptr base = 0;
  std::uint64_t size = 0;
};

absl::StatusOr<Extent> ExtentAt(const Driver& driver, CUdeviceptr at) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  if (CUresult r = driver->cuMemGetAddressRange(&base, &size, at);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuMemGetAddressRange(", Words(at), ")"),
                        r == CUDA_ERROR_INVALID_CONTEXT
                            ? "Make a context current on this thread first."
                            : "");
  }
  return Extent{base, size};
}

// The chunk that holds `pointer`. Of host memory the driver tells the size and
// not the base (580 answers 0, measured), so chunks are walked from the
// beginning of the reserved range.
absl::StatusOr<Extent> ChunkAt(const Driver& driver, CUdeviceptr pointer,
                               CUdeviceptr range_base) {
  absl::StatusOr<Extent> chunk = ExtentAt(driver, pointer);
  if (!chunk.ok() || pointer - chunk->base < chunk->size) return chunk;
  for (CUdeviceptr at = range_base; at <= pointer;) {
    absl::StatusOr<Extent> here = ExtentAt(driver, at);
    if (!here.ok()) return here.status();
    if (here->size == 0) break;
    if (pointer - at < here->size) return Extent{at, here->size};
    at += here->size;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the driver does not tell where the chunk of host memory at "
                   "0x",
                   absl::Hex(pointer), " begins"));
}

// The chunks under [pointer, pointer + size), in order.
struct Chunks {
  MemoryHandles handles;
  ChunkLayout layout;
  CUdeviceptr base = 0;
};

// What all chunks must have in common to be shared as one.
absl::Status CheckAlike(const Driver& driver, const Chunks& chunks,
                        CUdeviceptr at, CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp first{}, here{};
  for (auto [which, properties] :
       {std::pair(chunks.handles.front().get().handle, &first),
        std::pair(handle, &here)}) {
    if (CUresult r =
            driver->cuMemGetAllocationPropertiesFromHandle(properties, which);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemGetAllocationPropertiesFromHandle()");
    }
  }
  if (here.requestedHandleTypes == first.requestedHandleTypes &&
      here.location.type == first.location.type &&
      here.location.id == first.location.id) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the chunk at 0x", absl::Hex(at),
      " was created for other handle kinds or on another device than the "
      "chunks before it (",
      HandleKindSet::FromBits(here.requestedHandleTypes).ToString(), " on ",
      here.location.id, ", ",
      HandleKindSet::FromBits(first.requestedHandleTypes).ToString(), " on ",
      first.location.id, "). Adopt them one by one."));
}

absl::StatusOr<Chunks> RetainChunks(const Driver& driver, CUdeviceptr pointer,
                                    std::uint64_t size,
                                    CUdeviceptr range_base) {
  Chunks chunks;
  CUdeviceptr at = pointer;
  while (at < pointer + size) {
    absl::StatusOr<OwnedMemoryHandle> handle = Retain(driver, at);
    if (!handle.ok()) return handle.status();
    if (!handle->has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no VMM memory is mapped at 0x", absl::Hex(at), ", ", at - pointer,
          " bytes into the ", size, " bytes to be adopted"));
    }
    absl::StatusOr<Extent> chunk = ChunkAt(driver, at, range_base);
    if (!chunk.ok()) return chunk.status();
    if (chunks.handles.empty()) {
      chunks.base = chunk->base;
      chunks.layout.chunk_size = chunk->size;
    } else if (absl::Status alike =
                   CheckAlike(driver, chunks, at, handle->get().handle);
               !alike.ok()) {
      return alike;
    }
    const bool last_was_smaller =
        chunks.layout.size % chunks.layout.chunk_size != 0;
    if (chunk->size > chunks.layout.chunk_size || last_was_smaller) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the chunk at 0x", absl::Hex(chunk->base), " has ", chunk->size,
          " bytes, chunks before it ", chunks.layout.chunk_size,
          " bytes and less; all but the last must have the same size. Adopt "
          "them one by one."));
    }
    chunks.layout.size += chunk->size;
    chunks.handles.push_back(*std::move(handle));
    at = chunk->base + chunk->size;
  }
  return chunks;
}

absl::StatusOr<Location> LocationOf(const Driver& driver,
                                    CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp properties{};
  if (CUresult r =
          driver->cuMemGetAllocationPropertiesFromHandle(&properties, handle);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemGetAllocationPropertiesFromHandle()");
  }
  if (properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    return Location::HostNuma(properties.location.id);
  }
  absl::StatusOr<Device> device =
      Device::ByOrdinal(driver, properties.location.id);
  if (!device.ok()) return device.status();
  return Location::On(*std::move(device));
}

}  // namespace

absl::StatusOr<AdoptedMemory> AdoptedMemory::Adopt(const Driver& driver,
                                                   CUdeviceptr pointer,
                                                   std::uint64_t size) {
  if (size == 0 || pointer + size < pointer) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, " bytes to adopt at 0x", absl::Hex(pointer),
        "; expected at least 1, and no more than the address space"));
  }
  absl::StatusOr<PointerInfo> info = Classify(driver, pointer);
  if (!info.ok()) return info.status();
  if (!info->adoptable) {
    return absl::FailedPreconditionError(
        absl::StrCat(Words(pointer), " is ", NameOf(info->kind),
                     " and cannot be shared. ", info->advice));
  }
  absl::StatusOr<Chunks> chunks =
      RetainChunks(driver, pointer, size, info->range_base);
  if (!chunks.ok()) return chunks.status();
  absl::StatusOr<Location> where =
      LocationOf(driver, chunks->handles.front().get().handle);
  if (!where.ok()) return where.status();
  int ordinal = 0;
  if (CUresult r = driver->cuPointerGetAttribute(
          &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
      r != CUDA_SUCCESS) {
    return driver.Error(r,
                        absl::StrCat("cuPointerGetAttribute(DEVICE_ORDINAL, ",
                                     Words(pointer), ")"));
  }
  absl::StatusOr<Device> device = Device::ByOrdinal(driver, ordinal);
  if (!device.ok()) return device.status();
  absl::StatusOr<MemoryId> id = NewMemoryId();
  if (!id.ok()) return id.status();
  const CUdeviceptr base = chunks->base;
  return AdoptedMemory(
      *std::move(device),
      PhysicalMemory::FromHandles(std::move(chunks->handles), chunks->layout,
                                  *std::move(where), info->kinds),
      *id, pointer - base);
}

Shareable AdoptedMemory::shareable() const {
  return Shareable(device_, where_, memory_, id_, memory_.size());
}

}  // namespace vmm
