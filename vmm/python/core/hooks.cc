#include <nanobind/stl/string.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "vmm/python/core/gil.h"
#include "vmm/python/core/handles.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

void SetTorchPool(int device, nb::handle pool) {
  // Kept meanwhile: another thread may close it.
  std::shared_ptr<vmmshare_pool> set;
  if (!pool.is_none()) set = nb::cast<Pool&>(pool).handle.shared();
  MustWithoutGil([&](vmmshare_error** error) {
    return vmmshare_torch_set_pool(device, set.get(), error);
  });
}

// A pool as CuPy has it: by an address alone, and its memory may outlive its
// allocator and the program's own handle. So this goes with the last of them all.
class CupyPool {
 public:
  explicit CupyPool(std::shared_ptr<vmmshare_pool> pool)
      : pool_(std::move(pool)) {}
  CupyPool(const CupyPool&) = delete;
  CupyPool& operator=(const CupyPool&) = delete;

  // CFunctionAllocator's, whose `param` is one of these. CuPy has the GIL, and both
  // may wait for the GPU.
  static void* Malloc(void* param, std::size_t size, int device) {
    auto* const self = static_cast<CupyPool*>(param);
    ++self->users_;
    void* made = nullptr;
    Released(
        [&] { made = vmmshare_cupy_malloc(self->pool_.get(), size, device); });
    if (made == nullptr) self->Drop();
    return made;
  }
  static void Free(void* param, void* pointer, int device) {
    if (pointer == nullptr) return;
    auto* const self = static_cast<CupyPool*>(param);
    Released([&] { vmmshare_cupy_free(self->pool_.get(), pointer, device); });
    self->Drop();
  }

  // One user less.
  void Drop() {
    if (--users_ == 0) delete this;
  }

 private:
  // `call` without the GIL, whether the thread has it or not.
  template <typename Call>
  static void Released(const Call& call) {
    if (Py_IsInitialized() == 0) return call();
    const WithGil held;  // The stable interface has no question who has it.
    const WithoutGil released;
    call();
  }

  const std::shared_ptr<vmmshare_pool> pool_;
  std::atomic<std::int64_t> users_ = 1;  // The allocator, and live blocks.
};

// The allocator's share of it.
struct CupyParam {
  explicit CupyParam(const Pool& pool)
      : hooks(new CupyPool(pool.handle.shared())) {}
  ~CupyParam() { hooks->Drop(); }
  CupyParam(const CupyParam&) = delete;
  CupyParam& operator=(const CupyParam&) = delete;

  CupyPool* const hooks;
};

void RaiseLastError() {
  Must([](vmmshare_error** error) { return vmmshare_hooks_last_error(error); });
}

}  // namespace

void DefineHooks(nb::module_& module) {
  module.def("_torch_set_pool", &SetTorchPool, nb::arg("device"),
             nb::arg("pool").none());
  module.def("_raise_last_hook_error", &RaiseLastError);
  nb::class_<CupyParam>(module, "_CupyParam")
      .def(nb::init<const Pool&>(), nb::arg("pool"))
      .def_prop_ro("address", [](const CupyParam& self) {
        return reinterpret_cast<std::uintptr_t>(self.hooks);
      });
  module.def("_hook_address", [](const std::string& name) {
    if (name == "cupy_malloc") {
      return reinterpret_cast<std::uintptr_t>(&CupyPool::Malloc);
    }
    if (name == "cupy_free") {
      return reinterpret_cast<std::uintptr_t>(&CupyPool::Free);
    }
    if (name == "torch_alloc") {
      return reinterpret_cast<std::uintptr_t>(&vmmshare_torch_alloc);
    }
    return reinterpret_cast<std::uintptr_t>(&vmmshare_torch_free);
  });
}

}  // namespace vmm::python
