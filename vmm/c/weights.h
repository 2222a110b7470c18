// Named tensors in one range of memory, sealed, and kept by `vmmshare keep`
// beyond the process that made them. docs/weights.md has the rules.
//
// A layout says which tensors there are and how much memory they take; a writer
// fills memory with them; a set is what readers open.
#ifndef VMMSHARE_VMM_C_WEIGHTS_H_
#define VMMSHARE_VMM_C_WEIGHTS_H_

#include <stdint.h>

#include "vmm/c/base.h"
#include "vmm/c/driver.h"
#include "vmm/c/keeper.h"
#include "vmm/c/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

// What elements are; the numbers of an array ticket (docs/wire_format.md).
enum {
  VMMSHARE_DTYPE_BOOL = 1,
  VMMSHARE_DTYPE_UINT8 = 2,
  VMMSHARE_DTYPE_INT8 = 3,
  VMMSHARE_DTYPE_UINT16 = 4,
  VMMSHARE_DTYPE_INT16 = 5,
  VMMSHARE_DTYPE_UINT32 = 6,
  VMMSHARE_DTYPE_INT32 = 7,
  VMMSHARE_DTYPE_UINT64 = 8,
  VMMSHARE_DTYPE_INT64 = 9,
  VMMSHARE_DTYPE_FLOAT16 = 10,
  VMMSHARE_DTYPE_FLOAT32 = 11,
  VMMSHARE_DTYPE_FLOAT64 = 12,
  VMMSHARE_DTYPE_COMPLEX64 = 13,
  VMMSHARE_DTYPE_COMPLEX128 = 14,
  VMMSHARE_DTYPE_BFLOAT16 = 15,
  VMMSHARE_DTYPE_FLOAT8_E4M3FN = 16,
  VMMSHARE_DTYPE_FLOAT8_E5M2 = 17,
  VMMSHARE_DTYPE_FLOAT8_E8M0FNU = 18,
  VMMSHARE_DTYPE_FLOAT8_E4M3FNUZ = 19,
  VMMSHARE_DTYPE_FLOAT8_E5M2FNUZ = 20
};

typedef struct vmmshare_tensor {
  uint64_t struct_size;
  const char* name;        // Printable ASCII.
  uint32_t dtype;          // VMMSHARE_DTYPE_*.
  uint32_t rank;           // Of `shape` and `strides`.
  const int64_t* shape;    // Outermost dimension first.
  const int64_t* strides;  // In elements; NULL: dense.
  // Bytes from the beginning of the set's memory. Of an alias that is added: from
  // the first element of what it is an alias of. Else not read.
  uint64_t offset;
  uint64_t bytes;     // From its first element to its last; not read.
  uint32_t alias_of;  // With VMMSHARE_TENSOR_ALIAS, that tensor's place.
  uint32_t checksum;  // With VMMSHARE_TENSOR_CHECKSUM, its CRC-32C; not read.
  uint32_t flags;     // VMMSHARE_TENSOR_*.
  uint32_t reserved;  // 0.
} vmmshare_tensor;
enum {
  VMMSHARE_TENSOR_ALIAS = 1,    // It lies in another tensor's bytes.
  VMMSHARE_TENSOR_CHECKSUM = 2  // Its checksum is known.
};

// For one thread at a time.
typedef struct vmmshare_weights_layout vmmshare_weights_layout;
// `fingerprint`: what the program calls the model; NULL: nothing. INVALID_ARGUMENT
// unless it is at most 256 of printable ASCII.
VMMSHARE_API vmmshare_status vmmshare_weights_layout_create(
    const char* fingerprint, vmmshare_weights_layout** layout,
    vmmshare_error** error);
VMMSHARE_API void vmmshare_weights_layout_close(
    vmmshare_weights_layout* layout);
// One more of the metadata, or another value of one. INVALID_ARGUMENT for a key
// that is not 1 to 512 of printable ASCII, RESOURCE_EXHAUSTED for one too many.
VMMSHARE_API vmmshare_status
vmmshare_weights_layout_note(vmmshare_weights_layout* layout, const char* key,
                             const char* value, vmmshare_error** error);
