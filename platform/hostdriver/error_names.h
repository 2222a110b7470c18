// The names of results.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_ERROR_NAMES_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_ERROR_NAMES_H_

#include <string_view>

#include "platform/hostdriver/cuda_api.h"

namespace vmm::hostdriver {

// The result called `name` ("CUDA_ERROR_OUT_OF_MEMORY"); false if none is.
bool FindResult(std::string_view name, CUresult* result);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_ERROR_NAMES_H_
