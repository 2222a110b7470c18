// Where arrays of this process lie: what a tensor set is put from.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "vmm/python/core/array.h"
#include "vmm/python/core/exchange.h"
#include "vmm/python/core/foreign.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Bytes from the first element to the last, and whether the elements fill these,
// each once, in whatever order.
std::pair<std::uint64_t, bool> Measure(const std::vector<std::int64_t>& shape,
                                       const std::vector<std::int64_t>& strides,
                                       std::int64_t itemsize) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;
  std::int64_t count = 1;  // From the first element to the last.
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {0, true};
    std::int64_t step = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(count, step, &count)) {
      throw nb::value_error("the array's shape and strides overflow");
    }
    if (shape[i] != 1) dimensions.emplace_back(strides[i], shape[i]);
  }
  std::int64_t nbytes = 0;
  if (__builtin_mul_overflow(count, itemsize, &nbytes)) {
    throw nb::value_error("the array's shape and strides overflow");
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t expected = 1;
  bool is_dense = true;
  for (const auto& [stride, length] : dimensions) {
    is_dense = stride == expected;
    if (!is_dense) break;
    expected *= length;  // At most `count`.
  }
  return {static_cast<std::uint64_t>(nbytes), is_dense};
}

nb::tuple MeasureArray(nb::handle shape, nb::handle strides,
                       std::int64_t itemsize) {
  const auto [nbytes, is_dense] =
      Measure(ShapeOf(shape), ShapeOf(strides), itemsize);
  return nb::make_tuple(nbytes, is_dense);
}

// Where each array lies: (name, address, dtype, shape, strides, on_device,
// itemsize, nbytes, is_dense). Those of `type`, unless that is None, are read as tensors.
nb::list ReadArrays(const nb::dict& arrays, nb::handle type) {
  std::optional<TensorClass> tensors;
  if (!type.is_none()) tensors.emplace(type, nb::none());
  nb::list rows;
  for (const auto [name, object] : arrays) {
    if (!nb::isinstance<nb::str>(name)) RefuseType("the name", name, "a str");
    Layout layout;
    DLDevice device{};
    std::uint64_t address = 0;
    bool on_device = false;
    if (tensors.has_value() && nb::isinstance(object, type)) {
      address = tensors->Read(object, &layout, &device);
      tensors->CheckNotLazy(name, object, layout.dtype);
      // Not all versions of PyTorch say it by DLPack.
      on_device = nb::cast<bool>(object.attr("is_cuda"));
    } else {
      // One alone has no name.
      const std::string which =
          nb::len(name) == 0 ? "the array" : "array " + Utf8(nb::repr(name));
      address = ReadForeign(which, object, &layout, &device);
      on_device = device.device_type != kDLCPU;
    }
    const std::int64_t itemsize = layout.dtype->itemsize();
    const auto [nbytes, is_dense] =
        Measure(layout.shape, layout.strides, itemsize);
    rows.append(nb::make_tuple(name, address, layout.dtype->name,
                               TupleOf(layout.shape), TupleOf(layout.strides),
                               on_device, itemsize, nbytes, is_dense));
  }
  return rows;
}

}  // namespace

void DefineReadArrays(nb::module_& module) {
  module.def("_measure", &MeasureArray, nb::arg("shape"), nb::arg("strides"),
             nb::arg("itemsize"));
  module.def("_read_arrays", &ReadArrays, nb::arg("arrays"),
             nb::arg("type").none());
}

}  // namespace vmm::python
