// Functions of the host that stand for kernels, by name.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_KERNELS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_KERNELS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/state.h"

namespace vmm::hostdriver {

struct Stream;

// What a launch of a kernel of vmmshare's own does, of which the arguments are
// copied before it returns.
using OwnKernel = Work (*)(const std::shared_ptr<Stream>& stream,
                           void* const* arguments);

struct Kernel {
  std::string name;
  VmmshareHostKernel function = nullptr;
  std::vector<std::size_t> sizes;  // Of the arguments, in bytes.
  OwnKernel own = nullptr;         // In place of `function`.
};

// Those that vmmshare launches itself.
std::vector<Kernel> OwnKernels();

// The kernel that is registered as `name`; null if none is. Thread-safe.
std::shared_ptr<const Kernel> FindKernel(std::string_view name);

// Says once on standard error, for each name, how to register a kernel.
void TellHowToRegister(const std::string& name);

// Loads the library at `path`, which stays loaded: the function that registers its
// kernels. BadValue() where it cannot: the environment named it.
VmmshareHostKernels OpenKernels(const std::string& path);

// The function vmmshareHostKernels of the library at `path`, an absolute one.
// Null when there is none, and `why` says so.
VmmshareHostKernels OpenKernelLibrary(const std::string& path,
                                      std::string* why);

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_KERNELS_H_
