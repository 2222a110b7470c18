#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "vmm/python/core/handles.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/wait.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

struct Fetched {
  Holder<vmmshare_fetched> handle;
};

void Fetch(Fetched* self, const std::string& text, nb::handle timeout) {
  WithoutNul(text);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  new (self)
      Fetched{Holder<vmmshare_fetched>(ConnectOnAThread<vmmshare_fetched>(
          &vmmshare_fetched_close, timeout_ns,
          [driver = DefaultDriver(), text](std::int64_t round_ns,
                                           vmmshare_fetched** made,
                                           vmmshare_error** error) {
            return vmmshare_fetch(driver.get(), text.c_str(), round_ns, made,
                                  error);
          }))};
}

// (descriptor, bytes); of a fabric handle, which is bytes, (bytes, bytes).
nb::tuple Take(const Fetched& self, std::uint32_t chunk) {
  vmmshare_raw_handle raw{};
  Must([&](vmmshare_error** error) {
    return vmmshare_fetched_take(self.handle.get(), chunk, &raw, error);
  });
  if (raw.os_handle >= 0) return nb::make_tuple(raw.os_handle, raw.size);
  return nb::make_tuple(
      nb::bytes(reinterpret_cast<const char*>(raw.fabric), sizeof(raw.fabric)),
      raw.size);
}

std::optional<double> Recalled(const Fetched& self) {
  std::int64_t return_in_ns = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_fetched_lease(self.handle.get(), &return_in_ns, error);
  });
  return RecalledInSeconds(return_in_ns);
}

}  // namespace

void DefineFetched(nb::module_& module) {
  nb::class_<Fetched> type(module, "_Fetched");
  type.def("__init__", &Fetch, nb::arg("text"), nb::arg("timeout").none())
      .def_prop_ro("chunks",
                   [](const Fetched& self) {
                     return vmmshare_fetched_chunks(self.handle.get());
                   })
      .def("take", &Take, nb::arg("chunk"))
      .def_prop_ro("recalled_in", &Recalled);
  DefineClosing(type, "Gives the lease back.");
}

}  // namespace vmm::python
