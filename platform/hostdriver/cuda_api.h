// <cuda.h> for the driver's own sources: its declarations become exports.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_CUDA_API_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_CUDA_API_H_

#pragma GCC visibility push(default)
#include <cuda.h>

#include "platform/hostdriver/host_driver.h"
#include "platform/hostdriver/host_kernels.h"
#pragma GCC visibility pop

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_CUDA_API_H_
