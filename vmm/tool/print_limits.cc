// What a report for people says of the system around the process: see
// print_parts.h.
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/print_parts.h"

namespace vmm::tool {
namespace {

std::string ModulesText(const platform::NvidiaModules& modules) {
  const std::string driver =
      !modules.open.has_value() ? "the driver's are not seen"
      : *modules.open           ? "the driver's are the open ones"
                                : "the driver's are the closed ones";
  if (!modules.loaded.has_value()) {
    return absl::StrCat(
        driver,
        "; whether there are any for network cards and disks is not "
        "seen: no /sys/module");
  }
  return absl::StrCat(driver, "; for network cards and disks ",
                      modules.loaded->empty()
                          ? "none of nvidia_peermem, nvidia_fs and gdrdrv"
                          : absl::StrJoin(*modules.loaded, ", "));
}

std::string MpsText(const platform::MpsDaemon& mps) {
  if (!mps.has_socket) {
    return absl::StrCat("no control daemon: no socket in ", mps.directory);
  }
  return mps.process != 0
             ? absl::StrCat("its control daemon runs, process ", mps.process,
                            ", with its pipes in ", mps.directory)
             : absl::StrCat("a control daemon's socket is in ", mps.directory,
                            ", but its process is not seen: it has ended, or "
                            "is outside this container");
}

}  // namespace

void PrintLimits(const Report& report, Page* page) {
  const LimitsReport& limits = report.limits;
  const auto row = [page](absl::string_view label, const auto& value,
                          auto text) {
    // What this system does not have is not worth a line.
    if (absl::IsUnimplemented(value.status())) return;
    page->Row(label, Known(value, text));
  };
  page->Gap();
  page->Heading("limits and surroundings");
  row("descriptors", limits.descriptors,
      [](const platform::DescriptorLimits& d) {
        return absl::StrCat(LimitText(d.soft), " (at most ", LimitText(d.hard),
                            "); each shared chunk takes one");
      });
  row("/dev/shm", limits.shared_memory, [](const platform::FileSpace& space) {
    return absl::StrCat(Size(space.total), ", ", Size(space.free),
                        " free; legacy IPC events need it, vmmshare does not");
  });
  row("container", limits.container, [](const std::string& mark) {
    return mark.empty() ? "none seen"
                        : absl::StrCat("yes (", mark,
                                       "): share the sockets' folder with the "
                                       "peers' containers");
  });
  row("sockets", limits.socket_folder,
      [](const std::string& folder) { return "in " + folder; });
  row("WSL2", limits.wsl2, YesNo);
  row("ptrace scope", limits.ptrace_scope, [](int scope) {
    return absl::StrCat(scope,
                        scope == 0 ? "" : " (pidfd_getfd of others fails)",
                        "; vmmshare sends descriptors, which needs no ptrace");
  });
  row("MPS", limits.mps, &MpsText);
  if (limits.mps_threads.has_value() || limits.mps_memory.has_value()) {
    page->Row("MPS limits",
              absl::StrCat("threads ",
                           limits.mps_threads.has_value()
                               ? absl::StrCat(*limits.mps_threads, " %")
                               : "unset",
                           ", memory ", limits.mps_memory.value_or("unset"),
                           " (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, "
                           "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)"));
  }
  row("modules", limits.modules, &ModulesText);
  // Without NVML the note says so once.
  if (report.topology.nvml.ok()) {
    row("conf. computing", report.topology.confidential_computing,
        [](bool on) { return on ? "confidential computing is on" : "off"; });
  }
  page->Row("peers' death",
            limits.process_reference.ok()
                ? "can be watched"
                : absl::StrCat("cannot be watched before Linux 6.5: ",
                               limits.process_reference.message()));
  // Not without a device to map it.
  const char* const hidden =
      report.driver.ok() ? "; memory of a hidden device can be imported by "
                           "descriptor or NT handle, not by the other kinds"
                         : "";
  page->Row("visible devices",
            limits.visible_devices.has_value()
                ? absl::StrCat("CUDA_VISIBLE_DEVICES=\"",
                               *limits.visible_devices, "\"", hidden)
                : "all: CUDA_VISIBLE_DEVICES is not set");
  page->Row("hardware queues",
            absl::StrCat(limits.connections.has_value()
                             ? absl::StrCat("CUDA_DEVICE_MAX_CONNECTIONS=\"",
                                            *limits.connections, "\"")
                             : "8, with MPS 2: CUDA_DEVICE_MAX_CONNECTIONS is "
                               "not set",
                         "; as many streams that wait stop the others of "
                         "their process"));
}

}  // namespace vmm::tool
