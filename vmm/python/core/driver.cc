#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "vmm/python/core/gil.h"
#include "vmm/python/core/handles.h"
#include "vmm/python/core/path.h"
#include "vmm/python/core/stream.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Guarded by the GIL.
std::shared_ptr<vmmshare_driver>& ChosenDriver() {
  // Never destroyed: arrays outlive the module.
  static auto* const chosen = new std::shared_ptr<vmmshare_driver>;
  return *chosen;
}

Object<Device> MakeDevice(std::shared_ptr<vmmshare_device> handle) {
  return Give(new Device{Holder<vmmshare_device>(std::move(handle))});
}

std::shared_ptr<vmmshare_device> OpenDevice(int ordinal) {
  const auto driver = DefaultDriver();
  return Make(&vmmshare_device_close,
              [&](vmmshare_device** made, vmmshare_error** error) {
                return vmmshare_device_open(driver.get(), ordinal, made, error);
              });
}

void LoadDriver(Driver* self, const PathLike& file) {
  const std::string path = PathOf(file, "path");
  new (self) Driver{Holder<vmmshare_driver>(Make(
      &vmmshare_driver_close,
      [&](vmmshare_driver** made, vmmshare_error** error) {
        return path.empty() ? vmmshare_driver_load_system(made, error)
                            : vmmshare_driver_load(path.c_str(), made, error);
      }))};
}

// What the driver refuses to answer is none: the call that puts something on the
// stream says why.
bool IsCaptured(std::intptr_t stream) {
  void* const on = OneStreamOf(stream);
  const auto driver = DefaultDriver();
  std::int32_t is_captured = 0;
  const WithoutGil released;
  vmmshare_stream_is_captured(driver.get(), on, &is_captured, nullptr);
  return is_captured == 1;
}

}  // namespace

std::shared_ptr<vmmshare_driver> DefaultDriver() {
  if (ChosenDriver() == nullptr) {
    auto loaded = Make(&vmmshare_driver_close, &vmmshare_driver_load_system);
    ChosenDriver() = std::move(loaded);
  }
  return ChosenDriver();
}

std::shared_ptr<vmmshare_device> DeviceOf(nb::handle device) {
  if (nb::isinstance<Device>(device)) {
    return nb::cast<Device&>(device).handle.shared();
  }
  if (PyIndex_Check(device.ptr()) != 0) {
    return OpenDevice(IntOf("device", device));
  }
  if (!nb::isinstance<nb::str>(device)) {
    RefuseType("device", device, "an ordinal, a UUID as a str, or a Device");
  }
  const std::string wanted = Utf8(device);
  std::string seen;
  for (const auto& one : AllDevices()) {
    const std::string uuid = vmmshare_device_uuid_text(one.get());
    if (uuid == wanted) return one;
    seen += (seen.empty() ? "" : ", ") + uuid;
  }
  Raise(
      VMMSHARE_NOT_FOUND,
      ("no device has the UUID \"" + wanted + "\"; there are " + seen).c_str(),
      "Check CUDA_VISIBLE_DEVICES, or see vmmshare.devices().");
}

std::vector<std::shared_ptr<vmmshare_device>> AllDevices() {
  const auto driver = DefaultDriver();
  std::int32_t count = 0;
  Must([&](vmmshare_error** error) {
    return vmmshare_device_count(driver.get(), &count, error);
  });
  std::vector<std::shared_ptr<vmmshare_device>> devices;
  for (int i = 0; i < count; ++i) devices.push_back(OpenDevice(i));
  return devices;
}

std::uint64_t MarkOf(const vmmshare_device* device) {
  std::uint8_t uuid[16];
  vmmshare_device_uuid(device, uuid);
  std::uint64_t mark = 0;
  for (int i = 7; i >= 0; --i) mark = mark << 8 | uuid[i];
  return mark;
}

Located Locate(const vmmshare_driver* driver, std::uint64_t address,
               int opened_for) {
  auto info = Sized<vmmshare_pointer_info>();
  Must([&](vmmshare_error** error) {
    return vmmshare_classify(driver, address, &info, error);
  });
  std::int32_t device = opened_for;
  if (info.numa_node < 0 && opened_for < 0) {
    Must([&](vmmshare_error** error) {
      return vmmshare_reached_from(driver, address, &device, error);
    });
  }
  return {.on_host = info.numa_node >= 0,
          .device = device < 0 ? 0 : device,
          .base = info.base,
          .size = info.size};
}

