#include <nanobind/stl/string.h>

#include <string>

#include "vmm/python/core/handles.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

void SetTorchPool(int device, nb::handle pool) {
  vmmshare_pool* const set =
      pool.is_none() ? nullptr : nb::cast<Pool&>(pool).handle.get();
  Must([&](vmmshare_error** error) {
    return vmmshare_torch_set_pool(device, set, error);
  });
}

void RaiseLastError() {
  Must([](vmmshare_error** error) { return vmmshare_hooks_last_error(error); });
}

}  // namespace

void DefineHooks(nb::module_& module) {
  module.def("_torch_set_pool", &SetTorchPool, nb::arg("device"),
             nb::arg("pool").none());
  module.def("_raise_last_hook_error", &RaiseLastError);
  module.def("_pool_address", [](const Pool& pool) {
    return reinterpret_cast<std::uintptr_t>(pool.handle.get());
  });
  module.def("_hook_address", [](const std::string& name) {
    if (name == "cupy_malloc") {
      return reinterpret_cast<std::uintptr_t>(&vmmshare_cupy_malloc);
    }
    if (name == "cupy_free") {
      return reinterpret_cast<std::uintptr_t>(&vmmshare_cupy_free);
    }
    if (name == "torch_alloc") {
      return reinterpret_cast<std::uintptr_t>(&vmmshare_torch_alloc);
    }
    return reinterpret_cast<std::uintptr_t>(&vmmshare_torch_free);
  });
}

}  // namespace vmm::python
