// What can be asked of a pool and set: attributes, access, how much it holds.
#include <cstring>

#include "platform/hostdriver/address_space.h"
#include "platform/hostdriver/pool.h"

namespace vmm::hostdriver {
namespace {

// The flag that `attribute` is; null if it is no flag.
int* FlagOf(Pool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool.reuse_follow_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool.reuse_opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool.reuse_internal_dependencies;
    default:
      return nullptr;
  }
}

// The number of bytes that `attribute` is; null if it is none.
std::uint64_t* BytesOf(Pool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return &pool.release_threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return &pool.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return &pool.reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return &pool.used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return &pool.used_high;
    default:
      return nullptr;
  }
}

// Whether `desc` may be set on the pool. Measured, but for devices that are no
// peers.
CUresult CheckAccess(const State& state, const Pool& pool,
                     const CUmemAccessDesc& desc) {
  if (desc.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READ) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!state.IsDevice(desc.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (!IsAccess(desc.flags)) return CUDA_ERROR_INVALID_VALUE;
  // The pool's own device always has access.
  if (desc.location.id == pool.device) {
    return desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_DEVICE;
  }
  return pool.physical < 0 ||
                 state.config.ArePeers(pool.physical,
                                       state.visible[desc.location.id])
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool id,
                                       CUmemPool_attribute attribute,
                                       void* value) {
  RETURN_IF_FAILED(Enter("cuMemPoolGetAttribute"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool =
      FindPool(state, "cuMemPoolGetAttribute", id);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const int* flag = FlagOf(*pool, attribute)) {
    std::memcpy(value, flag, sizeof(*flag));
    return CUDA_SUCCESS;
  }
  const std::uint64_t* bytes = BytesOf(*pool, attribute);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(value, bytes, sizeof(*bytes));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool id,
                                       CUmemPool_attribute attribute,
                                       void* value) {
  RETURN_IF_FAILED(Enter("cuMemPoolSetAttribute"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool =
      FindPool(state, "cuMemPoolSetAttribute", id);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (int* flag = FlagOf(*pool, attribute)) {
    std::memcpy(flag, value, sizeof(*flag));
    return CUDA_SUCCESS;
  }
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, value, sizeof(bytes));
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = bytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // Documented: back to 0 only.
      if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool id, std::size_t keep) {
  RETURN_IF_FAILED(Enter("cuMemPoolTrimTo"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool = FindPool(state, "cuMemPoolTrimTo", id);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (keep < pool->reserved) TrimPool(state, *pool, keep);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool id,
                                    const CUmemAccessDesc* desc,
                                    std::size_t count) {
  RETURN_IF_FAILED(Enter("cuMemPoolSetAccess"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool = FindPool(state, "cuMemPoolSetAccess", id);
  if (pool == nullptr || desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // All or nothing: check everything before anything changes.
  for (std::size_t i = 0; i < count; ++i) {
    RETURN_IF_FAILED(CheckAccess(state, *pool, desc[i]));
  }
  for (std::size_t i = 0; i < count; ++i) {
    pool->access[desc[i].location.id] = desc[i].flags;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool id,
                                    CUmemLocation* location) {
  RETURN_IF_FAILED(Enter("cuMemPoolGetAccess"));
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Pool> pool = FindPool(state, "cuMemPoolGetAccess", id);
  if (pool == nullptr || flags == nullptr || location == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Measured: the host has none of a device's memory.
  if (location->type == CU_MEM_LOCATION_TYPE_HOST ||
      location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      !state.IsDevice(location->id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = AccessFor(pool->access, location->id);
  return CUDA_SUCCESS;
}
