#include "platform/hostdriver/module.h"

#include <array>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "platform/hostdriver/context.h"

namespace vmm::hostdriver {
namespace {

// What the first bytes of an image are, by NVIDIA's public headers: a cubin
// (ELF), a fat binary, and what nvcc wraps around one.
constexpr std::array<std::array<unsigned char, 4>, 3> kMagics = {{
    {0x7f, 'E', 'L', 'F'},
    {0x50, 0xed, 0x55, 0xba},
    {0xb1, 0x43, 0x62, 0x46},
}};

CUresult Load(CUmodule* module, const void* image) {
  State& state = GetState();
  const Lock lock(state.mu);
  std::shared_ptr<Context> context;
  RETURN_IF_FAILED(CurrentContext(state, &context));
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsImage(image)) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(state.NewHandle());
  state.modules[*module] = std::move(context);
  return CUDA_SUCCESS;
}

// There is no compiler, so its logs are empty.
void EmptyLogs(unsigned int count, const CUjit_option* options, void** values) {
  for (const auto& [buffer, bytes] :
       {std::pair(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES),
        std::pair(CU_JIT_ERROR_LOG_BUFFER,
                  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)}) {
    char* log = nullptr;
    void** size = nullptr;
    for (unsigned int i = 0; i < count; ++i) {
      if (options[i] == buffer) log = static_cast<char*>(values[i]);
      if (options[i] == bytes) size = &values[i];
    }
    if (size == nullptr) continue;
    if (log != nullptr && *size != nullptr) *log = '\0';
    *size = nullptr;  // As cuda.h has it: the bytes that were written.
  }
}

}  // namespace

// Text, which is PTX, ends with a null byte and has a directive ".version".
bool IsImage(const void* image) {
  for (const auto& magic : kMagics) {
    // Byte by byte: a shorter text ends at its null byte.
    const auto* bytes = static_cast<const unsigned char*>(image);
    std::size_t same = 0;
    while (same < magic.size() && bytes[same] == magic[same]) ++same;
    if (same == magic.size()) return true;
  }
  return std::strstr(static_cast<const char*>(image), ".version") != nullptr;
}

CUresult LookUpFunction(State& state, const char* call, CUfunction id,
                        Function* function) {
  if (id == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *function = *FindOrStop(state, call, "function", state.functions, id);
  return CUDA_SUCCESS;
}

CUresult GetFunction(State& state, CUmodule module,
                     const std::shared_ptr<Context>& context, const char* name,
                     CUfunction* function) {
  for (const auto& [id, known] : state.functions) {
    if (known->module != module || known->kernel->name != name) continue;
    *function = id;
    return CUDA_SUCCESS;
  }
  std::shared_ptr<const Kernel> kernel = FindKernel(name);
  if (kernel == nullptr) {
    TellHowToRegister(name);
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = reinterpret_cast<CUfunction>(state.NewHandle());
  state.functions[*function] =
      std::make_shared<Function>(Function{module, context, std::move(kernel)});
  return CUDA_SUCCESS;
}

void ForgetFunctions(State& state, CUmodule module) {
  std::erase_if(state.functions, [module](const auto& entry) {
    return entry.second->module == module;
  });
}

void UnloadModulesOf(State& state, const Context& context) {
  std::erase_if(state.modules, [&](const auto& entry) {
    if (entry.second.get() != &context) return false;
    ForgetFunctions(state, entry.first);
    return true;
  });
}

}  // namespace vmm::hostdriver

using namespace vmm::hostdriver;

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
  RETURN_IF_FAILED(Enter("cuModuleLoad"));
  if (module == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string image((std::istreambuf_iterator<char>(file)), {});
  return Load(module, image.c_str());
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  RETURN_IF_FAILED(Enter("cuModuleLoadData"));
  return Load(module, image);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image,
                                    unsigned int count, CUjit_option* options,
                                    void** values) {
  RETURN_IF_FAILED(Enter("cuModuleLoadDataEx"));
  if (count != 0 && (options == nullptr || values == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  EmptyLogs(count, options, values);
  return Load(module, image);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  RETURN_IF_FAILED(Enter("cuModuleUnload"));
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  State& state = GetState();
  const Lock lock(state.mu);
  FindOrStop(state, "cuModuleUnload", "module", state.modules, module);
  ForgetFunctions(state, module);
  state.modules.erase(module);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module,
                                     const char* name) {
  RETURN_IF_FAILED(Enter("cuModuleGetFunction"));
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  State& state = GetState();
  const Lock lock(state.mu);
  const std::shared_ptr<Context>& context =
      FindOrStop(state, "cuModuleGetFunction", "module", state.modules, module);
  return GetFunction(state, module, context, name, function);
}
