// Python objects: of a class or of types that stubs tell, and new ones.
#ifndef VMMSHARE_VMM_PYTHON_CORE_OBJECT_H_
#define VMMSHARE_VMM_PYTHON_CORE_OBJECT_H_

#include <nanobind/nanobind.h>

namespace vmm::python {

// Of the class T.
template <typename T>
using Object = nanobind::typed<nanobind::object, T>;

// Others that type checkers are to know: of what users loop over.
using Rows = nanobind::typed<
    nanobind::list,
    nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>>;
using AddressAndSize = nanobind::typed<nanobind::tuple, int, int>;
using Counts = nanobind::typed<nanobind::dict, nanobind::str, int>;

// What a function of CPython's returned. Raises what it raised, if that is null.
template <typename T = nanobind::object>
T Steal(PyObject* made) {
  if (made == nullptr) throw nanobind::python_error();
  return nanobind::steal<T>(made);
}

// Hands `made`, which was made by new, to Python.
template <typename T>
Object<T> Give(T* made) {
  return nanobind::steal<Object<T>>(
      nanobind::cast(made, nanobind::rv_policy::take_ownership).release());
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_OBJECT_H_
