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

// The function called `name` of `module`, a module or a library: the same one each
// time, as with NVIDIA's driver. Its launches are in `context` alone, if that is not
// null. NOT_FOUND, and says how to register it, where there is none.
CUresult GetFunction(State& state, CUmodule module,
                     const std::shared_ptr<Context>& context, const char* name,
                     CUfunction* function);
// Forgets the functions of `module`, which ends.
void ForgetFunctions(State& state, CUmodule module);

// Unloads the modules of a context that ends.
void UnloadModulesOf(State& state, const Context& context);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_MODULE_H_
