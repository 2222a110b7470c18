// Contexts that a program makes itself, beside the primary ones.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_MADE_CONTEXT_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_MADE_CONTEXT_H_

#include "platform/hostdriver/cuda_api.h"

// cuda.h declares one signature of cuCtxCreate, which depends on its version.
// The driver exports them all.
#if CUDA_VERSION < 12050
struct CUctxCreateParams {
  CUexecAffinityParam* execAffinityParams;
  int numExecAffinityParams;
  void* cigParams;
};
#endif
extern "C" {
#pragma GCC visibility push(default)
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags,
                                CUdevice device);
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context,
                                CUexecAffinityParam* parameters, int count,
                                unsigned int flags, CUdevice device);
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context,
                                CUctxCreateParams* parameters,
                                unsigned int flags, CUdevice device);
#pragma GCC visibility pop
}  // extern "C"

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MADE_CONTEXT_H_
