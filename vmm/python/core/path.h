// Files and folders, as Python names them.
#ifndef VMMSHARE_VMM_PYTHON_CORE_PATH_H_
#define VMMSHARE_VMM_PYTHON_CORE_PATH_H_

#include <nanobind/nanobind.h>

#include <string>

#include "vmm/python/core/object.h"
#include "vmm/python/core/text.h"

namespace vmm::python {

class AnyPath;  // What stubs call PathLike.

// An argument that is one, or None where that is allowed.
using PathLike = nanobind::typed<nanobind::object, AnyPath>;

// As os.fsencode(): its bytes, as the system has them. TypeError for `what` if it
// is no path, InvalidArgument if it has a NUL.
inline std::string PathOf(nanobind::handle path, const char* what) {
  namespace nb = nanobind;
  if (!nb::isinstance<nb::str>(path) && !nb::isinstance<nb::bytes>(path) &&
      !nb::hasattr(path, "__fspath__")) {
    RefuseType(what, path, "a path as str, bytes or os.PathLike");
  }
  nb::object name = Steal(PyOS_FSPath(path.ptr()));
  if (nb::isinstance<nb::str>(name)) {
    name = Steal(PyUnicode_EncodeFSDefault(name.ptr()));
  }
  const auto bytes = nb::borrow<nb::bytes>(name);
  return WithoutNul(std::string(bytes.c_str(), bytes.size()));
}

}  // namespace vmm::python

namespace nanobind::detail {

// Of the type's name alone.
template <>
struct type_caster<vmm::python::AnyPath> {
  static constexpr auto Name =
      const_name("str | bytes | os.PathLike[str] | os.PathLike[bytes]");
};

}  // namespace nanobind::detail

#endif  // VMMSHARE_VMM_PYTHON_CORE_PATH_H_
