// Object<T>: a Python object of the class T, which the stubs call so.
#ifndef VMMSHARE_VMM_PYTHON_CORE_OBJECT_H_
#define VMMSHARE_VMM_PYTHON_CORE_OBJECT_H_

#include <nanobind/nanobind.h>

namespace vmm::python {

template <typename T>
using Object = nanobind::typed<nanobind::object, T>;

// Hands `made`, which was made by new, to Python.
template <typename T>
Object<T> Give(T* made) {
  return nanobind::steal<Object<T>>(
      nanobind::cast(made, nanobind::rv_policy::take_ownership).release());
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_OBJECT_H_
