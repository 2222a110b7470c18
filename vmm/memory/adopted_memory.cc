#include "vmm/memory/adopted_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/held_context.h"
#include "vmm/memory/internal/pointer.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
namespace {

using platform::Driver;

absl::StatusOr<AddressSpan> ExtentAt(const Driver& driver, CUdeviceptr at) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  CUresult r = driver->cuMemGetAddressRange(&base, &size, at);
  // Something is there.
  if (r == CUDA_ERROR_NOT_FOUND) {
    return platform::WithCode(
        driver.Error(
            r, absl::StrCat("cuMemGetAddressRange(", DescribePointer(at), ")"),
            "Neither the device of the current context nor the memory's own "
            "has access to what is there: make a context of one that has "
            "current on this thread first."),
        absl::StatusCode::kFailedPrecondition);
  }
  if (r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuMemGetAddressRange(", DescribePointer(at), ")"));
  }
  return AddressSpan{base, size};
}

absl::StatusOr<Device> DeviceOf(const Driver& driver, CUdeviceptr pointer) {
  ASSIGN_OR_RETURN(const int ordinal, PointerOrdinal(driver, pointer));
  return Device::ByOrdinal(driver, ordinal);
}

// In which the driver tells where the chunk at `pointer` is: nothing where the
// current context is one. Without one it says nothing, and in one of a device that
// may not access the memory it finds nothing (measured).
absl::StatusOr<ContextHeld> ContextFor(const Driver& driver,
                                       CUdeviceptr pointer) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  const CUresult r = driver->cuMemGetAddressRange(&base, &size, pointer);
  if (r == CUDA_SUCCESS) return ContextHeld();
  if (r != CUDA_ERROR_INVALID_CONTEXT && r != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
      r != CUDA_ERROR_NOT_FOUND) {
    return driver.Error(r, absl::StrCat("cuMemGetAddressRange(",
                                        DescribePointer(pointer), ")"));
  }
  ASSIGN_OR_RETURN(const Device device, DeviceOf(driver, pointer));
  return HoldContextOf(device);
}

// The chunk that holds `pointer`. Of host memory the driver tells the size and
// not the base (580 answers 0, measured), so chunks are walked from the
// beginning of the reserved range.
absl::StatusOr<AddressSpan> ChunkAt(const Driver& driver, CUdeviceptr pointer,
                                    CUdeviceptr range_base) {
  absl::StatusOr<AddressSpan> chunk = ExtentAt(driver, pointer);
  if (!chunk.ok() || pointer - chunk->base < chunk->size) return chunk;
  for (CUdeviceptr at = range_base; at <= pointer;) {
    ASSIGN_OR_RETURN(const AddressSpan here, ExtentAt(driver, at));
    if (here.size == 0) break;
    if (pointer - at < here.size) return AddressSpan{at, here.size};
    at += here.size;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the driver does not tell where the chunk of host memory at 0x",
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
  ASSIGN_OR_RETURN(const CUmemAllocationProp first,
                   PropertiesOf(driver, chunks.handles.front().get().handle));
  ASSIGN_OR_RETURN(const CUmemAllocationProp here,
                   PropertiesOf(driver, handle));
  if (here.requestedHandleTypes == first.requestedHandleTypes &&
      here.location.type == first.location.type &&
      here.location.id == first.location.id) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the chunk at 0x", absl::Hex(at),
      " was created for other handle kinds or on another device than the "
      "chunks before it (",
      HandleKindSet::FromCuda(here.requestedHandleTypes).ToString(), " on ",
      here.location.id, ", ",
      HandleKindSet::FromCuda(first.requestedHandleTypes).ToString(), " on ",
      first.location.id, "). Adopt them one by one."));
}

absl::StatusOr<Chunks> RetainChunks(const Driver& driver, CUdeviceptr pointer,
                                    std::uint64_t size,
                                    CUdeviceptr range_base) {
  Chunks chunks;
  CUdeviceptr at = pointer;
  while (at < pointer + size) {
    ASSIGN_OR_RETURN(OwnedMemoryHandle handle, RetainMemoryAt(driver, at));
    if (!handle.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no VMM memory is mapped at 0x", absl::Hex(at), ", ", at - pointer,
          " bytes into the ", size, " bytes to be adopted"));
    }
    ASSIGN_OR_RETURN(const AddressSpan chunk, ChunkAt(driver, at, range_base));
    if (chunks.handles.empty()) {
      chunks.base = chunk.base;
      chunks.layout.chunk_size = chunk.size;
    } else {
      RETURN_IF_ERROR(CheckAlike(driver, chunks, at, handle.get().handle));
    }
    const bool last_was_smaller =
        chunks.layout.size % chunks.layout.chunk_size != 0;
    if (chunk.size > chunks.layout.chunk_size || last_was_smaller) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the chunk at 0x", absl::Hex(chunk.base), " has ", chunk.size,
          " bytes, chunks before it ", chunks.layout.chunk_size,
          " bytes and less; all but the last must have the same size. Adopt "
          "them one by one."));
    }
    chunks.layout.size += chunk.size;
    chunks.handles.push_back(std::move(handle));
    at = chunk.base + chunk.size;
  }
  return chunks;
}

