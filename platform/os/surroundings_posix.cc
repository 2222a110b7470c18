#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "platform/base/status_macros.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/surroundings.h"
#include "platform/os/text_file_posix.h"

namespace vmm::platform {
namespace {

absl::StatusOr<bool> Exists(const std::string& path) {
  struct stat about;
  if (::stat(path.c_str(), &about) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return LastError().Of(absl::StrCat("stat(", path, ")"));
}

}  // namespace

absl::StatusOr<DescriptorLimits> GetDescriptorLimits() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return LastError().Of("getrlimit(RLIMIT_NOFILE)");
  }
  return DescriptorLimits{limit.rlim_cur, limit.rlim_max};
}

absl::StatusOr<FileSpace> SharedMemorySpace(const std::string& root) {
  const std::string path = absl::StrCat(root, "/dev/shm");
  const OsHandle folder =
      AdoptDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (!folder.has_value()) {
    return LastError().Of(absl::StrCat("open(", path, ")"));
  }
  struct statfs about;
  while (::fstatfs(Fd(folder), &about) != 0) {
    if (errno == EINTR) continue;
    return LastError().Of(absl::StrCat("fstatfs(", path, ")"));
  }
  const auto block = static_cast<std::uint64_t>(about.f_bsize);
  return FileSpace{about.f_blocks * block, about.f_bavail * block};
}

absl::StatusOr<std::string> ContainerMark(const std::string& root) {
  // As Docker, Podman and systemd-nspawn leave them.
  for (const char* file :
       {"/.dockerenv", "/run/.containerenv", "/run/systemd/container"}) {
    ASSIGN_OR_RETURN(const bool exists, Exists(absl::StrCat(root, file)));
    if (exists) return absl::StrCat(file, " exists");
  }
  for (const char* variable : {"KUBERNETES_SERVICE_HOST", "container"}) {
    const char* value = std::getenv(variable);
    if (root.empty() && value != nullptr && *value != '\0') {
      return absl::StrCat("the environment has ", variable);
    }
  }
  absl::StatusOr<std::string> groups =
      ReadTextFile(absl::StrCat(root, "/proc/self/cgroup"));
  if (absl::IsNotFound(groups.status())) return std::string();
  if (!groups.ok()) return groups.status();
  for (const char* word :
       {"docker", "kubepods", "containerd", "libpod", "lxc"}) {
    if (absl::StrContains(*groups, word)) {
      return absl::StrCat("/proc/self/cgroup names ", word);
    }
  }
  return std::string();
}

absl::StatusOr<bool> IsWsl2(const std::string& root) {
  ASSIGN_OR_RETURN(
      const std::string release,
      ReadTextFile(absl::StrCat(root, "/proc/sys/kernel/osrelease")));
  return absl::StrContains(absl::AsciiStrToLower(release), "microsoft");
}

absl::StatusOr<int> PtraceScope(const std::string& root) {
  const std::string path =
      absl::StrCat(root, "/proc/sys/kernel/yama/ptrace_scope");
  absl::StatusOr<std::string> text = ReadTextFile(path);
  if (absl::IsNotFound(text.status())) {
    const std::string folder = absl::StrCat(root, "/proc/sys/kernel");
    ASSIGN_OR_RETURN(const bool seen, Exists(folder));
    if (seen) return 0;
    return absl::NotFoundError(
        absl::StrCat(folder, " is not here, so ", path,
                     " cannot be seen; mount /proc, and /proc/sys with it"));
  }
  if (!text.ok()) return text.status();
  int scope = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &scope)) {
    return absl::InternalError(
        absl::StrCat(path, " holds no number: \"", *text, "\""));
  }
  return scope;
}

absl::StatusOr<bool> HasNvidiaControlNode(const std::string& root) {
  return Exists(absl::StrCat(root, "/dev/nvidiactl"));
}

absl::StatusOr<bool> HasWsl2GpuNode(const std::string& root) {
  return Exists(absl::StrCat(root, "/dev/dxg"));
}

absl::StatusOr<MpsDaemon> LookForMps(const std::string& root) {
  MpsDaemon daemon;
  const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  daemon.directory = directory != nullptr && *directory != '\0'
                         ? directory
                         : "/tmp/nvidia-mps";
  const std::string folder = absl::StrCat(root, daemon.directory);
  ASSIGN_OR_RETURN(daemon.has_socket, Exists(absl::StrCat(folder, "/control")));
  absl::StatusOr<std::string> text =
      ReadTextFile(absl::StrCat(folder, "/nvidia-cuda-mps-control.pid"));
  if (absl::IsNotFound(text.status())) return daemon;
  if (!text.ok()) return text.status();
  std::int64_t pid = 0;
  // The daemon writes it; what is no number is a file of somebody else's.
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &pid) || pid <= 0) {
    return daemon;
  }
  absl::StatusOr<std::string> name =
      ReadTextFile(absl::StrCat(root, "/proc/", pid, "/comm"));
  // Another process may have got the number since. The kernel keeps 15
  // characters of nvidia-cuda-mps-control.
  if (name.ok() && absl::StartsWith(*name, "nvidia-cuda-mps")) {
    daemon.process = pid;
  }
  return daemon;
}

absl::StatusOr<NvidiaModules> LookForNvidiaModules(const std::string& root) {
  NvidiaModules modules;
  absl::StatusOr<std::string> version =
      ReadTextFile(absl::StrCat(root, "/proc/driver/nvidia/version"));
  if (version.ok()) {
    modules.open = absl::StrContains(*version, "Open Kernel Module");
  } else if (!absl::IsNotFound(version.status())) {
    return version.status();
  }
  const std::string folder = absl::StrCat(root, "/sys/module");
  ASSIGN_OR_RETURN(const bool seen, Exists(folder));
  if (!seen) return modules;
  modules.loaded.emplace();
  for (const char* name :
       {"nvidia_peermem", "nv_peer_mem", "nvidia_fs", "gdrdrv"}) {
    ASSIGN_OR_RETURN(const bool loaded,
                     Exists(absl::StrCat(folder, "/", name)));
    if (loaded) modules.loaded->emplace_back(name);
  }
  return modules;
}

absl::StatusOr<std::string> FolderOfProgram() {
  constexpr char kLink[] = "/proc/self/exe";
  std::vector<char> path(4096);
  const ssize_t size = ::readlink(kLink, path.data(), path.size());
  if (size < 0) return LastError().Of(absl::StrCat("readlink(", kLink, ")"));
  const absl::string_view whole(path.data(), static_cast<std::size_t>(size));
  return std::string(whole.substr(0, whole.rfind('/')));
}

bool StandardOutputTakesColour() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr &&
         *terminal != '\0' && absl::string_view(terminal) != "dumb";
}

}  // namespace vmm::platform
