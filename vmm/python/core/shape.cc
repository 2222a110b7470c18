#include "vmm/python/core/shape.h"

#include <string>

#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {

nb::tuple TupleOf(const std::vector<std::int64_t>& numbers,
                  std::int64_t factor) {
  nb::list list;
  // By Python's numbers: a stride of one element may be any.
  for (const std::int64_t number : numbers) {
    list.append(nb::int_(number) * nb::int_(factor));
  }
  return nb::tuple(list);
}

namespace {

// Of what is one length; null for what may be several. An array of NumPy's says that
// it is an int, and with dimensions of its own is none.
nb::object LengthOrNull(nb::handle shape) {
  if (PyIndex_Check(shape.ptr()) == 0) return {};
  nb::object length = nb::steal(PyNumber_Index(shape.ptr()));
  if (length.is_valid()) return length;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0 ||
      PySequence_Check(shape.ptr()) == 0) {
    throw nb::python_error();
  }
  PyErr_Clear();
  return length;
}

}  // namespace

std::vector<std::int64_t> ShapeOf(nb::handle shape) {
  std::vector<std::int64_t> lengths;
  const nb::object length = LengthOrNull(shape);
  // Bytes are ints for Python, and have no lengths for us; sets have no order.
  if (!length.is_valid() &&
      (PySequence_Check(shape.ptr()) == 0 || nb::isinstance<nb::str>(shape) ||
       nb::isinstance<nb::bytes>(shape) ||
       nb::isinstance<nb::bytearray>(shape))) {
    RefuseType("shape", shape, "an int or a sequence of ints");
  }
  try {
    if (length.is_valid()) {
      lengths.push_back(Int64Of(length));
    } else {
      for (nb::handle one : shape) lengths.push_back(Int64Of(one));
    }
  } catch (nb::python_error& raised) {
    if (!raised.matches(PyExc_OverflowError)) throw;
    throw nb::value_error("a length or stride is above 63 bits");
  }
  if (lengths.size() > kMaxDimensions) {
    throw nb::value_error("an array has at most 32 dimensions");
  }
  return lengths;
}

Layout DenseLayout(nb::handle shape, nb::handle dtype, std::uint64_t offset) {
  Layout layout;
  layout.dtype = &DTypeOf(dtype);
  layout.shape = ShapeOf(shape);
  layout.offset = offset;
  if (!DenseBytes(layout.shape, layout.dtype->itemsize()).has_value()) {
    throw nb::value_error(("the shape " + Utf8(nb::repr(shape)) +
                           " has a length below 0, or overflows")
                              .c_str());
  }
  layout.strides = DenseStrides(layout.shape);
  return layout;
}

void CheckWithin(const Layout& layout, std::uint64_t size) {
  const std::string wrong = WhyOutside(layout, size);
  if (!wrong.empty()) throw nb::value_error(("no such view: " + wrong).c_str());
}

}  // namespace vmm::python
