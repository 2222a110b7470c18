// What programs have their bytes in: bytes, and what is like them, as bytearray
// and memoryview are.
#ifndef VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_
#define VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_

#include <nanobind/nanobind.h>

namespace vmm::python {

// `given` as bytes, a copy unless it is that. Null for what is not like bytes;
// raises nothing.
inline nanobind::object BytesOrNull(nanobind::handle given) noexcept {
  if (nanobind::isinstance<nanobind::bytes>(given)) {
    return nanobind::borrow(given);
  }
  nanobind::object bytes;
  const auto view = nanobind::steal(PyMemoryView_FromObject(given.ptr()));
  if (view.is_valid()) bytes = nanobind::steal(PyBytes_FromObject(view.ptr()));
  if (!bytes.is_valid()) PyErr_Clear();
  return bytes;
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_
