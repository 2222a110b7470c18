// What programs have their bytes in: bytes, and what is like them, as bytearray
// and memoryview are.
#ifndef VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_
#define VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace vmm::python {

// `given` as bytes, a copy unless it is that. Null for what is not like bytes;
// raises only MemoryError.
inline nanobind::object BytesOrNull(nanobind::handle given) {
  if (nanobind::isinstance<nanobind::bytes>(given)) {
    return nanobind::borrow(given);
  }
  nanobind::object bytes;
  const auto view = nanobind::steal(PyMemoryView_FromObject(given.ptr()));
  if (view.is_valid()) bytes = nanobind::steal(PyBytes_FromObject(view.ptr()));
  if (bytes.is_valid()) return bytes;
  if (PyErr_ExceptionMatches(PyExc_MemoryError) != 0) {
    throw nanobind::python_error();
  }
  PyErr_Clear();
  return bytes;
}

// An argument that is like bytes.
struct BytesLike {
  // NOLINTNEXTLINE(google-explicit-constructor): it stands for them.
  operator std::string_view() const {
    const auto held = nanobind::borrow<nanobind::bytes>(bytes);
    return {held.c_str(), held.size()};
  }
  nanobind::object bytes;
};

}  // namespace vmm::python

namespace nanobind::detail {

template <>
struct type_caster<vmm::python::BytesLike> {
  using Value = vmm::python::BytesLike;
  static constexpr auto Name = const_name("bytes | bytearray | memoryview");
  template <typename>
  using Cast = Value;
  template <typename>
  static constexpr bool can_cast() {
    return true;
  }

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    try {
      value.bytes = vmm::python::BytesOrNull(source);
    } catch (const python_error&) {
      no_memory = true;
    }
    return no_memory || value.bytes.is_valid();
  }
  explicit operator Value() const {
    if (!no_memory) return value;
    PyErr_NoMemory();
    throw python_error();
  }

  Value value;
  bool no_memory = false;  // Raised where something may be.
};

}  // namespace nanobind::detail

#endif  // VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_
