// Libraries: modules of no context, whose kernels run in a stream's.
#include "platform/hostdriver/module.h"

using namespace vmm::hostdriver;

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code,
                                   CUjit_option* jit_options, void** jit_values,
                                   unsigned int jit_count,
                                   CUlibraryOption* options, void** values,
                                   unsigned int count) {
  RETURN_IF_FAILED(Enter("cuLibraryLoadData"));
  if (library == nullptr || code == nullptr ||
      (jit_count != 0 && (jit_options == nullptr || jit_values == nullptr)) ||
      (count != 0 && (options == nullptr || values == nullptr))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  State& state = GetState();
  const Lock lock(state.mu);
  *library = reinterpret_cast<CUlibrary>(state.NewHandle());
  // Measured: whatever it is, it is read when a kernel is asked for.
  state.libraries[*library] = IsImage(code);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  RETURN_IF_FAILED(Enter("cuLibraryUnload"));
  State& state = GetState();
  const Lock lock(state.mu);
  if (state.libraries.erase(library) == 0) return CUDA_ERROR_INVALID_HANDLE;
  ForgetFunctions(state, reinterpret_cast<CUmodule>(library));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library,
                                    const char* name) {
  RETURN_IF_FAILED(Enter("cuLibraryGetKernel"));
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = GetState();
  const Lock lock(state.mu);
  const auto loaded = state.libraries.find(library);
  if (loaded == state.libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (!loaded->second) return CUDA_ERROR_INVALID_IMAGE;
  CUfunction function = nullptr;
  RETURN_IF_FAILED(GetFunction(state, reinterpret_cast<CUmodule>(library),
                               nullptr, name, &function));
  *kernel = reinterpret_cast<CUkernel>(function);
  return CUDA_SUCCESS;
}
