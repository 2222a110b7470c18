#include "vmm/memory/physical_memory.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/handle_attributes.h"
#include "vmm/memory/internal/device_attribute.h"
#include "vmm/memory/internal/pointer.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

absl::StatusOr<CUmemAllocationProp> Properties(
    const Location& where, HandleKindSet kinds,
    const std::vector<platform::UserId>& users, bool rdma) {
  CUmemAllocationProp properties{};
  properties.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kinds.cuda_bits();
  properties.location = where.ToCuda();
  if (kinds.Has(HandleKind::kWin32)) {
    ASSIGN_OR_RETURN(properties.win32HandleMetaData,
                     platform::NativeHandleAttributes(users));
  }
  return properties;
}

// Handles for which there is room before the driver has made any: how many there
// are to be is the caller's word, and more than the host's memory may hold.
constexpr std::size_t kMostAhead = 4096;

const char* AdviceWhenFull(const Driver& driver) {
  return driver.is_host_memory()
             ? "The memory does not fit: each device has VMMSHARE_HOST_MEMORY "
               "(4G), for all processes of its VMMSHARE_HOST_INSTANCE."
             : "The memory does not fit; nvidia-smi shows who holds how much "
               "with a context, `vmmshare keep --list` what a keeper "
               "holds, which has none.";
}

constexpr const char* kAdviceWhenHostFull =
    "The host must have so much memory that can be pinned. Free some of it, or "
    "raise the limit of the container.";

// What to do about `result` of cuMemCreate() on `where`.
const char* AdviceFor(const Driver& driver, const Location& where,
                      CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return where.is_host() ? kAdviceWhenHostFull : AdviceWhenFull(driver);
  }
  return where.is_host() && driver.version() < kHostMemorySince
             ? "Memory of the host came with CUDA 12.2: install a newer "
               "driver, or allocate on a device."
             : "";
}

std::string Words(const Location& where, HandleKindSet kinds, bool rdma) {
  return absl::StrCat("location=", where.Describe(),
                      ", handle kinds=", kinds.ToString(),
                      rdma ? ", gpuDirectRDMACapable=1" : "");
}

}  // namespace

void MemoryHandleTraits::Close(const Value& value) {
  const Driver& driver = *value.driver;
  const RelaxedCapture relaxed(driver);
  const CUresult result = driver->cuMemRelease(value.handle);
  if (result == CUDA_SUCCESS) return;
  platform::ReportReleaseFailure(
      driver.Error(result, "cuMemRelease(memory handle)"));
}

absl::StatusOr<OwnedMemoryHandle> RetainMemoryAt(const Driver& driver,
                                                 CUdeviceptr address) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver->cuMemRetainAllocationHandle(
      &handle, reinterpret_cast<void*>(address));
  if (result == CUDA_ERROR_INVALID_VALUE) return OwnedMemoryHandle();
  if (result != CUDA_SUCCESS) {
    return driver.Error(result, absl::StrCat("cuMemRetainAllocationHandle(0x",
                                             absl::Hex(address), ")"));
  }
  return OwnedMemoryHandle::Adopt({driver, handle});
}

absl::StatusOr<ChunkLayout> LayOut(std::uint64_t size,
                                   std::uint64_t max_chunk_size,
                                   std::uint64_t granularity) {
  if (size == 0) {
    return absl::InvalidArgumentError(
        "size is 0 bytes; expected at least 1 byte");
  }
  if (size > std::numeric_limits<std::uint64_t>::max() - granularity) {
    return absl::InvalidArgumentError(absl::StrCat(
        "size is ", size, " bytes; rounding up to the granularity of ",
        granularity, " bytes overflows 64 bits"));
  }
  const std::uint64_t rounded =
      (size + granularity - 1) / granularity * granularity;
  if (max_chunk_size == 0) return ChunkLayout{rounded, rounded};
  const std::uint64_t chunk = max_chunk_size / granularity * granularity;
  if (chunk == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_chunk_size is ", max_chunk_size,
        " bytes; expected 0 (no limit) or at least the granularity of ",
        granularity, " bytes"));
  }
  return ChunkLayout{rounded, chunk < rounded ? chunk : rounded};
}

absl::StatusOr<std::uint64_t> PhysicalMemory::Granularity(const Driver& driver,
                                                          const Location& where,
                                                          HandleKindSet kinds,
                                                          bool rdma) {
  ASSIGN_OR_RETURN(const CUmemAllocationProp properties,
                   Properties(where, kinds, {}, rdma));
  std::size_t granularity = 0;
  if (CUresult r = driver->cuMemGetAllocationGranularity(
          &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
      r != CUDA_SUCCESS) {
    return driver.Error(r, absl::StrCat("cuMemGetAllocationGranularity(",
                                        Words(where, kinds, rdma), ")"));
  }
  return granularity;
}

absl::StatusOr<PhysicalMemory> PhysicalMemory::Create(
    const Driver& driver, const Location& where, const ChunkLayout& layout,
    HandleKindSet kinds, const std::vector<platform::UserId>& users,
    bool rdma) {
  ASSIGN_OR_RETURN(const CUmemAllocationProp properties,
                   Properties(where, kinds, users, rdma));
  const RelaxedCapture relaxed(driver);
  MemoryHandles handles;
  handles.reserve(std::min(layout.count(), kMostAhead));
  for (std::size_t i = 0; i < layout.count(); ++i) {
    CUmemGenericAllocationHandle handle = 0;
    if (CUresult r =
            driver->cuMemCreate(&handle, layout.SizeOf(i), &properties, 0);
        r != CUDA_SUCCESS) {
      return driver.Error(
          r,
          absl::StrCat("cuMemCreate(size=", layout.SizeOf(i), ", ",
                       Words(where, kinds, rdma), "), chunk ", i + 1, " of ",
                       layout.count()),
          AdviceFor(driver, where, r));
    }
    handles.push_back(OwnedMemoryHandle::Adopt({driver, handle}));
  }
  PhysicalMemory memory(std::move(handles), layout, where, kinds);
  if (rdma) {
    ASSIGN_OR_RETURN(const bool has, memory.IsRdmaCapable());
    if (!has) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cuMemCreate(", Words(where, kinds, rdma),
          ") succeeded, but cuMemGetAllocationPropertiesFromHandle() says "
          "gpuDirectRDMACapable=0"));
    }
    memory.made_for_rdma_ = true;
  }
  return memory;
}

absl::StatusOr<bool> PhysicalMemory::IsRdmaCapable() const {
  for (const OwnedMemoryHandle& chunk : handles_) {
    ASSIGN_OR_RETURN(const CUmemAllocationProp properties,
                     PropertiesOf(*chunk.get().driver, chunk.get().handle));
    if (properties.allocFlags.gpuDirectRDMACapable == 0) return false;
  }
  return true;
}

PhysicalMemory PhysicalMemory::FromHandles(MemoryHandles handles,
                                           const ChunkLayout& layout,
                                           std::optional<Location> where,
                                           HandleKindSet kinds) {
  platform::Check(handles.size() == layout.count(),
                  "PhysicalMemory needs one handle for every chunk");
  return PhysicalMemory(std::move(handles), layout, std::move(where), kinds);
}

PhysicalMemory::PhysicalMemory(MemoryHandles handles, const ChunkLayout& layout,
                               std::optional<Location> where,
                               HandleKindSet kinds)
    : handles_(std::move(handles)),
      layout_(layout),
      where_(std::move(where)),
      kinds_(kinds) {}

}  // namespace vmm
