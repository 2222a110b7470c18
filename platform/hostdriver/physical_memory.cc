#include "platform/hostdriver/physical_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/fabric_memory.h"

namespace vmm::hostdriver {
namespace {

constexpr unsigned long long kOfAnOs =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_WIN32 |
    CU_MEM_HANDLE_TYPE_WIN32_KMT;
constexpr unsigned long long kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

// Whether the flags can be had there, each as measured. Of the usages only the pool
// of tiles is refused, which is for sparse arrays, to who would share it; others pass
// and are forgotten.
bool AreFlags(const CUmemAllocationProp& prop) {
  const auto& flags = prop.allocFlags;
  const auto is_zero = [](unsigned char byte) { return byte == 0; };
  return ((flags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) == 0 ||
          static_cast<int>(prop.requestedHandleTypes) == 0) &&
         flags.compressionType <= CU_MEM_ALLOCATION_COMP_GENERIC &&
         std::all_of(std::begin(flags.reserved), std::end(flags.reserved),
                     is_zero) &&
         (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
          (flags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
           flags.gpuDirectRDMACapable == 0));
}

// What the requested place and handle types alone decide. Measured.
CUresult CheckProperties(const State& state, const CUmemAllocationProp& prop,
                         FabricPlace* fabric) {
  const auto types = static_cast<unsigned long long>(prop.requestedHandleTypes);
  if (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      !state.IsDevice(prop.location.id)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED || !AreFlags(prop)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
      DriverVersion() < kHostLocationsSince) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((types & kFabric) != 0 && DriverVersion() < kFabricHandlesSince) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (static_cast<int>(prop.location.type)) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      if (types != 0) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (prop.location.id != 0) return CUDA_ERROR_INVALID_VALUE;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  // Those of the other system.
  if ((types & kOfAnOs & ~kNativeHandleType) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((types & kNativeHandleType) != 0 &&
      !AreHandleAttributes(prop.win32HandleMetaData)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((types & kFabric) == 0) return CUDA_SUCCESS;
  return CheckFabric(state, prop.location, fabric);
}

// Does not say whether such memory can be had at all: measured.
std::size_t GranularityOf(const State& state, const CUmemAllocationProp& prop) {
  return (static_cast<unsigned long long>(prop.requestedHandleTypes) &
          kFabric) != 0
             ? state.config.fabric_granularity
             : kGranularity;
}

}  // namespace

CUmemGenericAllocationHandle Register(State& state,
                                      const std::shared_ptr<Memory>& memory) {
  memory->handle = state.NewHandle();
  memory->buffer_id = state.next_buffer_id++;
  memory->references = 1;
  state.memories[memory->handle] = memory;
  return memory->handle;
}

void Locate(const State& state, Memory* memory) {
  if (!memory->label.OnDevice()) {
    // Measured: also of memory for which no node was named.
    memory->location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    memory->location.id = 0;
    return;
  }
  memory->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory->physical = state.PhysicalOf(memory->label.uuid);
  memory->location.id = state.OrdinalOf(memory->physical);
}

CUresult CreateOnDevice(State& state, int ordinal, MemoryLabel::Kind kind,
                        bool rdma, unsigned char compression, std::size_t size,
                        std::shared_ptr<Memory>* memory,
                        const FabricPlace& fabric) {
  auto made = std::make_shared<Memory>();
  made->size = size;
  made->label = {state.config.machine,
                 state.config.uuids[state.visible[ordinal]],
                 kind,
                 rdma,
                 compression,
                 0,
                 fabric};
  if (kind != MemoryLabel::Kind::kDevice) {
    made->label.id = RandomNumber();
    if (made->label.id == 0) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  NotCreated why{};
  const std::optional<OsMemory> os = CreateWithinBudget(
      made->label, size, state.visible[ordinal], state.config.memory, &why);
  if (!os) {
    switch (why) {
      case NotCreated::kOverBudget:
        return CUDA_ERROR_OUT_OF_MEMORY;
      case NotCreated::kLockNotHad:
        return CUDA_ERROR_TIMEOUT;
      case NotCreated::kNoSystemCall:
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
  made->os = *os;
  Locate(state, made.get());
  *memory = std::move(made);
  return CUDA_SUCCESS;
}

CUresult CreateOnHost(const State& state, MemoryLabel::Kind kind,
                      std::size_t size, std::shared_ptr<Memory>* memory) {
  auto made = std::make_shared<Memory>();
  made->size = size;
  made->label.instance = state.config.machine;
  made->label.kind = kind;
  const std::optional<OsMemory> os = CreateMemory(made->label, size);
  if (!os) return CUDA_ERROR_OUT_OF_MEMORY;
  made->os = *os;
  *memory = std::move(made);
  return CUDA_SUCCESS;
}

std::shared_ptr<Memory> FindMemory(State& state, const char* call,
                                   CUmemGenericAllocationHandle handle) {
  if (handle == 0) return nullptr;
  const auto found = state.memories.find(handle);
  // Memory that only mappings keep has no valid handle, until one is retained.
  if (found == state.memories.end() || found->second->references == 0) {
    StopOnHandle(state, call, "handle", handle);
  }
  return found->second;
}

void DropIfUnused(State& state, const std::shared_ptr<Memory>& memory) {
  if (memory->references == 0 && memory->mappings == 0) {
    state.memories.erase(memory->handle);
  }
}

std::shared_ptr<Shadow> ShadowOf(Memory& memory) {
  if (memory.shadow == nullptr) {
    void* data = MapWhole(memory.os, memory.size, memory.label.OnDevice());
    if (data == nullptr) return nullptr;
    memory.shadow =
        std::make_shared<Shadow>(static_cast<std::byte*>(data), memory.size);
  }
  return memory.shadow;
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemGetAllocationGranularity(
    std::size_t* granularity, const CUmemAllocationProp* prop,
    CUmemAllocationGranularity_flags option) {
  RETURN_IF_FAILED(Enter("cuMemGetAllocationGranularity"));
  if (granularity == nullptr || prop == nullptr ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = GranularityOf(GetState(), *prop);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle,
                             std::size_t size, const CUmemAllocationProp* prop,
                             unsigned long long flags) {
  RETURN_IF_FAILED(Enter("cuMemCreate"));
  if (handle == nullptr || prop == nullptr || flags != 0 || size == 0 ||
      size % GranularityOf(GetState(), *prop) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  FabricPlace fabric;
  RETURN_IF_FAILED(CheckProperties(state, *prop, &fabric));
  std::shared_ptr<Memory> memory;
  bool rdma = prop->allocFlags.gpuDirectRDMACapable != 0;
  if (rdma && (state.config.rdma == RdmaModel::kNone ||
               state.config.rdma == RdmaModel::kRefused)) {
    return CUDA_ERROR_INVALID_DEVICE;  // As GB10 is reported to.
  }
  if (state.config.rdma == RdmaModel::kForgotten) rdma = false;
  const unsigned char compression = prop->allocFlags.compressionType;
  if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    const MemoryLabel::Kind kind = fabric.key == 0 ? MemoryLabel::Kind::kDevice
                                                   : MemoryLabel::Kind::kFabric;
    RETURN_IF_FAILED(CreateOnDevice(state, prop->location.id, kind, rdma,
                                    compression, size, &memory, fabric));
  } else {
    const MemoryLabel::Kind kind =
        prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA
            ? MemoryLabel::Kind::kHostNuma
            : MemoryLabel::Kind::kHost;
    RETURN_IF_FAILED(CreateOnHost(state, kind, size, &memory));
    Locate(state, memory.get());
  }
  // Measured: bits of no kind pass, and are forgotten.
  memory->handle_types =
      static_cast<unsigned long long>(prop->requestedHandleTypes) &
      (kOfAnOs | kFabric);
  if ((memory->handle_types & kNativeHandleType) != 0 &&
      !ApplyHandleAttributes(memory->os, prop->win32HandleMetaData)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = Register(state, memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  RETURN_IF_FAILED(Enter("cuMemRelease"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Memory> memory =
      FindMemory(state, "cuMemRelease", handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --memory->references;
  DropIfUnused(state, memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  RETURN_IF_FAILED(Enter("cuMemGetAllocationPropertiesFromHandle"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Memory> memory =
      FindMemory(state, "cuMemGetAllocationPropertiesFromHandle", handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memset(prop, 0, sizeof(*prop));
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(memory->handle_types);
  prop->location = ToldLocation(memory->location);
  prop->allocFlags.gpuDirectRDMACapable =
      memory->imported ? 0 : memory->label.rdma;  // Measured.
  prop->allocFlags.compressionType = memory->label.compression;
  return CUDA_SUCCESS;
}