absl::StatusOr<Location> LocationOf(const Driver& driver,
                                    CUmemGenericAllocationHandle handle) {
  ASSIGN_OR_RETURN(const CUmemAllocationProp properties,
                   PropertiesOf(driver, handle));
  const Place place = PlaceOf(properties.location);
  if (!place.unknown.empty()) {
    return absl::FailedPreconditionError(place.unknown);
  }
  if (place.host_numa_node.has_value()) {
    return Location::HostNuma(*place.host_numa_node);
  }
  if (!place.device_ordinal.has_value()) {
    return absl::FailedPreconditionError(
        "the memory is on a device that this process does not see; adopt it "
        "where it was made, or let this process see the device "
        "(CUDA_VISIBLE_DEVICES)");
  }
  ASSIGN_OR_RETURN(Device device,
                   Device::ByOrdinal(driver, *place.device_ordinal));
  return Location::On(std::move(device));
}

}  // namespace

absl::StatusOr<AdoptedMemory> AdoptedMemory::Adopt(
    const Driver& driver, CUdeviceptr pointer, std::uint64_t size,
    const AdoptOptions& options) {
  if (size == 0 || pointer + size < pointer) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, " bytes to adopt at 0x", absl::Hex(pointer),
        "; expected at least 1, and no more than the address space"));
  }
  const RelaxedCapture relaxed(driver);
  ASSIGN_OR_RETURN(const PointerInfo info, Classify(driver, pointer));
  for (HandleKind weaker : {HandleKind::kLegacyIpc, HandleKind::kStreamPool}) {
    if (info.kinds.Has(weaker) && options.accept.Has(weaker)) {
      return AdoptBlock(driver, pointer, size, weaker);
    }
  }
  if (!info.adoptable) {
    return absl::FailedPreconditionError(
        absl::StrCat(DescribePointer(pointer), " is ", NameOf(info.kind),
                     info.kinds.empty() ? " and cannot be shared. "
                                        : " and is not shared unasked. ",
                     info.advice));
  }
  ASSIGN_OR_RETURN(const ContextHeld context, ContextFor(driver, pointer));
  ASSIGN_OR_RETURN(Chunks chunks,
                   RetainChunks(driver, pointer, size, info.range_base));
  ASSIGN_OR_RETURN(const Location where,
                   LocationOf(driver, chunks.handles.front().get().handle));
  ASSIGN_OR_RETURN(Device device, DeviceOf(driver, pointer));
  ASSIGN_OR_RETURN(const MemoryId id, NewMemoryId());
  const CUdeviceptr base = chunks.base;
  AddressSpan disclosed;
  if (chunks.layout.size > size) disclosed = {base, chunks.layout.size};
  return AdoptedMemory(
      std::move(device), where,
      PhysicalMemory::FromHandles(std::move(chunks.handles), chunks.layout,
                                  where, info.kinds),
      id, pointer - base, disclosed);
}

absl::StatusOr<AdoptedMemory> AdoptedMemory::AdoptBlock(const Driver& driver,
                                                        CUdeviceptr pointer,
                                                        std::uint64_t size,
                                                        HandleKind kind) {
  ASSIGN_OR_RETURN(const DriverBlock block, BlockAt(driver, pointer, kind));
  const std::uint64_t offset = pointer - block.span.base;
  if (size > block.span.size - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(size, " bytes to adopt at 0x", absl::Hex(pointer), ", ",
                     offset, " bytes into an allocation of ", block.span.size));
  }
  ASSIGN_OR_RETURN(Device device, DeviceOf(driver, pointer));
  ASSIGN_OR_RETURN(const MemoryId id, NewMemoryId());
  Location where = Location::On(device);
  return AdoptedMemory(std::move(device), std::move(where), block, id, offset,
                       block.Disclosed());
}

std::uint64_t AdoptedMemory::size() const {
  return block() != nullptr ? block()->span.size
                            : std::get<PhysicalMemory>(memory_).size();
}

std::string AdoptedMemory::weakness() const {
  return block() != nullptr ? DescribeWeakness(block()->kind, disclosed_) : "";
}

Shareable AdoptedMemory::shareable() const {
  if (block() != nullptr) return Shareable(device_, where_, *block(), id_);
  return Shareable(device_, where_, std::get<PhysicalMemory>(memory_), id_,
                   size());
}

}  // namespace vmm
