#include "vmm/tool/examine_limits.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"
#include "platform/os/machine.h"
#include "platform/os/process.h"

namespace vmm::tool {
namespace {

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

// Where this process would make its sockets, once one could be made there: it
// is let go of at once.
absl::StatusOr<std::string> ExamineSocketFolder() {
  ASSIGN_OR_RETURN(std::string folder, platform::DefaultChannelDirectory());
  RETURN_IF_ERROR(platform::Listener::Bind({.directory = folder}, {}).status());
  return folder;
}

}  // namespace

std::string LimitText(std::uint64_t limit) {
  return limit > std::uint64_t{1} << 62 ? "unlimited" : absl::StrCat(limit);
}

LimitsReport ExamineLimits(const std::string& root) {
  LimitsReport limits{
      platform::GetDescriptorLimits(),
      platform::SharedMemorySpace(root),
      platform::ContainerMark(root),
      platform::IsWsl2(root),
      platform::PtraceScope(root),
      platform::HasNvidiaControlNode(root),
      platform::LookForMps(root),
      platform::LookForNvidiaModules(root),
      platform::Process::Open(platform::CurrentProcessId()).status(),
      ExamineSocketFolder(),
      platform::ThisMachine().status(),
      Variable("CUDA_VISIBLE_DEVICES"),
      Variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
      Variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
      platform::CurrentUserIsUnknown()};
  const absl::StatusOr<bool> gpu_node = platform::HasWsl2GpuNode(root);
  limits.wsl2_has_no_gpu =
      limits.wsl2.ok() && *limits.wsl2 && gpu_node.ok() && !*gpu_node;
  return limits;
}

}  // namespace vmm::tool
