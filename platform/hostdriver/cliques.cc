// Signatures and results are from the documentation of CUDA 13.4, the two cliques
// of a device from that of NVML for Hopper. Not measured: no such driver was at
// hand. What a device answers that has not joined is a guess.
#include "platform/hostdriver/cliques.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {
namespace {

constexpr int kUnicastPointer = 0;  // CUcliqueType's.
constexpr int kMulticastPointer = 1;

CUresult Ask(const char* entry, const void* out, CUdevice device,
             const DeviceFabric** fabric) {
  RETURN_IF_FAILED(Enter(entry));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const State& state = GetState();
  if (!state.IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const DeviceFabric& found = state.config.fabric[state.visible[device]];
  if (found.state != DeviceFabric::kCompleted || found.status != 0 ||
      found.mig) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *fabric = &found;
  return CUDA_SUCCESS;
}

std::array<Clique, 2> CliquesOf(const DeviceFabric& fabric) {
  return {
      {{kUnicastPointer, fabric.clique}, {kMulticastPointer, fabric.clique}}};
}

}  // namespace

CUresult CUDAAPI GetFabricClusterUuid(CUuuid* uuid, CUdevice device) {
  const DeviceFabric* fabric = nullptr;
  RETURN_IF_FAILED(Ask("cuDeviceGetFabricClusterUuid", uuid, device, &fabric));
  static_assert(sizeof(uuid->bytes) == sizeof(fabric->cluster));
  std::memcpy(uuid->bytes, fabric->cluster.data(), sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI GetCliqueCount(std::size_t* count, CUdevice device) {
  const DeviceFabric* fabric = nullptr;
  RETURN_IF_FAILED(Ask("cuDeviceGetCliqueCount", count, device, &fabric));
  *count = CliquesOf(*fabric).size();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI GetCliqueInfo(Clique* cliques, std::size_t* count,
                               CUdevice device) {
  const DeviceFabric* fabric = nullptr;
  RETURN_IF_FAILED(Ask("cuDeviceGetCliqueInfo", cliques, device, &fabric));
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::array<Clique, 2> all = CliquesOf(*fabric);
  *count = std::min(*count, all.size());
  std::copy_n(all.begin(), *count, cliques);
  return CUDA_SUCCESS;
}

}  // namespace vmm::hostdriver
