#include "platform/hostdriver/kernels.h"

#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "platform/hostdriver/cuda_api.h"
#include "platform/hostdriver/environment.h"

namespace vmm::hostdriver {
namespace {

// Of a launch, as in CUDA from 12.1 on.
constexpr std::size_t kMaxArgumentBytes = 32764;

// A lock of its own: a library registers its kernels inside cuInit.
struct Registry {
  Registry() {
    for (Kernel& own : OwnKernels()) {
      std::string name = own.name;
      kernels.emplace(std::move(name),
                      std::make_shared<const Kernel>(std::move(own)));
    }
  }
  std::mutex mu;
  std::map<std::string, std::shared_ptr<const Kernel>, std::less<>> kernels;
  std::set<std::string> told;  // Names that were asked for in vain.
};

// Never destroyed: worker threads may outlive static destruction.
Registry& GetRegistry() {
  static Registry& registry = *new Registry;
  return registry;
}

}  // namespace

std::shared_ptr<const Kernel> FindKernel(std::string_view name) {
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mu);
  const auto found = registry.kernels.find(name);
  return found == registry.kernels.end() ? nullptr : found->second;
}

void TellHowToRegister(const std::string& name) {
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mu);
  if (!registry.told.insert(name).second) return;
  std::fprintf(
      stderr,
      "vmmshare host-memory driver: no function of the host stands for "
      "the kernel \"%s\"; register one with vmmshareHostAddKernel(), or "
      "in a library that VMMSHARE_HOST_KERNELS names "
      "(host_kernels.h)\n",
      name.c_str());
}

VmmshareHostKernels OpenKernels(const std::string& path) {
  std::string why;
  const VmmshareHostKernels fill = OpenKernelLibrary(path, &why);
  if (fill == nullptr) {
    BadValue("VMMSHARE_HOST_KERNELS", path,
             "the absolute path of a library that exports "
             "vmmshareHostKernels; " +
                 why);
  }
  return fill;
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

int vmmshareHostAddKernel(const char* name, VmmshareHostKernel kernel,
                          const std::size_t* sizes, std::size_t count) {
  if (name == nullptr || *name == '\0' || kernel == nullptr ||
      (sizes == nullptr && count != 0) || count > kMaxArgumentBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_shared<Kernel>();
  made->name = name;
  made->function = kernel;
  std::size_t left = kMaxArgumentBytes;
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0 || sizes[i] > left) return CUDA_ERROR_INVALID_VALUE;
    left -= sizes[i];
    made->sizes.push_back(sizes[i]);
  }
  Registry& registry = GetRegistry();
  const std::lock_guard<std::mutex> lock(registry.mu);
  registry.kernels[made->name] = std::move(made);
  return CUDA_SUCCESS;
}
