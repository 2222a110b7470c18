#include "vmm/tool/examine_limits.h"

#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/channel.h"
#include "platform/os/machine.h"
#include "platform/os/process.h"
#include "platform/os/start_thread.h"

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

absl::Status ExamineThread() {
  std::thread thread;
  RETURN_IF_ERROR(platform::StartThread(
      thread, "vmmshare-doctor", "of the kind that serves a peer", [] {}));
  thread.join();
  return absl::OkStatus();
}

}  // namespace

std::string LimitText(std::uint64_t limit) {
  return limit > std::uint64_t{1} << 62 ? "unlimited" : absl::StrCat(limit);
}

LimitsReport ExamineLimits(const std::string& root) {
  LimitsReport limits{
      .descriptors = platform::GetDescriptorLimits(),
      .shared_memory = platform::SharedMemorySpace(root),
      .container = platform::ContainerMark(root),
      .wsl2 = platform::IsWsl2(root),
      .ptrace_scope = platform::PtraceScope(root),
      .control_node = platform::HasNvidiaControlNode(root),
      .mps = platform::LookForMps(root),
      .modules = platform::LookForNvidiaModules(root),
      .process_reference =
          platform::Process::Open(platform::CurrentProcessId()).status(),
      .socket_folder = ExamineSocketFolder(),
      .boot_id = platform::ThisMachine().status(),
      .thread = ExamineThread(),
      .visible_devices = Variable("CUDA_VISIBLE_DEVICES"),
      .connections = Variable("CUDA_DEVICE_MAX_CONNECTIONS"),
      .mps_threads = Variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
      .mps_memory = Variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
      .user_is_unknown = platform::CurrentUserIsUnknown()};
  const absl::StatusOr<bool> gpu_node = platform::HasWsl2GpuNode(root);
  limits.wsl2_has_no_gpu =
      limits.wsl2.ok() && *limits.wsl2 && gpu_node.ok() && !*gpu_node;
  return limits;
}

}  // namespace vmm::tool
