// What programs have their bytes in: bytes, and what is like them, as bytearray
// and memoryview are.
#ifndef VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_
#define VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

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
    value.bytes = vmm::python::BytesOrNull(source);
    return value.bytes.is_valid();
  }
  explicit operator Value() const { return value; }

  Value value;
};

}  // namespace nanobind::detail

#endif  // VMMSHARE_VMM_PYTHON_CORE_BYTES_LIKE_H_
