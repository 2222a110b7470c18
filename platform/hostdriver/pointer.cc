// What a pointer is: cuPointerGetAttribute(s), cuMemGetAddressRange,
// cuMemRetainAllocationHandle. The answers are those measured on an H100.
#include <cstddef>
#include <cstring>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/blocks.h"
#include "platform/hostdriver/context.h"
#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// A pointer into a mapping or a block.
struct Found {
  Memory* memory = nullptr;
  const Mapping* mapping = nullptr;  // Null for a block.
  const Pool* pool = nullptr;        // Null for other memory.
  std::uint64_t buffer_id = 0;
  CUcontext context = nullptr;
  bool on_host = false;
  bool legacy_ipc = false;
  bool is_managed = false;
  CUdeviceptr range_start = 0;  // The whole reservation, for a mapping.
  std::size_t range_size = 0;
  CUdeviceptr part_start = 0;  // The one mapping.
  std::size_t part_size = 0;
  CUdeviceptr memory_start = 0;  // All of the memory that it is a part of.
  bool cpu_has_it = false;
};

// What headers before CUDA 12.8 lack.
constexpr int kIsHwDecompressCapable = 21;
constexpr int kHwDecompressSince = 12080;

bool Find(State& state, CUdeviceptr address, Found* found) {
  if (const auto mapping = MappingAt(state, address);
      mapping != state.mappings.end()) {
    const auto reservation = ReservationAt(state, address);
    found->memory = mapping->second.memory.get();
    found->mapping = &mapping->second;
    found->buffer_id = found->memory->buffer_id;
    found->on_host = !found->memory->label.OnDevice();
    found->range_start = reservation->first;
    found->range_size = reservation->second;
    found->part_start = found->memory_start = mapping->first;
    found->part_size = found->memory->size;
    found->cpu_has_it = mapping->second.cpu != CpuAccess::kNone;
    return true;
  }
  if (const auto block = BlockAt(state, address); block != state.blocks.end()) {
    found->memory = block->second.memory.get();
    found->pool = block->second.pool.get();
    found->buffer_id = block->second.buffer_id;
    if (block->second.context != nullptr) {
      found->context = block->second.context->id;
    }
    found->is_managed = block->second.is_managed;
    // Documented: managed memory is a device's, whose address the CPU has too.
    found->on_host = IsHostsAlone(block->second);
    found->legacy_ipc = IsOwnDeviceBlock(block->second);
    found->range_start = found->part_start = block->first;
    found->range_size = found->part_size = block->second.size;
    found->memory_start = block->first - block->second.offset;
    found->cpu_has_it = found->on_host || found->is_managed;
    return true;
  }
  return false;
}

int OrdinalOf(State& state, const Found& found) {
  // Measured: host memory answers the current device.
  return found.on_host ? CurrentDeviceOr(state, 0) : found.memory->location.id;
}

int AccessOf(State& state, const Found& found) {
  if (found.mapping == nullptr && found.pool == nullptr) {
    return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  const int device =
      CurrentDeviceOr(state, found.on_host ? 0 : found.memory->location.id);
  return AccessFor(
      found.pool != nullptr ? found.pool->access : found.mapping->access,
      device);
}

// Measured: memory of cuMemAlloc() is, that of pools is not.
bool IsRdmaCapable(const Found& found) {
  return found.mapping != nullptr
             ? !found.memory->imported && found.memory->label.rdma
             : found.legacy_ipc;
}

template <typename T>
CUresult Put(void* out, const T& value) {
  std::memcpy(out, &value, sizeof(value));
  return CUDA_SUCCESS;
}

CUresult GetOne(State& state, void* out, CUpointer_attribute attribute,
                const Found& found, CUdeviceptr address) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return Put(out, found.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Put(out,
                 static_cast<unsigned>(found.on_host ? CU_MEMORYTYPE_HOST
                                                     : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      std::shared_ptr<Context> context;
      RETURN_IF_FAILED(CurrentContext(state, &context));
      if (AccessOf(state, found) == 0) return CUDA_ERROR_INVALID_VALUE;
      return Put(out, address);
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!found.cpu_has_it) return CUDA_ERROR_INVALID_VALUE;
      return Put(out, address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Put(out, static_cast<unsigned long long>(found.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Put(out, found.is_managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Put(out, OrdinalOf(state, found));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return Put(out, found.legacy_ipc);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Put(out, found.range_start);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Put(out, found.range_size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Put(out, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Put(out, found.pool == nullptr ? found.memory->handle_types
                                            : found.pool->handle_types);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Put(out, AccessOf(state, found));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Put(out, found.pool == nullptr ? nullptr : found.pool->id);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return Put(out, IsRdmaCapable(found));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Put(out, RoundUp(found.memory->size, kGranularity));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Put(out, found.memory_start);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return Put(out, found.memory->block_id);
    case kIsHwDecompressCapable:
      if (DriverVersion() < kHwDecompressSince) return CUDA_ERROR_INVALID_VALUE;
      return Put(out, found.legacy_ipc);  // As an H200 answers.
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Measured: where nothing is mapped, the reservation is answered all the same.
void PutReservation(State& state, void* out, CUpointer_attribute attribute,
                    CUdeviceptr address) {
  const auto reservation = ReservationAt(state, address);
  if (reservation == state.reservations.end()) return;
  if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
    Put(out, reservation->first);
  } else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
    Put(out, reservation->second);
  }
}

// The bytes that an attribute takes; 0 for one that is not known.
std::size_t SizeOf(CUpointer_attribute attribute) {
  switch (static_cast<int>(attribute)) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case kIsHwDecompressCapable:
      return 1;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return 4;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuPointerGetAttribute(void* out, CUpointer_attribute attribute,
                                       CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuPointerGetAttribute"));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  Found found;
  if (!Find(state, address, &found)) return CUDA_ERROR_INVALID_VALUE;
  return GetOne(state, out, attribute, found, address);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int count,
                                        CUpointer_attribute* attributes,
                                        void** out, CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuPointerGetAttributes"));
  if (count == 0 || attributes == nullptr || out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  for (unsigned int i = 0; i < count; ++i) {
    if (out[i] == nullptr || SizeOf(attributes[i]) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  Found found;
  const bool known = Find(state, address, &found);
  for (unsigned int i = 0; i < count; ++i) {
    // Unlike the call for one, this answers zeros where there is no answer.
    std::memset(out[i], 0, SizeOf(attributes[i]));
    if (known) {
      GetOne(state, out[i], attributes[i], found, address);
    } else {
      PutReservation(state, out[i], attributes[i], address);
    }
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* size,
                                      CUdeviceptr address) {
  RETURN_IF_FAILED(Enter("cuMemGetAddressRange"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  Found found;
  if (!Find(state, address, &found)) return CUDA_ERROR_NOT_FOUND;
  // Measured: a mapping without access is not found either.
  if (AccessOf(state, found) == 0) return CUDA_ERROR_NOT_FOUND;
  // Measured: the base of host memory made by cuMemCreate is answered as 0.
  const bool no_base = found.on_host && found.mapping != nullptr;
  if (base != nullptr) *base = no_base ? 0 : found.part_start;
  if (size != nullptr) *size = found.part_size;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI
cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* data) {
  RETURN_IF_FAILED(Enter("cuMemRetainAllocationHandle"));
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  const auto mapping = MappingAt(state, reinterpret_cast<CUdeviceptr>(data));
  if (mapping == state.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  Memory& memory = *mapping->second.memory;
  ++memory.references;
  *handle = memory.handle;
  return CUDA_SUCCESS;
}
