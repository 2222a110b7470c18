// Memory that goes back to its device for a while: what vmmshare.torch.Region is made of.
#include "vmm/python/core/handles.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

struct Region {
  Holder<vmmshare_region> handle;
};

Object<Region> Create(nb::handle device) {
  const auto on = DeviceOf(device);
  return Give(new Region{Holder<vmmshare_region>(
      Make(&vmmshare_region_close,
           [&](vmmshare_region** out, vmmshare_error** error) {
             return vmmshare_region_create(on.get(), out, error);
           }))});
}

// Runs `call(region, error)` without the GIL, for it may take long.
template <typename Call>
void Do(const Region& self, const Call& call) {
  const auto region = self.handle.shared();
  MustWithoutGil(
      [&](vmmshare_error** error) { return call(region.get(), error); });
}

void Release(const Region& self, bool keep) {
  Do(self, [&](vmmshare_region* region, vmmshare_error** error) {
    return vmmshare_region_release(
        region, keep ? 0 : std::uint32_t{VMMSHARE_KEEP_NOTHING}, error);
  });
}

nb::dict Statistics(const Region& self) {
  auto now = Sized<vmmshare_region_statistics>();
  Do(self, [&](vmmshare_region* region, vmmshare_error** error) {
    return vmmshare_region_get_statistics(region, &now, error);
  });
  nb::dict made;
  made["allocations"] = now.allocations;
  made["bytes"] = now.bytes;
  made["kept"] = now.kept;
  made["released"] = now.is_released != 0;
  return made;
}

// None: no region is set from now on.
void SetForTorch(int device, nb::handle region) {
  const auto set =
      region.is_none() ? nullptr : nb::cast<Region&>(region).handle.shared();
  Must([&](vmmshare_error** error) {
    return vmmshare_torch_set_region(device, set.get(), error);
  });
}

}  // namespace

void DefineRegion(nb::module_& module) {
  nb::class_<Region> type(module, "_Region");
  type.def("release", &Release, nb::kw_only(), nb::arg("keep"))
      .def("restore",
           [](const Region& self) { Do(self, &vmmshare_region_restore); })
      .def("statistics", &Statistics);
  DefineClosing(type, "PyTorch's memory of it stays until that is freed.");
  module.def("_region", &Create, nb::arg("device"));
  module.def("_torch_set_region", &SetForTorch, nb::arg("device"),
             nb::arg("region").none());
}

}  // namespace vmm::python