void DefineDriver(nb::module_& module) {
  nb::class_<Driver> driver(
      module, "Driver",
      "A CUDA driver. Most programs need none of their own: the system's is "
      "loaded by\nthe first call that needs it. Loading makes no context.");
  driver
      .def("__init__", &LoadDriver, nb::arg("path") = "",
           "The driver in the file `path`, which must be absolute; without it "
           "the system's.\nNotFound when there is none or it sees no device.")
      .def_prop_ro(
          "version",
          [](const Driver& d) {
            return vmmshare_driver_version(d.handle.get());
          },
          "As CUDA_VERSION: 13000 is 13.0.")
      .def_prop_ro(
          "is_host_memory",
          [](const Driver& d) {
            return vmmshare_driver_is_host_memory(d.handle.get()) == 1;
          },
          "Whether it is the host-memory driver, for tests without a "
          "GPU.")
      .def("__repr__", [](const Driver& d) {
        return Described("Driver", d.handle, [](const vmmshare_driver* it) {
          return std::string(" ") + vmmshare_driver_describe(it);
        });
      });
  DefineClosing(driver, "Lets go of it; it stays loaded.");

  nb::class_<Device>(module, "Device",
                     "A GPU that this process sees. See devices().")
      .def_prop_ro(
          "ordinal",
          [](const Device& d) {
            return vmmshare_device_ordinal(d.handle.get());
          },
          "Its number in this process; others have other numbers.")
      .def_prop_ro("name",
                   [](const Device& d) {
                     return std::string(vmmshare_device_name(d.handle.get()));
                   })
      .def_prop_ro(
          "uuid",
          [](const Device& d) {
            return std::string(vmmshare_device_uuid_text(d.handle.get()));
          },
          "The same in every process: \"GPU-f0613ff9-...\".")
      .def(
          "can_access",
          [](const Device& d, const Device& owner) {
            std::int32_t can = 0;
            Must([&](vmmshare_error** error) {
              return vmmshare_device_can_access(
                  d.handle.get(), owner.handle.get(), &can, error);
            });
            return can == 1;
          },
          nb::arg("owner"), "Whether it reaches the memory of `owner`.")
      .def("__repr__", [](const Device& d) {
        return Described("Device", d.handle, [](const vmmshare_device* it) {
          return " " + std::to_string(vmmshare_device_ordinal(it)) + ": " +
                 vmmshare_device_name(it) + ", " +
                 vmmshare_device_uuid_text(it);
        });
      });

  module.def(
      "set_driver", [](const Driver& d) { ChosenDriver() = d.handle.shared(); },
      nb::arg("driver"), "From now on calls that name no driver use this one.");
  module.def("_is_captured", &IsCaptured, nb::arg("stream"));
  module.def(
      "devices",
      [] {
        nb::typed<nb::list, Device> list;
        for (auto& one : AllDevices()) list.append(MakeDevice(one));
        return list;
      },
      "Every GPU that this process sees, by ordinal. Makes no context.");
  module.def(
      "_doctor",
      [](const PathLike& driver) {
        const std::string path = PathOf(driver, "driver");
        vmmshare_text* text = nullptr;
        const auto json = Make(
            &vmmshare_text_free,
            [&](vmmshare_text** made, vmmshare_error** error) {
              return vmmshare_doctor_report(
                  path.empty() ? nullptr : path.c_str(), made, &text, error);
            });
        const std::shared_ptr<vmmshare_text> own(text, &vmmshare_text_free);
        return nb::make_tuple(vmmshare_text_get(json.get()),
                              vmmshare_text_get(text));
      },
      nb::arg("driver"));
  module.def(
      "main",
      [](const std::vector<nb::bytes>& words) {
        std::vector<const char*> pointers;
        for (const nb::bytes& word : words) pointers.push_back(word.c_str());
        const WithoutGil released;
        return vmmshare_main(static_cast<int>(pointers.size()),
                             pointers.data());
      },
      nb::arg("words"),
      "The command `vmmshare`, with words as the system has them: its exit "
      "code.");
}

}  // namespace vmm::python
