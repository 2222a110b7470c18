// Calls the driver by name. Succeeds where the kernel of kernels.cc is found.
#include <cuda.h>

int main() {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  const bool found =
      cuInit(0) == CUDA_SUCCESS &&
      cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
      cuCtxSetCurrent(context) == CUDA_SUCCESS &&
      cuModuleLoadData(&module, ".version 7.0") == CUDA_SUCCESS &&
      cuModuleGetFunction(&kernel, module, "nothing") == CUDA_SUCCESS;
  return found ? 0 : 1;
}
