// Whether network cards and other devices on PCIe can reach a device's memory.
#ifndef VMMSHARE_VMM_TOOL_EXAMINE_RDMA_H_
#define VMMSHARE_VMM_TOOL_EXAMINE_RDMA_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fabric/diagnosis.h"
#include "platform/os/surroundings.h"
#include "vmm/memory/device.h"

namespace vmm::tool {

// Ways to reach it. Stable, for programs.
inline constexpr char kRdmaFlag[] = "flag";
inline constexpr char kDmaBuf[] = "dma-buf";
inline constexpr char kDmaBufPcie[] = "dma-buf-pcie";

struct RdmaReport {
  std::string id;    // One of them.
  std::string name;  // For people.
  // What the device attribute says.
  absl::StatusOr<bool> attribute;
  // The real try: memory with the flag, or its dma-buf. That takes a context: OK,
  // and nothing known, unless `asked`.
  bool asked = true;
  absl::Status tried;
  // Why the try failed; empty when it did not.
  std::vector<fabric::Finding> reasons;

  bool usable() const { return asked && tried.ok(); }
};

// All ways, each by trying; those that take a context only if `touch`, where
// `context` is whether there is one. `modules` is for the reasons.
std::vector<RdmaReport> ExamineRdma(
    const Device& device, bool touch, const absl::Status& context,
    const absl::StatusOr<platform::NvidiaModules>& modules);

// Why nothing that takes a context was tried: there is none.
fabric::Finding NoContext();

// Why a try failed, if it was for want of memory: that says nothing of `what`.
std::optional<fabric::Finding> OutOfMemory(const absl::Status& tried,
                                           absl::string_view what);

}  // namespace vmm::tool

#endif  // VMMSHARE_VMM_TOOL_EXAMINE_RDMA_H_
