#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/page.h"
#include "vmm/tool/print.h"

namespace vmm::tool {
namespace {

using fabric::Finding;

std::string Size(std::uint64_t bytes) {
  return bytes >= std::uint64_t{1} << 30
             ? absl::StrFormat("%.1f GiB",
                               static_cast<double>(bytes) / (1 << 30))
             : absl::StrFormat("%.1f MiB",
                               static_cast<double>(bytes) / (1 << 20));
}

// What is known, or why not.
template <typename T, typename Text>
std::string Known(const absl::StatusOr<T>& value, Text text) {
  return value.ok() ? std::string(text(*value))
                    : absl::StrCat("unknown: ", value.status().message());
}

std::string YesNo(bool value) { return value ? "yes" : "no"; }

std::string Tried(const KindReport& kind) {
  const std::string attribute =
      kind.attribute.ok()
          ? absl::StrCat("attribute ", YesNo(*kind.attribute))
          : absl::StrCat("attribute unknown (",
                         kind.attribute.status().message(), ")");
  if (!kind.tried.ok()) {
    return absl::StrCat(attribute, "; ", kind.tried.message());
  }
  return absl::StrCat(attribute, "; created, exported, imported, mapped",
                      kind.touched ? ", written and read" : "");
}

std::string Tried(const RdmaReport& way) {
  const std::string attribute =
      absl::StrCat("attribute ", Known(way.attribute, YesNo));
  if (!way.asked) {
    return absl::StrCat(attribute,
                        "; not tried: it takes a context, which --touch makes");
  }
  if (!way.tried.ok()) {
    return absl::StrCat(attribute, "; ", way.tried.message());
  }
  return absl::StrCat(attribute, way.id == kRdmaFlag
                                     ? "; memory made with it, and it has it"
                                     : "; exported");
}

bool SameReasons(const std::vector<Finding>& a, const std::vector<Finding>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Finding& x, const Finding& y) {
                      return x.text == y.text && x.remedy == y.remedy;
                    });
}

std::string ComputeMode(int mode) {
  switch (mode) {
    case CU_COMPUTEMODE_DEFAULT:
      return "default: any number of processes";
    case CU_COMPUTEMODE_PROHIBITED:
      return "PROHIBITED: no process";
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return "EXCLUSIVE_PROCESS: one process at a time, or MPS";
    default:
      return absl::StrCat("unknown: ", mode);
  }
}

std::string FabricText(const fabric::FabricInfo& info) {
  const std::string domain =
      absl::StrCat("cluster ",
                   info.in_a_cluster() ? fabric::UuidText(info.cluster)
                                       : "none (of this host alone)",
                   ", clique ", info.clique);
  if (info.of_driver) return absl::StrCat(domain, ", says the CUDA driver");
  return absl::StrFormat("%s, status %d (%s), %s", fabric::NameOf(info.state),
                         info.status, info.status_text, domain);
}

// Eight devices with one trouble would say it eight times. `first`: those of the
// first device.
void PrintReasons(std::size_t index, const std::vector<Finding>& reasons,
                  const std::vector<Finding>& first, Page* page) {
  if (index > 0 && !reasons.empty() && SameReasons(first, reasons)) {
    page->Row("why:", "as on device 0", 4, Ink::kWarn);
  } else {
    page->Findings(reasons, "why:", 4);
  }
}

void PrintLegacy(const std::optional<absl::Status>& tried, Page* page) {
  const absl::string_view name = NameOf(HandleKind::kLegacyIpc);
  if (!tried.has_value()) {
    page->MarkedRow(name, "-", Ink::kPlain,
                    "not tried: it takes a context, which --touch makes");
    return;
  }
  page->MarkedRow(name, tried->ok() ? "usable" : "refused",
                  tried->ok() ? Ink::kGood : Ink::kBad,
                  tried->ok() ? "by programs that accept it: it is weaker "
                                "(docs/any_memory.md)"
                              : tried->message());
}

