// Kernels of the host-memory driver: functions of the host, by name. For C and
// C++.
//
// The driver runs no GPU code. A module that a program loads is only a place to
// look names up in, and cuModuleGetFunction finds the functions that were
// registered here. A program that is not to be changed gets them from a library
// of yours, which VMMSHARE_HOST_KERNELS names by its absolute path and cuInit
// loads:
//
//   static const size_t kSizes[] = {sizeof(unsigned long long), sizeof(int)};
//   static void Fill(const VmmshareHostLaunch* launch, void* const* arguments);
//   void vmmshareHostKernels(VmmshareHostAddKernel add) {
//     add("fill", &Fill, kSizes, 2);
//   }
//
// A program of your own looks vmmshareHostAddKernel() up in the driver's
// library (dlsym) and calls it.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_HOST_KERNELS_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_HOST_KERNELS_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// One launch, while the kernel runs.
typedef struct VmmshareHostLaunch {
  size_t
      size;  // Of this structure, in bytes: newer drivers may add to its end.
  unsigned int grid[3];       // In blocks.
  unsigned int block[3];      // In threads.
  unsigned int shared_bytes;  // Of dynamic shared memory that a block asks for.
  // Where the CPU finds device memory. `*size` is the number of bytes wanted
  // from `address` on; it becomes the number that lie together there, at least
  // 1, so that a loop passes through memory of several allocations. `writes`: 0
  // to read only. The pointer holds until the kernel returns. Null where the
  // launch's device may not go, or `*size` is 0; the kernel then returns, and
  // the launch has failed with CUDA_ERROR_ILLEGAL_ADDRESS.
  void* (*memory)(const struct VmmshareHostLaunch* launch,
                  unsigned long long address, size_t* size, int writes);
  void* driver;  // The driver's own.
} VmmshareHostLaunch;

// Does the work of all threads of the launch. `arguments[i]` points to a copy
// of the argument i, made when the kernel was launched. Called in its stream's
// turn, on a thread of the driver's, beside kernels of other streams. It must
// not throw, and calls of the driver answer CUDA_ERROR_NOT_PERMITTED in it.
typedef void (*VmmshareHostKernel)(const VmmshareHostLaunch* launch,
                                   void* const* arguments);

// Registers `kernel` under `name`, in place of an older one, for modules of
// this process. `sizes` are the bytes of each of its `count` arguments, in
// order, 32764 together at most. All is copied. Returns 0, or 1
// (CUDA_ERROR_INVALID_VALUE) for null, an empty name or sizes that cannot be.
// Thread-safe; before cuInit too.
typedef int (*VmmshareHostAddKernel)(const char* name,
                                     VmmshareHostKernel kernel,
                                     const size_t* sizes, size_t count);
int vmmshareHostAddKernel(const char* name, VmmshareHostKernel kernel,
                          const size_t* sizes, size_t count);

// What a library that VMMSHARE_HOST_KERNELS names exports. Called once, in
// cuInit; it must not call the driver.
typedef void (*VmmshareHostKernels)(VmmshareHostAddKernel add);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_HOST_KERNELS_H_
