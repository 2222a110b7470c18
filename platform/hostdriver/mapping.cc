// cuMemMap, cuMemUnmap, cuMemSetAccess, cuMemGetAccess.
#include <algorithm>
#include <iterator>
#include <string>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/fabric_memory.h"
#include "platform/hostdriver/misuse.h"
#include "platform/hostdriver/physical_memory.h"

namespace vmm::hostdriver {
namespace {

using MappingIterator = std::map<CUdeviceptr, Mapping>::iterator;

// The mappings that overlap [start, end).
std::vector<MappingIterator> Overlapping(State& state, CUdeviceptr start,
                                         CUdeviceptr end) {
  std::vector<MappingIterator> found;
  auto at = state.mappings.upper_bound(start);
  if (at != state.mappings.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.memory->size > start) at = before;
  }
  for (; at != state.mappings.end() && at->first < end; ++at) {
    found.push_back(at);
  }
  return found;
}

// Whether each of `found` lies inside [start, end) as a whole.
bool AllWhole(const std::vector<MappingIterator>& found, CUdeviceptr start,
              CUdeviceptr end) {
  return std::all_of(found.begin(), found.end(), [&](MappingIterator m) {
    return m->first >= start && m->first + m->second.memory->size <= end;
  });
}

bool IsGranular(CUdeviceptr address, std::size_t size) {
  return address != 0 && address % kGranularity == 0 && size != 0 &&
         size % kGranularity == 0 && size <= UINT64_MAX - address;
}

bool IsHost(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Whether `desc` may be set on `mapping`. The codes are measured, but for
// devices that are no peers.
CUresult CheckAccess(const State& state, const Mapping& mapping,
                     const CUmemAccessDesc& desc) {
  if (!IsAccess(desc.flags)) return CUDA_ERROR_INVALID_VALUE;
  const Memory& memory = *mapping.memory;
  if (memory.label.rdma && state.config.rdma == RdmaModel::kNoAccess) {
    return CUDA_ERROR_UNKNOWN;
  }
  if (IsHost(desc.location)) {
    return memory.label.OnDevice() &&
                   desc.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE
               ? CUDA_ERROR_NOT_SUPPORTED
               : CUDA_SUCCESS;
  }
  if (desc.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      !state.IsDevice(desc.location.id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = state.visible[desc.location.id];
  if (memory.physical >= 0 && memory.physical != device &&
      !state.config.ArePeers(memory.physical, device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (!ReachesOverFabric(state, memory, desc.location.id)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  return CUDA_SUCCESS;
}

CpuAccess CpuAccessOf(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
      return CpuAccess::kRead;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return CpuAccess::kReadWrite;
    default:
      return CpuAccess::kNone;
  }
}

CUmemAccess_flags FlagsOf(CpuAccess access) {
  switch (access) {
    case CpuAccess::kRead:
      return CU_MEM_ACCESS_FLAGS_PROT_READ;
    case CpuAccess::kReadWrite:
      return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    default:
      return CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemMap(CUdeviceptr address, std::size_t size,
                          std::size_t offset,
                          CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemMap"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Memory> memory = FindMemory(state, "cuMemMap", handle);
  if (memory == nullptr || address == 0 || size == 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Measured: a part of the memory cannot be mapped, nor from an offset, wherever.
  if (size != memory->size || offset != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (address % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto reservation = ReservationAt(state, address);
  if (reservation == state.reservations.end()) return CUDA_ERROR_INVALID_VALUE;
  if (size > reservation->first + reservation->second - address ||
      !Overlapping(state, address, address + size).empty()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.mappings[address].memory = memory;
  ++memory->mappings;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, std::size_t size) {
  RETURN_IF_FAILED(Enter("cuMemUnmap"));
  if (!IsGranular(address, size)) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  const std::vector<MappingIterator> found =
      Overlapping(state, address, address + size);
  if (found.empty()) {
    Stop("cuMemUnmap: nothing is mapped at " + Hex(address) + " to " +
         Hex(address + size) + "; CUDA leaves this undefined");
  }
  // Measured: gaps are fine, cutting through a mapping is not.
  if (!AllWhole(found, address, address + size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const MappingIterator mapping : found) {
    const std::shared_ptr<Memory> memory = mapping->second.memory;
    if (mapping->second.cpu != CpuAccess::kNone &&
        !HideMemory(mapping->first, memory->size)) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    state.mappings.erase(mapping);
    --memory->mappings;
    DropIfUnused(state, memory);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, std::size_t size,
                                const CUmemAccessDesc* desc,
                                std::size_t count) {
  RETURN_IF_FAILED(Enter("cuMemSetAccess"));
  if (desc == nullptr || count == 0 || !IsGranular(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  const std::vector<MappingIterator> found =
      Overlapping(state, address, address + size);
  std::size_t mapped = 0;
  for (const MappingIterator m : found) mapped += m->second.memory->size;
  if (!AllWhole(found, address, address + size) || mapped != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // All or nothing: check everything before anything changes.
  for (const MappingIterator mapping : found) {
    for (std::size_t i = 0; i < count; ++i) {
      RETURN_IF_FAILED(CheckAccess(state, mapping->second, desc[i]));
    }
  }
  for (const MappingIterator mapping : found) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!IsHost(desc[i].location)) {
        mapping->second.access[desc[i].location.id] = desc[i].flags;
        continue;
      }
      const CpuAccess access = CpuAccessOf(desc[i].flags);
      if (access == mapping->second.cpu) continue;
      const Memory& memory = *mapping->second.memory;
      if (!ExposeMemory(memory.os, mapping->first, memory.size, access)) {
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
      mapping->second.cpu = access;
    }
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags,
                                const CUmemLocation* location,
                                CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuMemGetAccess"));
  if (flags == nullptr || location == nullptr || address == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  const bool of_host = IsHost(*location);
  if (!of_host && (location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
                   !state.IsDevice(location->id))) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const auto mapping = MappingAt(state, address);
  if (mapping == state.mappings.end()) {
    // Measured: of other memory of CUDA's it says that there is none.
    if (BlockAt(state, address) == state.blocks.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  *flags = of_host ? FlagsOf(mapping->second.cpu)
                   : AccessFor(mapping->second.access, location->id);
  return CUDA_SUCCESS;
}