void PrintDevice(const Report& report, std::size_t index, Page* page) {
  const DeviceReport& device = report.devices[index];
  const fabric::GpuTopology& gpu = report.topology.gpus[index];
  page->Gap();
  page->Heading(absl::StrCat("device ", device.device.ordinal(), ": ",
                             device.device.name(), ", ",
                             Known(device.memory, Size)));
  page->Row("UUID", device.device.uuid().ToString());
  for (std::size_t k = 0; k < device.kinds.size(); ++k) {
    const KindReport& kind = device.kinds[k];
    if (!kind.offered) {
      page->MarkedRow(NameOf(kind.kind), "-", Ink::kPlain,
                      "not of this operating system");
      continue;
    }
    page->MarkedRow(NameOf(kind.kind), kind.usable() ? "usable" : "refused",
                    kind.usable() ? Ink::kGood : Ink::kBad, Tried(kind));
    PrintReasons(index, kind.reasons, report.devices.front().kinds[k].reasons,
                 page);
  }
  PrintLegacy(device.legacy, page);
  page->Row("MPS", Known(device.mps_client, [](bool client) {
              return client ? "this process is a client: it runs on the GPU "
                              "beside other clients"
                            : "this process is no client: processes take turns "
                              "on the GPU";
            }));
  for (std::size_t w = 0; w < device.rdma.size(); ++w) {
    const RdmaReport& way = device.rdma[w];
    page->MarkedRow(way.name,
                    !way.asked     ? "-"
                    : way.usable() ? "usable"
                                   : "refused",
                    way.usable() ? Ink::kGood : Ink::kPlain, Tried(way));
    PrintReasons(index, way.reasons, report.devices.front().rdma[w].reasons,
                 page);
  }
  page->Row("compute mode", Known(device.compute_mode, &ComputeMode));
  // Without NVML the note says once what is not known.
  if (report.topology.nvml.ok() || gpu.fabric.ok()) {
    page->Row("fabric", Known(gpu.fabric, FabricText));
  }
  if (!report.topology.nvml.ok()) return;
  page->Row("MIG", Known(gpu.in_mig_mode, [&gpu](bool on) {
              return gpu.gpu.ok() && gpu.gpu->is_mig_instance
                         ? "an instance"
                         : (on ? "on" : "off");
            }));
}

// "peer access: both ways" and the like, of two directions.
std::string Directions(absl::string_view what, const PairReport& pair,
                       const absl::StatusOr<bool>& ab,
                       const absl::StatusOr<bool>& ba) {
  if (!ab.ok() || !ba.ok()) return absl::StrCat(what, " unknown");
  if (*ab && *ba) return absl::StrCat(what, " both ways");
  if (!*ab && !*ba) return absl::StrCat("no ", what);
  return absl::StrCat(what, " of ", *ab ? pair.a : pair.b, " to ",
                      *ab ? pair.b : pair.a, " only");
}

void PrintPairs(const Report& report, Page* page) {
  if (report.pairs.empty()) return;
  page->Gap();
  page->Heading("pairs of devices");
  for (const PairReport& pair : report.pairs) {
    std::vector<std::string> parts = {
        Directions("peer access", pair, pair.access_ab, pair.access_ba),
        Directions("atomics", pair, pair.atomics_ab, pair.atomics_ba),
        pair.nvlink.ok() ? (*pair.nvlink ? "NVLink" : "no NVLink")
                         : "NVLink unknown"};
    if (pair.performance_rank.ok()) {
      parts.push_back(absl::StrCat("rank ", *pair.performance_rank));
    }
    if (pair.one_domain.has_value()) {
      parts.push_back(*pair.one_domain ? "one fabric domain"
                                       : "not in one fabric domain");
    }
    page->Row(absl::StrCat(pair.a, " and ", pair.b),
              absl::StrJoin(parts, ", "));
  }
}

void PrintImex(const fabric::ImexTopology& imex, Page* page) {
  if (absl::IsUnimplemented(imex.major.status())) return;  // Windows.
  page->Gap();
  page->Heading("IMEX (for fabric handles only)");
  page->Row("driver", Known(imex.major, [](std::optional<unsigned> major) {
              return major.has_value()
                         ? absl::StrCat("offers channels, major ", *major)
                         : std::string("offers no channels");
            }));
  if (!imex.channels.ok()) {
    page->Row("channels", std::string(imex.channels.status().message()));
  } else if (imex.channels->empty()) {
    page->Row("channels", "none");
  } else {
    for (const platform::ImexChannel& channel : *imex.channels) {
      page->Row(channel.number.has_value()
                    ? absl::StrCat("channel ", *channel.number)
                    : "channel",
                absl::StrFormat(
                    "%s, mode %04o, owner %s, %s", channel.path, channel.mode,
                    channel.owner.text(),
                    channel.usable ? "usable" : channel.reason.message()));
    }
  }
  page->Row("daemon", Known(imex.daemon_seen, [](bool seen) {
              return seen ? "nvidia-imex is running"
                          : "no process nvidia-imex is visible here";
            }));
}

