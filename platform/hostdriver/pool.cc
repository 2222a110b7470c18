// Making pools, and memory from them.
#include "platform/hostdriver/pool.h"

#include <algorithm>
#include <string>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/capture.h"
#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/misuse.h"

namespace vmm::hostdriver {
namespace {

std::shared_ptr<Pool> NewPool(State& state, int ordinal) {
  auto pool = std::make_shared<Pool>();
  pool->id = reinterpret_cast<CUmemoryPool>(state.NewHandle());
  pool->device = ordinal;
  pool->physical = state.visible[ordinal];
  pool->access[ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  state.pools[pool->id] = pool;
  return pool;
}

// The default pool of the device `ordinal`.
std::shared_ptr<Pool> DefaultPool(State& state, int ordinal) {
  std::shared_ptr<Pool>& pool = state.default_pools[ordinal];
  if (pool == nullptr) {
    pool = NewPool(state, ordinal);
    pool->is_default = true;
  }
  return pool;
}

// The one that cuMemAllocAsync uses there.
std::shared_ptr<Pool> CurrentPool(State& state, int ordinal) {
  const auto set = state.current_pools.find(ordinal);
  return set != state.current_pools.end() ? set->second
                                          : DefaultPool(state, ordinal);
}

// What pools exist for; the codes for others are not measured.
CUresult CheckProperties(const State& state, const CUmemPoolProps& props) {
  if (props.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Measured: a pool whose handles are a fabric's can be made wherever, and is
  // refused its export.
  unsigned long long kinds = kNativeHandleType;
  if (DriverVersion() >= kFabricHandlesSince) {
    kinds |= CU_MEM_HANDLE_TYPE_FABRIC;
  }
  const auto types = static_cast<unsigned long long>(props.handleTypes);
  if ((types & ~kinds) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (props.location.type == CU_MEM_LOCATION_TYPE_HOST ||
      (props.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
       props.location.id == 0)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return props.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                 state.IsDevice(props.location.id)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// The thing that stands for the pool in other processes.
CUresult MakeToken(const State& state, Pool* pool) {
  MemoryLabel label;
  label.instance = state.config.machine;
  label.uuid = state.config.uuids[pool->physical];
  label.kind = MemoryLabel::Kind::kPool;
  label.id = RandomNumber();
  if (label.id == 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::optional<OsMemory> token = CreateMemory(label, kGranularity);
  if (!token) return CUDA_ERROR_OPERATING_SYSTEM;
  pool->token = *token;
  pool->share_id = label.id;
  return CUDA_SUCCESS;
}

// What `stream`, which is captured, answers for memory: a graph that allocates
// and frees at each launch is not modelled. The capture goes on.
CUresult RefuseInCapture(const Stream& stream, CUresult why) {
  return stream.capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                     : why;
}

// The common part of the two calls that allocate; a null `pool` is the current
// one of the stream's device.
CUresult Allocate(State& state, const char* call, CUdeviceptr* address,
                  std::size_t size, std::shared_ptr<Pool> pool,
                  CUstream stream_id) {
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, call, stream_id, &stream));
  if (stream->capture == nullptr) {
    RETURN_IF_FAILED(RefuseUnsafe(state));
  }
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0) {  // Measured: no error.
    *address = 0;
    return CUDA_SUCCESS;
  }
  if (stream->capture != nullptr) {
    return RefuseInCapture(*stream, CUDA_ERROR_NOT_SUPPORTED);
  }
  if (pool == nullptr) pool = CurrentPool(state, stream->context->device);
  // Documented: an imported pool makes no new allocations.
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;
  return TakeFromPool(state, pool, size, stream, address);
}

}  // namespace

std::shared_ptr<Pool> FindPool(State& state, const char* call,
                               CUmemoryPool id) {
  return id == nullptr ? nullptr
                       : FindOrStop(state, call, "pool", state.pools, id);
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* id,
                                 const CUmemPoolProps* props) {
  RETURN_IF_FAILED(Enter("cuMemPoolCreate"));
  if (id == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  RETURN_IF_FAILED(CheckProperties(state, *props));
  const std::shared_ptr<Pool> pool = NewPool(state, props->location.id);
  pool->handle_types = static_cast<unsigned long long>(props->handleTypes);
  if (props->maxSize != 0) {
    constexpr std::size_t kMost = SIZE_MAX - kGranularity;
    pool->max_size = RoundUp(std::min(props->maxSize, kMost), kGranularity);
  }
  if (pool->handle_types != 0) {
    if (CUresult r = MakeToken(state, pool.get()); r != CUDA_SUCCESS) {
      state.pools.erase(pool->id);
      return r;
    }
  }
  *id = pool->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool id) {
  RETURN_IF_FAILED(Enter("cuMemPoolDestroy"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool = FindPool(state, "cuMemPoolDestroy", id);
  if (pool == nullptr || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  // Measured, of one that was imported and has pointers open.
  const auto is_of_it = [&](const auto& block) {
    return block.second.pool == pool;
  };
  if (pool->imported &&
      std::any_of(state.blocks.begin(), state.blocks.end(), is_of_it)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::erase_if(state.current_pools,
                [&](const auto& entry) { return entry.second == pool; });
  state.pools.erase(id);
  // Its memory goes when its last block does.
  pool->destroyed = true;
  TrimPool(state, *pool, 0);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* address, std::size_t size,
                                 CUstream stream) {
  RETURN_IF_FAILED(Enter("cuMemAllocAsync"));
  State& state = GetState();
  const Lock lock(state.mu);
  return Allocate(state, "cuMemAllocAsync", address, size, nullptr, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size,
                                         CUmemoryPool id, CUstream stream) {
  RETURN_IF_FAILED(Enter("cuMemAllocFromPoolAsync"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Pool> pool = FindPool(state, "cuMemAllocFromPoolAsync", id);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Allocate(state, "cuMemAllocFromPoolAsync", address, size,
                  std::move(pool), stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream_id) {
  RETURN_IF_FAILED(Enter("cuMemFreeAsync"));
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(FindStream(state, "cuMemFreeAsync", stream_id, &stream));
  if (stream->capture == nullptr) {
    RETURN_IF_FAILED(RefuseUnsafe(state));
  }
  if (address == 0) return CUDA_SUCCESS;  // Measured.
  const auto block = state.blocks.find(address);
  if (block != state.blocks.end() && block->second.pool != nullptr) {
    if (stream->capture != nullptr) {
      // Measured, of a block that was not allocated in the capture.
      return RefuseInCapture(*stream, CUDA_ERROR_INVALID_VALUE);
    }
    FreePooled(state, block, stream, PointsBeforeNow(state, stream));
    return CUDA_SUCCESS;
  }
  if (BlockAt(state, address) == state.blocks.end() &&
      WasPooled(state, address)) {
    Stop("cuMemFreeAsync: the memory at " + Hex(address) +
         " was already freed; CUDA leaves its use undefined");
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* id, CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDeviceGetDefaultMemPool"));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *id = DefaultPool(state, device)->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* id, CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDeviceGetMemPool"));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *id = CurrentPool(state, device)->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool id) {
  RETURN_IF_FAILED(Enter("cuDeviceSetMemPool"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::shared_ptr<Pool> pool = FindPool(state, "cuDeviceSetMemPool", id);
  // Documented: the pool must be the device's own, and not imported.
  if (pool == nullptr || pool->device != device || pool->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.current_pools[device] = pool;
  return CUDA_SUCCESS;
}
