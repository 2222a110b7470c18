#include "vmm/tool/system_notes.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/os/process.h"

namespace vmm::tool {

using fabric::Finding;

namespace {

// See Report::NoteAgainst().
void AddNotesThatNoPeerIsReached(const LimitsReport& limits,
                                 std::vector<Finding>* notes) {
  if (!limits.socket_folder.ok()) {
    notes->push_back(
        {"socket-folder",
         absl::StrCat("no socket can be made where peers look for it: ",
                      limits.socket_folder.status().message()),
         "Set NVIDIA_DRA_LOCAL_IPC_DIR to a folder that both sides have in "
         "common (docs/containers.md). Who only opens may have it "
         "read-only."});
  }
  if (limits.user_is_unknown) {
    const std::string user = platform::CurrentUser().text();
    notes->push_back(
        {"unknown-user",
         absl::StrCat("this process is user ", user,
                      ", which stands for every user that this user namespace "
                      "does not map: no peer in it accepts this process"),
         absl::StrCat("Run the container as another user than ", user, ".")});
  }
  if (!limits.boot_id.ok()) {
    // Other calls can fail too, of which /proc is not the cause.
    const bool is_file = absl::StrContains(limits.boot_id.message(), "boot_id");
    notes->push_back(
        {"no-boot-id",
         absl::StrCat("peers cannot tell that they are on one machine: ",
                      limits.boot_id.message()),
         is_file ? "Mount /proc, and take /proc/sys/kernel/random/boot_id out "
                   "of the container's masked paths."
                 : "Have the system allow the call that is named: every ticket "
                   "that is made or opened needs its answer."});
  }
}

}  // namespace

void AddNoteOnDriver(const Report& report, std::vector<Finding>* notes) {
  const absl::StatusOr<bool>& node = report.limits.control_node;
  if (report.driver.ok() || !node.ok()) return;
  // The kernel's part is Windows's there, and no module of Linux.
  if (report.limits.wsl2.ok() && *report.limits.wsl2) {
    if (!report.limits.wsl2_has_no_gpu) return;
    notes->push_back({"wsl2-no-gpu",
                      "/dev/dxg is not here: WSL2 has no GPU, or it was not "
                      "passed in",
                      "Install or update NVIDIA's driver on Windows, and run "
                      "`wsl --update` there; install none in WSL2. Start a "
                      "container with --gpus all."});
    return;
  }
  if (!*node) {
    notes->push_back({"module-missing",
                      "/dev/nvidiactl is not here: the kernel's part of the "
                      "driver is not loaded, or not passed in",
                      "Install the NVIDIA driver and load it (modprobe "
                      "nvidia); start a container with --gpus all."});
    return;
  }
  // A library that answered was found; what it answered says the cause.
  if (platform::ResultOf(report.driver.status()).has_value()) return;
  notes->push_back(
      {"library-missing",
       "/dev/nvidiactl is here, so the kernel's part of the driver is loaded",
       "If the library is missing: in a container, "
       "NVIDIA_DRIVER_CAPABILITIES=compute,utility; else install the driver "
       "package of the same version."});
}

void AddNotesOnLimits(const Report& report, std::vector<Finding>* notes) {
  const LimitsReport& limits = report.limits;
  // Common defaults are 1,024 soft and far more hard.
  if (limits.descriptors.ok() && limits.descriptors->soft <= 1024) {
    notes->push_back(
        {"few-descriptors",
         absl::StrCat("a process may have ", limits.descriptors->soft,
                      " descriptors open, and each shared chunk takes one in "
                      "each process"),
         limits.descriptors->hard > limits.descriptors->soft
             ? absl::StrCat("Raise it as far as this process may: `ulimit -n ",
                            LimitText(limits.descriptors->hard), "`.")
             : std::string(
                   "Raise it as root: LimitNOFILE in a systemd unit, --ulimit "
                   "nofile of a container.")});
  }
  if (limits.wsl2.ok() && *limits.wsl2) {
    notes->push_back(
        {"wsl2",
         "this is WSL2, which refuses to share chunks of 4 GiB and more",
         "Set max_chunk_size of the allocation to less, such as 2 GiB."});
  }
  if (!limits.process_reference.ok()) {
    notes->push_back(
        {"no-process-reference",
         absl::StrCat("on Linux before 6.5 peers cannot be watched: ",
                      limits.process_reference.message()),
         "Use Linux 5.3 or newer, and allow pidfd_open in the container's "
         "seccomp profile."});
  }
  if (!limits.thread.ok()) {
    notes->push_back(
        {"no-threads",
         absl::StrCat("nothing can be served here: ", limits.thread.message()),
         "Raise the limit, or allow the call, that is named."});
  }
  AddNotesThatNoPeerIsReached(limits, notes);
  if (report.driver.ok() && report.driver->is_host_memory()) {
    notes->push_back(
        {"host-memory",
         "this is the host-memory driver: no GPU was tried, and fabric handles "
         "it refuses unless VMMSHARE_HOST_FABRIC_ROOT gives it a fabric",
         "For the GPUs of this machine: --driver=system."});
  }
}

}  // namespace vmm::tool