std::string Limit(std::uint64_t value) {
  return value > std::uint64_t{1} << 62 ? "unlimited" : absl::StrCat(value);
}

std::string ModulesText(const platform::NvidiaModules& modules) {
  const std::string driver =
      !modules.open.has_value() ? "the driver's are not seen"
      : *modules.open           ? "the driver's are the open ones"
                                : "the driver's are the closed ones";
  return absl::StrCat(driver, "; for network cards and disks ",
                      modules.loaded.empty()
                          ? "none of nvidia_peermem, nvidia_fs and gdrdrv"
                          : absl::StrJoin(modules.loaded, ", "));
}

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
        return absl::StrCat(Limit(d.soft), " (at most ", Limit(d.hard),
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
  row("WSL2", limits.wsl2, YesNo);
  row("ptrace scope", limits.ptrace_scope, [](int scope) {
    return absl::StrCat(scope,
                        scope == 0 ? "" : " (pidfd_getfd of others fails)",
                        "; vmmshare sends descriptors, which needs no ptrace");
  });
  row("MPS", limits.mps, [](const platform::MpsDaemon& mps) {
    if (!mps.has_socket) {
      return absl::StrCat("no control daemon: no socket in ", mps.directory);
    }
    return mps.process != 0
               ? absl::StrCat("its control daemon runs, process ", mps.process,
                              ", with its pipes in ", mps.directory)
               : absl::StrCat("a control daemon's socket is in ", mps.directory,
                              ", but its process is not seen: it has ended, or "
                              "is outside this container");
  });
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
                : absl::StrCat("cannot be watched: ",
                               limits.process_reference.message()));
  page->Row(
      "visible devices",
      limits.visible_devices.has_value()
          ? absl::StrCat("CUDA_VISIBLE_DEVICES=\"", *limits.visible_devices,
                         "\"; memory of a hidden device can be imported")
          : "all: CUDA_VISIBLE_DEVICES is not set");
}

void PrintNotes(const std::vector<Finding>& notes, Page* page) {
  if (notes.empty()) return;
  page->Gap();
  page->Heading("notes");
  page->Findings(notes, "note:", 2);
}

void PrintSummary(const Report& report, Page* page) {
  if (report.devices.empty()) return;
  page->Gap();
  for (const KindReport& first : report.devices.front().kinds) {
    const HandleKind kind = first.kind;
    const std::vector<int> without = report.WithoutKind(kind);
    const bool required = report.required == kind;
    // That of another operating system says nothing.
    if (!first.offered && !required) continue;
    const bool good = without.empty();
    const std::string where =
        good ? "on every device"
             : (without.size() == report.devices.size()
                    ? "on no device"
                    : absl::StrCat("not on device ",
                                   absl::StrJoin(without, ", ")));
    page->MarkedRow(
        NameOf(kind), good ? "usable" : "refused",
        good ? Ink::kGood : Ink::kBad,
        absl::StrCat("works ", where, required ? "; it is required" : ""));
  }
}

}  // namespace

std::string AsText(const Report& report, bool colour) {
  Page page(colour);
  page.Row("driver:",
           report.driver.ok()
               ? report.driver->Describe()
               : absl::StrCat("none: ", report.driver.status().message()),
           0, report.driver.ok() ? Ink::kPlain : Ink::kBad);
  page.Row("NVML:",
           !report.topology.nvml.ok()
               ? "cannot be asked (see notes)"
               : Known(report.topology.driver_version,
                       [](const std::string& version) {
                         return absl::StrCat("driver package ", version);
                       }),
           0);
  if (!report.devices_status.ok()) {
    page.Row("devices:", report.devices_status.message(), 0, Ink::kBad);
  }
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    PrintDevice(report, i, &page);
  }
  PrintPairs(report, &page);
  PrintImex(report.topology.imex, &page);
  PrintLimits(report, &page);
  PrintNotes(report.notes, &page);
  PrintSummary(report, &page);
  return std::move(page).Take();
}

}  // namespace vmm::tool
