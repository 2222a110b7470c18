#include "vmm/python/core/weights_layout.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <vector>

#include "vmm/python/core/array.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

void CreateLayout(WeightsLayout* self, const std::string& fingerprint) {
  WithoutNul(fingerprint);
  new (self) WeightsLayout{Holder<vmmshare_weights_layout>(Make(
      &vmmshare_weights_layout_close,
      [&](vmmshare_weights_layout** made, vmmshare_error** error) {
        return vmmshare_weights_layout_create(fingerprint.c_str(), made, error);
      }))};
}

void Note(WeightsLayout& self, const std::string& key,
          const std::string& value) {
  WithoutNul(key);
  WithoutNul(value);
  Must([&](vmmshare_error** error) {
    return vmmshare_weights_layout_note(self.handle.get(), key.c_str(),
                                        value.c_str(), error);
  });
}

std::uint64_t Add(WeightsLayout& self, const std::string& name,
                  nb::handle dtype, nb::handle shape) {
  WithoutNul(name);
  const std::vector<std::int64_t> lengths = ShapeOf(shape);
  vmmshare_tensor tensor{};
  tensor.name = name.c_str();
  tensor.dtype = DTypeOf(dtype).code;
  tensor.rank = static_cast<std::uint32_t>(lengths.size());
  tensor.shape = lengths.data();
  return AddTensor(self, tensor);
}

}  // namespace

std::uint64_t AddTensor(WeightsLayout& layout, const vmmshare_tensor& tensor) {
  vmmshare_tensor added = tensor;
  added.struct_size = sizeof(added);
  std::uint64_t place = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_weights_layout_add(layout.handle.get(), &added, &place,
                                       error);
  });
  ++layout.count;
  return place;
}

void DefineWeightsLayout(nb::module_& module) {
  nb::class_<WeightsLayout>(module, "_WeightsLayout")
      .def("__init__", &CreateLayout, nb::arg("fingerprint"))
      .def("note", &Note, nb::arg("key"), nb::arg("value"))
      .def("add", &Add, nb::arg("name"), nb::arg("dtype").none(),
           nb::arg("shape"))
      .def_prop_ro("nbytes", [](const WeightsLayout& self) {
        return vmmshare_weights_layout_size(self.handle.get());
      });
}

}  // namespace vmm::python
