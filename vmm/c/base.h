// The C interface of vmmshare: what all of it has in common.
//
//   vmmshare_error* error = NULL;
//   vmmshare_pool* pool = NULL;
//   if (vmmshare_pool_create(device, NULL, &pool, &error) != VMMSHARE_OK) {
//     fprintf(stderr, "%s\n", vmmshare_error_message(error));
//     vmmshare_error_free(error);
//   }
//
// Calls that can fail return a vmmshare_status, and explain a failure in
// `error` unless that is NULL. What they make is put into the last argument
// before `error`, and is NULL or 0 after a failure. Structures that begin with
// their size stay as they were. `*error` is NULL after a success; after a failure
// it is the caller's to free. Descriptors that a call hands out are close-on-exec.
//
// Handles are opaque pointers. Each is closed once, by its _close(), which
// takes NULL too, and does nothing with a handle of another type. Using one after
// that is undefined, as it is for fclose(); closing it again, too, is an error of
// the program's that may not be noticed, or may end another handle.
// They may be closed in any order: what others still need stays until they are
// closed as well. Memory that is given as an address is the caller's to keep.
// NULL and a handle of another type are refused (VMMSHARE_INVALID_ARGUMENT),
// and so is every handle of its parent in a forked child
// (VMMSHARE_FAILED_PRECONDITION), where closing gives nothing back. What a child
// makes itself it may use: after cuInit() in the parent the driver refuses that.
//
// Handles may be used by several threads at once, but not closed meanwhile;
// where a handle is for one thread at a time, its header says so. No call
// throws, and none calls exit(). What a function that the program passes throws
// is VMMSHARE_INTERNAL; but neither may a thread be cancelled within a call nor
// such a function end its thread (pthread_exit()): that ends the process.
//
// Waits take a `timeout_ns`: the longest time, in nanoseconds from the call on,
// that it may wait. 0 and less only looks; VMMSHARE_FOREVER has no end. No call
// cancels the wait of another thread: who may have to wait in vain waits for a short
// time, looks whether it still wants to, and waits again. To close the handle that
// is waited on is no way to end it.
//
// Structures for options begin with their size, which is sizeof() at the time
// the program was compiled. All other fields may be zero: that is the default.
// A structure from a newer header is taken as long as what is unknown here is
// zero; otherwise, and for a size that never was, the call answers
// VMMSHARE_INVALID_ARGUMENT. NULL is all defaults, where a call allows it.
#ifndef VMMSHARE_VMM_C_BASE_H_
#define VMMSHARE_VMM_C_BASE_H_

#include <stdint.h>

#ifndef VMMSHARE_API
#define VMMSHARE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Grows when a function is added. The library's file name changes
// (libvmmshare.so.1) when one is changed or goes.
#define VMMSHARE_C_VERSION 1
// VMMSHARE_C_VERSION of the library that is loaded.
VMMSHARE_API int32_t vmmshare_c_version(void);
// Of the library: "0.1.0".
VMMSHARE_API const char* vmmshare_version(void);

#define VMMSHARE_FOREVER INT64_MAX

// The codes of docs/errors.md; their numbers are those of gRPC and Abseil.
typedef int32_t vmmshare_status;
enum {
  VMMSHARE_OK = 0,
  VMMSHARE_CANCELLED = 1,
  VMMSHARE_UNKNOWN = 2,
  VMMSHARE_INVALID_ARGUMENT = 3,
  VMMSHARE_DEADLINE_EXCEEDED = 4,
  VMMSHARE_NOT_FOUND = 5,
  VMMSHARE_ALREADY_EXISTS = 6,
  VMMSHARE_PERMISSION_DENIED = 7,
  VMMSHARE_RESOURCE_EXHAUSTED = 8,
  VMMSHARE_FAILED_PRECONDITION = 9,
  VMMSHARE_ABORTED = 10,
  VMMSHARE_OUT_OF_RANGE = 11,
  VMMSHARE_UNIMPLEMENTED = 12,
  VMMSHARE_INTERNAL = 13,
  VMMSHARE_UNAVAILABLE = 14,
  VMMSHARE_DATA_LOSS = 15
};
// "NOT_FOUND"; "UNKNOWN" for a number that is no code.
VMMSHARE_API const char* vmmshare_status_name(vmmshare_status status);

// Why a call failed. The texts are valid until it is freed. For NULL: OK, "",
// -1.
typedef struct vmmshare_error vmmshare_error;
VMMSHARE_API vmmshare_status vmmshare_error_status(const vmmshare_error* error);
// One line: the call, its values, what came of it, and what to do.
VMMSHARE_API const char* vmmshare_error_message(const vmmshare_error* error);
// What to do about it: the part of the message that says so, or what is
// generally to be done about such errors. Never empty for an error.
VMMSHARE_API const char* vmmshare_error_remedy(const vmmshare_error* error);
// The CUresult of the driver call that failed; -1 when none did.
VMMSHARE_API int32_t vmmshare_error_cuda_result(const vmmshare_error* error);
VMMSHARE_API void vmmshare_error_free(vmmshare_error* error);

// Text that a call made for the caller. For NULL: "".
typedef struct vmmshare_text vmmshare_text;
VMMSHARE_API const char* vmmshare_text_get(const vmmshare_text* text);
VMMSHARE_API void vmmshare_text_free(vmmshare_text* text);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_BASE_H_