// Adds a tensor; `*place`, unless `place` is NULL, is its place.
// INVALID_ARGUMENT for what no tensor is, ALREADY_EXISTS for a name that is
// taken, RESOURCE_EXHAUSTED for one too many, NOT_FOUND for an alias of nothing.
VMMSHARE_API vmmshare_status vmmshare_weights_layout_add(
    vmmshare_weights_layout* layout, const vmmshare_tensor* tensor,
    uint64_t* place, vmmshare_error** error);
// Bytes of memory that the set takes.
VMMSHARE_API uint64_t
vmmshare_weights_layout_size(const vmmshare_weights_layout* layout);
// The tensor at a place; OUT_OF_RANGE where there is none. Its pointers are the
// layout's, until that is changed.
VMMSHARE_API vmmshare_status vmmshare_weights_layout_tensor(
    const vmmshare_weights_layout* layout, uint64_t place,
    vmmshare_tensor* tensor, vmmshare_error** error);

// Writes to different tensors may come from several threads; all else is for one.
typedef struct vmmshare_weights_writer vmmshare_weights_writer;
// Begins a set in all of `memory`, which is created or adopted here and has
// vmmshare_weights_layout_size() bytes. It stays until the writer is closed,
// too.
VMMSHARE_API vmmshare_status vmmshare_weights_begin(
    const vmmshare_driver* driver, const vmmshare_memory* memory,
    const vmmshare_weights_layout* layout, vmmshare_weights_writer** writer,
    vmmshare_error** error);
VMMSHARE_API void vmmshare_weights_writer_close(
    vmmshare_weights_writer* writer);
// Copies bytes of the host's to `offset` within a tensor's. OUT_OF_RANGE for what
// leaves it.
VMMSHARE_API vmmshare_status vmmshare_weights_write(
    vmmshare_weights_writer* writer, uint64_t place, uint64_t offset,
    const void* bytes, uint64_t size, vmmshare_error** error);
// The same, of all of a tensor's bytes, from a file. NOT_FOUND for one that is
// not there, others as the system answers; DATA_LOSS for one that ends too early.
VMMSHARE_API vmmshare_status vmmshare_weights_read_file(
    vmmshare_weights_writer* writer, uint64_t place, const char* path,
    uint64_t offset, vmmshare_error** error);
// The same, where the file has the tensor as a part of another: rows of `row_bytes`
// bytes, `pitch` from the beginning of one to that of the next, which lie side by
// side here. INVALID_ARGUMENT for rows that do not make it up.
VMMSHARE_API vmmshare_status vmmshare_weights_read_rows(
    vmmshare_weights_writer* writer, uint64_t place, const char* path,
    uint64_t offset, uint64_t row_bytes, uint64_t pitch,
    vmmshare_error** error);
// The same, of `count` reads by several threads, which have ended when it returns.
// Reads of one tensor come one after the other, from one file and with one pitch:
// their rows side by side make up a row of it, and lie in this order in the file.
// OUT_OF_RANGE for a place or a path that is not there.
typedef struct vmmshare_file_read {
  uint64_t place;  // Of the tensor.
  uint64_t path;   // Which of `paths`.
  uint64_t offset;
  uint64_t row_bytes;
  uint64_t pitch;
} vmmshare_file_read;
typedef struct vmmshare_read_options {
  uint64_t struct_size;
  uint32_t threads;   // 0: as many as processors, at most 8.
  uint32_t reserved;  // 0.
  // Called on the calling thread, with bytes: every 50 ms, and when all are read.
  // A status other than OK ends the reading, and is its error.
  vmmshare_status (*progress)(void* user, uint64_t done, uint64_t total);
  void* user;  // For `progress`.
} vmmshare_read_options;
VMMSHARE_API vmmshare_status vmmshare_weights_read_files(
    vmmshare_weights_writer* writer, const char* const* paths,
    uint64_t path_count, const vmmshare_file_read* reads, uint64_t count,
    const vmmshare_read_options* options, vmmshare_error** error);
// As vmmshare_weights_read_file(), from device memory at `address`, where they lie
// as they are to lie here; takes no checksum. All work that writes there has ended,
// and it stays there until the writer is sealed or closed.
VMMSHARE_API vmmshare_status
vmmshare_weights_copy(vmmshare_weights_writer* writer, uint64_t place,
                      uint64_t address, vmmshare_error** error);
