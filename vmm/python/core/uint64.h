// UInt64<"nbytes">: an argument of that name, an int in Python, of which one that
// does not fit is a ValueError that has the name and the value.
#ifndef VMMSHARE_VMM_PYTHON_CORE_UINT64_H_
#define VMMSHARE_VMM_PYTHON_CORE_UINT64_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "vmm/python/core/object.h"
#include "vmm/python/core/text.h"

namespace vmm::python {

template <std::size_t size>
struct ArgumentName {
  // Of a literal in angle brackets.
  // NOLINTNEXTLINE(google-explicit-constructor): a template's argument.
  constexpr ArgumentName(const char (&literal)[size]) {
    std::copy_n(literal, size, text);
  }
  char text[size];
};

template <ArgumentName name>
struct UInt64 {
  // NOLINTNEXTLINE(google-explicit-constructor): it stands for the number.
  operator std::uint64_t() const { return value; }
  std::uint64_t value;
};

}  // namespace vmm::python

namespace nanobind::detail {

template <vmm::python::ArgumentName name>
struct type_caster<vmm::python::UInt64<name>> {
  using Value = vmm::python::UInt64<name>;
  static constexpr auto Name = const_name("int");
  template <typename>
  using Cast = Value;
  template <typename>
  static constexpr bool can_cast() {
    return true;
  }

  // Raises nothing, and so takes an int that does not fit as well.
  bool from_python(handle source, std::uint32_t flags,
                   cleanup_list* cleanup) noexcept {
    given = source;
    fits = number.from_python(source, flags, cleanup);
    if (fits || isinstance<int_>(source)) return true;
    // What stands for an int, as numpy.int64 does, is one when it is asked again.
    return (flags & cast_flags::convert) != 0 &&
           PyIndex_Check(source.ptr()) != 0;
  }

  explicit operator Value() const {
    if (fits) return {number.value};
    if (isinstance<bool_>(given)) {
      vmm::python::RefuseType(name.text, given, "an int");
    }
    const object exact = vmm::python::Steal(PyNumber_Index(given.ptr()));
    throw value_error((std::string(name.text) + " is " +
                       vmm::python::Utf8(str(exact)) +
                       "; expected 0 to 2**64 - 1")
                          .c_str());
  }

  make_caster<std::uint64_t> number;
  handle given;
  bool fits = false;
};

}  // namespace nanobind::detail

#endif  // VMMSHARE_VMM_PYTHON_CORE_UINT64_H_
