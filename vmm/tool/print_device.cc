// A device of a Report for people: see print_parts.h.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "vmm/tool/print_parts.h"

namespace vmm::tool {
namespace {

using fabric::Finding;

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
                    "not tried: it takes a context, which --touch makes where "
                    "the device gives one");
    return;
  }
  page->MarkedRow(
      name, tried->ok() ? "exported" : "refused",
      tried->ok() ? Ink::kGood : Ink::kBad,
      tried->ok() ? absl::string_view(
                        "only another process can open it; for programs that "
                        "accept it, for it is weaker (docs/any_memory.md)")
                  : tried->message());
}

}  // namespace

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

}  // namespace vmm::tool
