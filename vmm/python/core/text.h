// What Python passes as text and numbers, checked.
#ifndef VMMSHARE_VMM_PYTHON_CORE_TEXT_H_
#define VMMSHARE_VMM_PYTHON_CORE_TEXT_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "vmm/python/core/error.h"
#include "vmm/python/core/object.h"

namespace vmm::python {

// For text that goes on as a C string, which would end at its first NUL: another
// name than was meant. Returns `text`; raises InvalidArgument for one with a NUL.
inline const std::string& WithoutNul(const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    Raise(VMMSHARE_INVALID_ARGUMENT, "a text has a NUL in it",
          "Pass the name, path or share's text without.");
  }
  return text;
}

// TypeError for `what`, an argument that is `given` and was to be `expected`.
[[noreturn]] inline void RefuseType(const std::string& what,
                                    nanobind::handle given,
                                    const char* expected) {
  throw nanobind::type_error((what + ": expected " + expected + ", not a " +
                              nanobind::inst_name(given).c_str())
                                 .c_str());
}

// Of a str that may have no UTF-8, which has backslashes then. Never raises for
// what it is given.
inline std::string Utf8(nanobind::handle text) {
  const auto bytes = Steal<nanobind::bytes>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  return {bytes.c_str(), bytes.size()};
}

// The text of a str, as long as that lives. Raises InvalidArgument for one that has
// no UTF-8.
inline std::string_view Utf8View(nanobind::handle text) {
  Py_ssize_t size = 0;
  const char* const begin = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (begin == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) {
      throw nanobind::python_error();  // MemoryError.
    }
    PyErr_Clear();
    Raise(VMMSHARE_INVALID_ARGUMENT,
          ("\"" + Utf8(text) + "\" is no Unicode text: it has a surrogate")
              .c_str(),
          "Pass it without, as text.encode() takes it.");
  }
  return {begin, static_cast<std::size_t>(size)};
}

// Of an int or what stands for one, as numpy.int64 does. TypeError for others,
// OverflowError above 64 bits.
inline std::int64_t Int64Of(nanobind::handle number) {
  const auto exact = Steal(PyNumber_Index(number.ptr()));
  const long long value = PyLong_AsLongLong(exact.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw nanobind::python_error();
  }
  return value;
}

// The same of the argument `what`, for an int of C++. The TypeError, and a
// ValueError for one that does not fit, name it.
inline int IntOf(const char* what, nanobind::handle number) {
  if (PyIndex_Check(number.ptr()) == 0) RefuseType(what, number, "an int");
  const auto exact = Steal(PyNumber_Index(number.ptr()));
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(exact.ptr(), &overflow);
  if (overflow != 0 || value < std::numeric_limits<int>::min() ||
      value > std::numeric_limits<int>::max()) {
    throw nanobind::value_error((std::string(what) + " is " +
                                 Utf8(nanobind::str(exact)) +
                                 "; expected -2**31 to 2**31 - 1")
                                    .c_str());
  }
  return static_cast<int>(value);
}

// What `body` returns. What it raises of this module's own says of which tensor
// of several, unless that has the empty name of one alone.
template <typename Body>
auto OfTensor(nanobind::handle name, const Body& body) {
  try {
    return body();
  } catch (const nanobind::builtin_exception& raised) {
    const std::string text = Utf8(nanobind::repr(name));
    if (text == "''") throw;
    throw nanobind::builtin_exception(
        raised.type(), ("tensor " + text + ": " + raised.what()).c_str());
  }
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_TEXT_H_
