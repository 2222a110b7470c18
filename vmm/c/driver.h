// Drivers and devices. Loading a driver calls cuInit(), which creates no
// context. Nothing here does, but the probe of VMMSHARE_KIND_LEGACY_IPC.
#ifndef VMMSHARE_VMM_C_DRIVER_H_
#define VMMSHARE_VMM_C_DRIVER_H_

#include <stdint.h>

#include "vmm/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// A loaded CUDA driver. It stays loaded until the process ends.
typedef struct vmmshare_driver vmmshare_driver;

// The installed NVIDIA driver. NOT_FOUND when none is installed or it sees no
// device; FAILED_PRECONDITION for one that is too old.
VMMSHARE_API vmmshare_status
vmmshare_driver_load_system(vmmshare_driver** driver, vmmshare_error** error);
// The driver in the file `path`, which must be absolute: the host-memory driver
// (libvmmshare_hostdriver.so) is loaded so.
VMMSHARE_API vmmshare_status vmmshare_driver_load(const char* path,
                                                  vmmshare_driver** driver,
                                                  vmmshare_error** error);
VMMSHARE_API void vmmshare_driver_close(vmmshare_driver* driver);

// One line for people; valid until the handle is closed.
VMMSHARE_API const char* vmmshare_driver_describe(
    const vmmshare_driver* driver);
// As CUDA_VERSION: 13000 is 13.0.
VMMSHARE_API int32_t vmmshare_driver_version(const vmmshare_driver* driver);
// 1 for the host-memory driver, 0 for a real one.
VMMSHARE_API int32_t
vmmshare_driver_is_host_memory(const vmmshare_driver* driver);

// Whether `stream`, a CUstream, is captured into a graph: 1 or 0. What is put on
// it then is done at each launch of the graph, and not before. Of NULL, and of
// CU_STREAM_LEGACY, whether a stream is captured that synchronises with it. Errors
// as the driver answers.
VMMSHARE_API vmmshare_status
vmmshare_stream_is_captured(const vmmshare_driver* driver, void* stream,
                            int32_t* is_captured, vmmshare_error** error);

// One GPU, or MIG instance, that this process sees.
typedef struct vmmshare_device vmmshare_device;

VMMSHARE_API vmmshare_status vmmshare_device_count(
    const vmmshare_driver* driver, int32_t* count, vmmshare_error** error);
// NOT_FOUND when this process sees no such device: the message lists those that
// it sees.
VMMSHARE_API vmmshare_status vmmshare_device_open(const vmmshare_driver* driver,
                                                  int32_t ordinal,
                                                  vmmshare_device** device,
                                                  vmmshare_error** error);
// By UUID, which means the same in every process; ordinals do not.
VMMSHARE_API vmmshare_status
vmmshare_device_open_uuid(const vmmshare_driver* driver, const uint8_t uuid[16],
                          vmmshare_device** device, vmmshare_error** error);
VMMSHARE_API void vmmshare_device_close(vmmshare_device* device);

// Of NULL: -1, "", and an UUID of zeros. Texts are valid until the handle is
// closed.
VMMSHARE_API int32_t vmmshare_device_ordinal(const vmmshare_device* device);
VMMSHARE_API const char* vmmshare_device_name(const vmmshare_device* device);
// "GPU-f0613ff9-b933-c38b-3a87-83fbe59ca8a9".
VMMSHARE_API const char* vmmshare_device_uuid_text(
    const vmmshare_device* device);
// Nothing is written where `uuid` is NULL.
VMMSHARE_API void vmmshare_device_uuid(const vmmshare_device* device,
                                       uint8_t uuid[16]);
// Whether `device` reaches the memory of `owner`: 1 or 0.
VMMSHARE_API vmmshare_status vmmshare_device_can_access(
    const vmmshare_device* device, const vmmshare_device* owner,
    int32_t* can_access, vmmshare_error** error);
// OK when memory of this device can be shared as `kind`, one of VMMSHARE_KIND_*
// (memory.h); otherwise why not. Tried once for each, then remembered, but for what
// says nothing about the kind: a want of memory, for instance, a fault in the
// program's context, or CUDA_ERROR_UNKNOWN.
VMMSHARE_API vmmshare_status vmmshare_device_probe(
    const vmmshare_device* device, uint32_t kind, vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_DRIVER_H_
