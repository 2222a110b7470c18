#include "vmm/python/core/options.h"

#include "vmm/python/core/handles.h"

namespace nb = nanobind;

namespace vmm::python {

ImportChoice::ImportChoice(bool writable, nb::handle device)
    : writable_(writable),
      device_(device.is_none() ? nullptr : DeviceOf(device)),
      listed_(device_.get()) {}

int ImportChoice::ordinal() const {
  return device_ == nullptr ? -1 : vmmshare_device_ordinal(device_.get());
}

vmmshare_import_options ImportChoice::options() const {
  auto options = Sized<vmmshare_import_options>();
  options.flags =
      VMMSHARE_IMPORT_HOST_ACCESS | (writable_ ? VMMSHARE_IMPORT_WRITABLE : 0);
  if (listed_ != nullptr) {
    options.devices = &listed_;
    options.device_count = 1;
  }
  return options;
}

vmmshare_memory_options MemoryOptions(std::uint64_t nbytes,
                                      nb::handle host_node) {
  auto options = Sized<vmmshare_memory_options>();
  options.size = nbytes;
  PutOnHost(options, host_node);
  return options;
}

std::uint32_t RdmaFlag(const std::string& rdma) {
  if (rdma == "off") return 0;
  if (rdma == "try") return VMMSHARE_RDMA_TRY;
  if (rdma == "require") return VMMSHARE_RDMA_REQUIRE;
  throw nb::value_error(
      ("rdma is '" + rdma + "'; expected 'off', 'try' or 'require'").c_str());
}

}  // namespace vmm::python
