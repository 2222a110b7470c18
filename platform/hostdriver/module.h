// Modules and their functions: names that stand for functions of the host.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_MODULE_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_MODULE_H_

#include <memory>

#include "platform/hostdriver/kernels.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

struct Function {
  CUmodule module = nullptr;
  std::shared_ptr<Context> context;  // Null: any, of a library's kernel.
  std::shared_ptr<const Kernel> kernel;
};

// All of these REQUIRE that the lock is held.

// Whether `image`, which is not null, may be GPU code.
bool IsImage(const void* image);

// The function `id`. INVALID_HANDLE for null. Stops on one that was never made,
// or whose module is no more.
CUresult LookUpFunction(State& state, const char* call, CUfunction id,
                        Function* function);

// Unloads the modules of a context that ends.
void UnloadModulesOf(State& state, const Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MODULE_H_
