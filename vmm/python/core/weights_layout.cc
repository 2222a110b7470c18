#include "vmm/python/core/weights_layout.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "vmm/python/core/safetensors.h"
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

}  // namespace

std::optional<std::uint64_t> AddTensor(WeightsLayout& layout,
                                       const vmmshare_tensor& tensor,
                                       const std::string& file) {
  vmmshare_tensor added = tensor;
  added.struct_size = sizeof(added);
  std::uint64_t place = 0;
  vmmshare_error* error = nullptr;
  const vmmshare_status status =
      vmmshare_weights_layout_add(layout.handle.get(), &added, &place, &error);
  if (status == VMMSHARE_ALREADY_EXISTS) {
    vmmshare_error_free(error);
    return std::nullopt;
  }
  if (status != VMMSHARE_OK && !file.empty()) {
    const std::string message = file + ": " + vmmshare_error_message(error);
    const std::string remedy = vmmshare_error_remedy(error);
    vmmshare_error_free(error);
    Raise(status, message.c_str(), remedy.c_str());
  }
  if (status != VMMSHARE_OK) Raise(status, error);
  ++layout.count;
  return place;
}

void DefineWeightsLayout(nb::module_& module) {
  nb::class_<WeightsLayout>(module, "_WeightsLayout")
      .def("__init__", &CreateLayout, nb::arg("fingerprint"))
      .def("note", &Note, nb::arg("key"), nb::arg("value"))
      .def("add_files", &AddFiles, nb::arg("headers"), nb::arg("paths"),
           nb::arg("select").none(), nb::arg("shard").none())
      .def_prop_ro("nbytes", [](const WeightsLayout& self) {
        return vmmshare_weights_layout_size(self.handle.get());
      });
}

}  // namespace vmm::python