// The same of many, from `addresses[i]` to the tensor at `places[i]`, in the order of
// `stream`, a CUstream of the device's primary context, NULL or CU_STREAM_LEGACY for
// its default one: at the rate of one copy of as much where they lie on the set's
// device. What is copied stays there until the stream has passed. With `count` 0 it
// loads what it takes, which cannot be had while streams wait. Also for a set that
// is sealed, whose readers the caller keeps away meanwhile. Into memory of the host
// the copies have been made when it returns.
VMMSHARE_API vmmshare_status vmmshare_weights_copy_all(
    vmmshare_weights_writer* writer, const uint64_t* places,
    const uint64_t* addresses, uint64_t count, void* stream, uint32_t flags,
    vmmshare_error** error);
enum {
  // All addresses are memory of the set's device, as the caller knows: the driver is
  // not asked, which takes it about a microsecond a mapping.
  VMMSHARE_WEIGHTS_FROM_DEVICE = 1
};
enum {
  // Takes the checksum of what was not written by these calls.
  VMMSHARE_WEIGHTS_CHECKSUM_ALL = 1
};
// Completes the set, as `generation`. All work that writes to it has ended.
// INVALID_ARGUMENT for generation 0; FAILED_PRECONDITION when it is sealed.
VMMSHARE_API vmmshare_status
vmmshare_weights_seal(vmmshare_weights_writer* writer, uint64_t generation,
                      uint32_t flags, vmmshare_error** error);
// Completes it as the generation after the one that the keeper has under the name,
// and has the keeper put it in the place of that. ABORTED when another writer was
// faster, with the first set too, or that one was dropped meanwhile;
// FAILED_PRECONDITION when something else is kept under the name, or `memory` has
// another size than the writer's; INVALID_ARGUMENT, before anything is sealed, when
// the writer writes to other memory than `memory`. What
// VMMSHARE_WEIGHTS_CHECKSUM_ALL takes comes before, and does not count in
// `timeout_ns`. What the keeper refused may be written to and published again; where
// its answer did not come the writer stays sealed, for others may have the set.
VMMSHARE_API vmmshare_status vmmshare_weights_publish(
    vmmshare_weights_writer* writer, vmmshare_keeper* keeper, const char* name,
    const vmmshare_memory* memory, uint32_t flags, int64_t timeout_ns,
    uint64_t* generation, vmmshare_error** error);

// Any threads.
typedef struct vmmshare_weights vmmshare_weights;
// The set in all of `memory`, from vmmshare_keeper_attach() for example, which
// stays until the set is closed, too.
// FAILED_PRECONDITION when none is there, or half of one; INVALID_ARGUMENT for one
// that is damaged.
VMMSHARE_API vmmshare_status vmmshare_weights_open(
    const vmmshare_driver* driver, const vmmshare_memory* memory,
    vmmshare_weights** weights, vmmshare_error** error);
VMMSHARE_API void vmmshare_weights_close(vmmshare_weights* weights);
// How many tensors; and what it was made as. The text is the set's.
VMMSHARE_API uint64_t vmmshare_weights_count(const vmmshare_weights* weights);
VMMSHARE_API uint64_t
vmmshare_weights_generation(const vmmshare_weights* weights);
VMMSHARE_API const char* vmmshare_weights_fingerprint(
    const vmmshare_weights* weights);
// The metadata as JSON: {"key": "value", ...}. What is no UTF-8 in a value comes as
// U+FFFD.
VMMSHARE_API vmmshare_status
vmmshare_weights_metadata(const vmmshare_weights* weights, vmmshare_text** json,
                          vmmshare_error** error);
// The tensor at a place, with the set's own pointers. OUT_OF_RANGE.
VMMSHARE_API vmmshare_status
vmmshare_weights_tensor(const vmmshare_weights* weights, uint64_t place,
                        vmmshare_tensor* tensor, vmmshare_error** error);
// The place of the tensor of this name. NOT_FOUND.
VMMSHARE_API vmmshare_status
vmmshare_weights_find(const vmmshare_weights* weights, const char* name,
                      uint64_t* place, vmmshare_error** error);
// Compares the data with the checksums; `*compared`, unless `compared` is NULL, is
// how many there were. DATA_LOSS names the first tensor that differs.
VMMSHARE_API vmmshare_status
vmmshare_weights_verify(const vmmshare_weights* weights, uint64_t* compared,
                        vmmshare_error** error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_WEIGHTS_H_
