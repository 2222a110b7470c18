#include "vmm/tool/examine_rdma.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "vmm/memory/allocation.h"
#include "vmm/memory/dma_buf.h"
#include "vmm/tool/ask_device.h"

namespace vmm::tool {
namespace {

using fabric::Finding;

constexpr std::uint64_t kTrial = std::uint64_t{2} << 20;

absl::StatusOr<Allocation> Make(const Device& device, Rdma rdma) {
  return Allocation::Create(
      device,
      {.size = kTrial, .sharing = SharePolicy::Private(), .rdma = rdma});
}

absl::Status TryDmaBuf(const absl::StatusOr<Allocation>& memory,
                       DmaBufMapping mapping) {
  if (!memory.ok()) return memory.status();
  return ExportDmaBufs(*memory, {.mapping = mapping}).status();
}

constexpr char kNetworkCards[] = "network cards";

Finding WhyNoFlag(const RdmaReport& report) {
  if (const auto full = OutOfMemory(report.tried, kNetworkCards)) return *full;
  constexpr char kRemedy[] =
      "Let network cards use host memory, or ask for the flag by \"try\" and "
      "see whether it was had.";
  if (report.attribute.ok() && !*report.attribute) {
    return {"rdma-not-supported",
            "the device has no gpuDirectRDMACapable memory", kRemedy};
  }
  return {"rdma-refused",
          "the driver refuses, whatever the attribute says, as is reported of "
          "GB10 and of WSL2",
          kRemedy};
}

Finding WhyNoDmaBuf(const RdmaReport& report,
                    const absl::StatusOr<platform::NvidiaModules>& modules) {
  if (const auto full = OutOfMemory(report.tried, kNetworkCards)) return *full;
  // What the driver itself does not support has its result.
  if (absl::IsUnimplemented(report.tried) &&
      !platform::ResultOf(report.tried).has_value()) {
    return {"dma-buf-not-known", "this system or its driver does not have it",
            "Use Linux and a driver of CUDA 11.7 or newer, 12.8 for the PCIe "
            "mapping."};
  }
  if (report.id == kDmaBufPcie) {
    return {"no-pcie-mapping", "the driver refuses the mapping over PCIe",
            "Leave the mapping to the driver, where the line above says that "
            "this works."};
  }
  if (modules.ok() && modules->open == false) {
    return {"closed-modules",
            "the kernel's part of the driver is the closed one, which has no "
            "dma-buf",
            "Install NVIDIA's open kernel modules, or load nvidia_peermem and "
            "register the address itself."};
  }
  return {"no-dma-buf", "the driver has no dma-buf of this memory",
          "It takes NVIDIA's open kernel modules and Linux 5.12; with others, "
          "load nvidia_peermem and register the address itself."};
}

}  // namespace

Finding NoContext() {
  return {"no-context-to-try", "the device gives this process no context",
          "The message says why; without one nothing can use the memory."};
}

std::optional<Finding> OutOfMemory(const absl::Status& tried,
                                   absl::string_view what) {
  if (platform::ResultOf(tried) != CUDA_ERROR_OUT_OF_MEMORY) {
    return std::nullopt;
  }
  return Finding{
      "out-of-memory",
      absl::StrCat("the device has no memory left to try with; this says "
                   "nothing of ",
                   what),
      "Free some: nvidia-smi shows who holds it with a context, `vmmshare keep "
      "--list` what a keeper holds, which has none."};
}

std::vector<RdmaReport> ExamineRdma(
    const Device& device, bool touch, const absl::Status& context,
    const absl::StatusOr<platform::NvidiaModules>& modules) {
  const absl::StatusOr<bool> dma_buf =
      AskAttribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  std::vector<RdmaReport> reports = {
      {kRdmaFlag,
       "RDMA flag",
       AskAttribute(
           device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
       true,
       Make(device, Rdma::kRequire).status(),
       {}},
      {kDmaBuf, "dma-buf", dma_buf, touch, absl::OkStatus(), {}},
      {kDmaBufPcie, "dma-buf, PCIe", dma_buf, touch, absl::OkStatus(), {}}};
  if (!context.ok()) {
    reports[1].tried = reports[2].tried = context;
  } else if (touch) {
    // A dma-buf may be had of memory without the flag.
    const absl::StatusOr<Allocation> memory = Make(device, Rdma::kTry);
    reports[1].tried = TryDmaBuf(memory, DmaBufMapping::kDefault);
    reports[2].tried = TryDmaBuf(memory, DmaBufMapping::kPcie);
  }
  for (RdmaReport& report : reports) {
    if (report.tried.ok()) continue;
    report.reasons.push_back(report.id == kRdmaFlag ? WhyNoFlag(report)
                             : !context.ok()        ? NoContext()
                                             : WhyNoDmaBuf(report, modules));
  }
  return reports;
}

}  // namespace vmm::tool
