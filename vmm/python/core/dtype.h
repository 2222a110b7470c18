// DType: what an element of an array is. A closed list: others' tickets name
// one of these, or are refused.
#ifndef VMMSHARE_VMM_PYTHON_CORE_DTYPE_H_
#define VMMSHARE_VMM_PYTHON_CORE_DTYPE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

#include "vmm/python/core/dlpack_abi.h"

namespace vmm::python {

struct DType {
  std::uint8_t code;  // In tickets; never given to another one.
  const char* name;   // As NumPy and PyTorch spell it.
  DLDataType dlpack;
  const char* typestr;  // Of __cuda_array_interface__; null: it knows none.
  std::int64_t itemsize() const { return dlpack.bits / 8; }
};

// Null when there is none.
const DType* FindDType(std::uint8_t code);
const DType* FindDType(DLDataType dlpack);
// As NumPy spells it, "<f4" or "f4"; null also for another order of bytes.
const DType* FindDTypeOfTypestr(std::string_view typestr);

// Of "float16", "<f2", numpy.float16, numpy.dtype("float16"), torch.float16 and
// so on. TypeError for what is none of the list, with `remedy` behind that.
const DType& DTypeOf(nanobind::handle object, const char* remedy = "");

// What to do about a tensor or array of a type that is none of the list.
inline constexpr char kPassAsBytes[] =
    ". Pass its bytes, viewed as uint8, and view them as that type again where "
    "they are used";

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_DTYPE_H_
