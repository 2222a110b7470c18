// How memory is asked for.
#ifndef VMMSHARE_VMM_PYTHON_CORE_OPTIONS_H_
#define VMMSHARE_VMM_PYTHON_CORE_OPTIONS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "vmm/c/memory.h"
#include "vmm/python/core/text.h"

namespace vmm::python {

// How memory of another process is mapped here. options() is valid while this
// lives.
class ImportChoice {
 public:
  // `device` as DeviceOf(): whose kernels are to reach it. None: the one on which
  // it lives.
  ImportChoice(bool writable, nanobind::handle device);
  int ordinal() const;  // Of the device that was named; else -1.
  vmmshare_import_options options() const;

 private:
  bool writable_;
  std::shared_ptr<vmmshare_device> device_;
  const vmmshare_device* listed_;  // The list that options() points to.
};
// The bits of `flags` for "off", "try" and "require"; ValueError for others.
std::uint32_t RdmaFlag(const std::string& rdma);

// This system's own kind of handle and, where that does not work, legacy IPC.
inline constexpr std::uint32_t kOrLegacy =
    VMMSHARE_KIND_POSIX_FD | VMMSHARE_KIND_WIN32 | VMMSHARE_KIND_LEGACY_IPC;

// On the host's node `host_node`, unless that is None.
template <typename Options>
void PutOnHost(Options& options, nanobind::handle host_node) {
  if (host_node.is_none()) return;
  options.flags |= VMMSHARE_ON_HOST;
  options.numa_node = IntOf("host_node", host_node);
}

// Memory of a device or, unless that is None, of the host's node `host_node`.
vmmshare_memory_options MemoryOptions(std::uint64_t nbytes,
                                      nanobind::handle host_node);

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_OPTIONS_H_
