// The header of a safetensors file: which tensors it has, and where. They go to a
// layout as they are (vmmshare_weights_layout_add()), and their bytes to a writer by
// vmmshare_weights_read_files(), a dense one by one row.
#ifndef VMMSHARE_VMM_C_SAFETENSORS_H_
#define VMMSHARE_VMM_C_SAFETENSORS_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a file had when it was read. Any threads.
typedef struct vmmshare_safetensors vmmshare_safetensors;
// Reads the header of the file at `path` (UTF-8), and no data. NOT_FOUND for one that
// is not there, others as the system answers; INVALID_ARGUMENT for what is no such
// file or a damaged one, UNIMPLEMENTED for a dtype that is not known.
VMMSHARE_API vmmshare_status vmmshare_safetensors_open(
    const char* path, vmmshare_safetensors** header, vmmshare_error** error);
VMMSHARE_API void vmmshare_safetensors_close(vmmshare_safetensors* header);
// How many tensors.
VMMSHARE_API uint64_t
vmmshare_safetensors_count(const vmmshare_safetensors* header);
// The tensor at a place, in the order of the file, with the header's own pointers. It
// is dense; its `offset` is in the file. OUT_OF_RANGE.
VMMSHARE_API vmmshare_status
vmmshare_safetensors_tensor(const vmmshare_safetensors* header, uint64_t place,
                            vmmshare_tensor* tensor, vmmshare_error** error);
// The metadata as JSON: {"key": "value", ...}.
VMMSHARE_API vmmshare_status
vmmshare_safetensors_metadata(const vmmshare_safetensors* header,
                              vmmshare_text** json, vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_SAFETENSORS_H_
