// Shapes and what is made of them, as Python has them.
#ifndef VMMSHARE_VMM_PYTHON_CORE_SHAPE_H_
#define VMMSHARE_VMM_PYTHON_CORE_SHAPE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "vmm/python/core/layout.h"

namespace vmm::python {

// Of an int, or any sequence of ints.
std::vector<std::int64_t> ShapeOf(nanobind::handle shape);

// Row-major, from `offset` bytes on. ValueError when it would overflow.
Layout DenseLayout(nanobind::handle shape, nanobind::handle dtype,
                   std::uint64_t offset);
// ValueError unless all of `layout` is within `size` bytes.
void CheckWithin(const Layout& layout, std::uint64_t size);

// Python's numbers, each `factor` times what it is.
nanobind::tuple TupleOf(const std::vector<std::int64_t>& numbers,
                        std::int64_t factor = 1);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_SHAPE_H_
