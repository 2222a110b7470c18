// The cuDevice* calls.
#include <cstdio>
#include <cstring>

#include "platform/hostdriver/driver_version.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {
namespace {

// CU_DEVICE_ATTRIBUTE_MPS_ENABLED, _HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_
// SUPPORTED and _HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, which older headers
// lack, and with them attributes up to the last.
constexpr int kMpsEnabled = 133;
constexpr int kHostNumaMemory = 141;
constexpr int kHostMemory = 145;
constexpr int kAttributes = 148;

// As measured on an H100 (driver 580) where the model has the feature; 0 for
// what it lacks (pools of host memory, multicast) and for sizes of things it
// has not.
int AttributeValue(CUdevice_attribute attribute) {
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return kNativeHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED:
      return kNativeHandleType == CU_MEM_HANDLE_TYPE_WIN32;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return static_cast<int>(kNativeHandleType) | CU_MEM_HANDLE_TYPE_FABRIC;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    // 1 although cuMemCreate answers NOT_PERMITTED: so does the real driver on
    // a machine without an IMEX channel.
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
    case kHostNumaMemory:
    case kHostMemory:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    default:
      return 0;
  }
}

// The version without whose feature there is no attribute that tells of it; 0 for
// others.
int CameWith(CUdevice_attribute attribute) {
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      return kFabricHandlesSince;
    case kHostNumaMemory:
      return kHostNumaAttributeSince;
    case kHostMemory:
      return kHostAttributeSince;
    default:
      return 0;
  }
}

CUresult GetUuid(const char* entry, CUuuid* uuid, CUdevice device) {
  RETURN_IF_FAILED(Enter(entry));
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const Uuid& value = state.config.uuids[state.visible[device]];
  std::memcpy(uuid->bytes, value.data(), value.size());
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  RETURN_IF_FAILED(Enter("cuDeviceGetCount"));
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(GetState().visible.size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  RETURN_IF_FAILED(Enter("cuDeviceGet"));
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!GetState().IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDeviceGetName"));
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!GetState().IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length),
                "vmmshare host-memory device %d", GetState().visible[device]);
  return CUDA_SUCCESS;
}

// cuda.h may make one name a macro for the other; the exports are both.
#undef cuDeviceGetUuid
extern "C" [[gnu::visibility("default")]] CUresult CUDAAPI
cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return GetUuid("cuDeviceGetUuid", uuid, device);
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return GetUuid("cuDeviceGetUuid", uuid, device);
}

CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDeviceTotalMem"));
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!GetState().IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = GetState().config.memory;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                      CUdevice device) {
  RETURN_IF_FAILED(Enter("cuDeviceGetAttribute"));
  if (value == nullptr || attribute < 1 || attribute >= kAttributes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!GetState().IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (DriverVersion() < CameWith(attribute)) return CUDA_ERROR_INVALID_VALUE;
  const Config& config = GetState().config;
  switch (static_cast<int>(attribute)) {
    case kMpsEnabled:
      *value = config.mps;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      *value = config.compute_mode;
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = config.rdma != RdmaModel::kNone;
      break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = config.dma_buf;
      break;
    default:
      *value = AttributeValue(attribute);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device,
                                       CUdevice peer) {
  RETURN_IF_FAILED(Enter("cuDeviceCanAccessPeer"));
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const State& state = GetState();
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!state.IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer &&
         state.config.ArePeers(state.visible[device], state.visible[peer]);
  return CUDA_SUCCESS;
}

// Host memory has one speed, and all of the CPU's atomics.
CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value,
                                         CUdevice_P2PAttribute attribute,
                                         CUdevice device, CUdevice peer) {
  RETURN_IF_FAILED(Enter("cuDeviceGetP2PAttribute"));
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const State& state = GetState();
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!state.IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  // As cuda.h documents it.
  if (device == peer) return CUDA_ERROR_INVALID_DEVICE;
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value =
          state.config.ArePeers(state.visible[device], state.visible[peer]);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
