// What a device's fabric is by the driver alone, from CUDA 13.4 on. Not exported
// under the driver's names, which the headers at hand may lack: who wants them
// asks cuGetProcAddress.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CLIQUES_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CLIQUES_H_

#include <cstddef>

#include "platform/hostdriver/cuda_api.h"

namespace vmm::hostdriver {

// The layout of CUcliqueInfo.
struct Clique {
  int type;
  unsigned int id;
};

CUresult CUDAAPI GetFabricClusterUuid(CUuuid* uuid, CUdevice device);
CUresult CUDAAPI GetCliqueCount(std::size_t* count, CUdevice device);
CUresult CUDAAPI GetCliqueInfo(Clique* cliques, std::size_t* count,
                               CUdevice device);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CLIQUES_H_
