// Which tensors a set will have.
#ifndef VMMSHARE_VMM_PYTHON_CORE_WEIGHTS_LAYOUT_H_
#define VMMSHARE_VMM_PYTHON_CORE_WEIGHTS_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "vmm/c/weights.h"
#include "vmm/python/core/handles.h"

namespace vmm::python {

struct WeightsLayout {
  Holder<vmmshare_weights_layout> handle;
  std::uint64_t count = 0;
};

// Returns the place of one more; none when the name is taken. What is raised
// begins with `file`, the name of the one that it is of, unless that is empty.
std::optional<std::uint64_t> AddTensor(WeightsLayout& layout,
                                       const vmmshare_tensor& tensor,
                                       const std::string& file = "");

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_WEIGHTS_LAYOUT_H_
