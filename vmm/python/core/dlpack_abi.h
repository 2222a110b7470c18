// The binary interface of DLPack 1.3 (github.com/dmlc/dlpack): what a capsule
// named "dltensor", "dltensor_versioned" or "dlpack_exchange_api" points to.
// Names and layout are DLPack's.
#ifndef VMMSHARE_VMM_PYTHON_CORE_DLPACK_ABI_H_
#define VMMSHARE_VMM_PYTHON_CORE_DLPACK_ABI_H_

#include <cstdint>

namespace vmm::python {

inline constexpr std::int32_t kDLCPU = 1;
inline constexpr std::int32_t kDLCUDA = 2;

// Of DLDataType::code.
inline constexpr std::uint8_t kDLComplex = 5;

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // In elements.
  std::uint64_t byte_offset;
};

inline constexpr char kCapsule[] = "dltensor";
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t kDLFlagReadOnly = 1;

inline constexpr char kVersionedCapsule[] = "dltensor_versioned";
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

// What the attribute __dlpack_c_exchange_api__ of a class of tensors leads to:
// functions that convert without Python in between. Those that fail return -1
// and set a Python exception; the second takes over the tensor.
struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* prev_api;
};
struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor,
                                             void** out_py_object);
  int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out);
  void* current_work_stream;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_DLPACK_ABI_H_
