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

std::vector<std::int64_t> ShapeOf(nb::handle shape) {
  std::vector<std::int64_t> lengths;
  if (PyIndex_Check(shape.ptr()) == 0 &&
      (nb::isinstance<nb::str>(shape) || !nb::hasattr(shape, "__iter__"))) {
    RefuseType("shape", shape, "an int or ints");
  }
  try {
    if (PyIndex_Check(shape.ptr()) != 0) {
      lengths.push_back(Int64Of(shape));
    } else {
      for (nb::handle length : shape) lengths.push_back(Int64Of(length));
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
