#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/cuda/driver.h"
#include "platform/os/os_error.h"
#include "tests/support/nodes.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kRootVariable[] = "VMMSHARE_HOST_FABRIC_ROOT";
constexpr char kUserNamespaceVariable[] = "VMMSHARE_TEST_USER_NAMESPACE";
constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
constexpr char kDaemonName[] = "nvidia-imex";
constexpr int kRefused = 77;

std::string Channel(const std::string& root, int number) {
  return absl::StrCat(root, "/dev/nvidia-caps-imex-channels/channel", number);
}

void Write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream file(path);
  file << text;
  platform::Check(file.flush().good(), absl::StrCat("cannot write ", path));
}

// The user namespace that all nodes of a user without rights are in: processes
// of different ones may not look at each other, as the driver has to.
int HoldUserNamespace(const std::vector<std::string>& args) {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWUSER) != 0) return kRefused;
  Write("/proc/self/setgroups", "deny");
  Write("/proc/self/uid_map", absl::StrCat(user, " ", user, " 1"));
  Write("/proc/self/gid_map", absl::StrCat(group, " ", group, " 1"));
  ::close(std::stoi(args[0]));
  for (;;) ::pause();
}
const bool kHoldUserNamespace =
    RegisterChild("hold-user-namespace", &HoldUserNamespace);

absl::Status Separate() {
  if (::geteuid() != 0) {
    const char* path = std::getenv(kUserNamespaceVariable);
    platform::Check(path != nullptr, "a node needs an ImexRoot");
    const int space = ::open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWUSER) != 0) {
      return platform::LastError().Of(absl::StrCat("setns(", path, ")"));
    }
    ::close(space);
  }
  if (::unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) != 0) {
    return platform::LastError().Of("unshare()");
  }
  return absl::OkStatus();
}

// Ends with 0 if it can be a node, else with kRefused and the reason.
int TryToBeANode(const std::vector<std::string>& args) {
  absl::Status status = EnterNode("trial");
  // In there it may seem to be nobody's, which the loader refuses.
  if (status.ok())
    status = platform::Driver::LoadFrom(HostDriverPath()).status();
  if (status.ok()) return 0;
  Write(args[0], std::string(status.message()));
  return kRefused;
}
const bool kTryToBeANode = RegisterChild("try-to-be-a-node", &TryToBeANode);

// args: a descriptor that is closed once it has its name.
int Daemon(const std::vector<std::string>& args) {
  ::prctl(PR_SET_NAME, kDaemonName);
  ::close(std::stoi(args[0]));
  for (;;) ::pause();
}
const bool kDaemon = RegisterChild("imex-daemon", &Daemon);

// Starts a child whose one argument is a descriptor, and waits until it closes
// that.
Child StartAndWait(const std::string& name) {
  int ends[2];
  platform::Check(::pipe2(ends, O_CLOEXEC) == 0, "pipe2() failed");
  const int inherited = ::fcntl(ends[1], F_DUPFD, 0);
  Child child = Child::Start(name, {absl::StrCat(inherited)});
  ::close(ends[1]);
  ::close(inherited);
  char nothing = 0;
  while (::read(ends[0], &nothing, 1) < 0 && errno == EINTR) {
  }
  ::close(ends[0]);
  return child;
}

std::string UserNamespace() {
  static const Child holder = StartAndWait("hold-user-namespace");
  return absl::StrCat("/proc/", holder.pid(), "/ns/user");
}

}  // namespace

std::string WhyNoNodes() {
  static const std::string reason = [] {
    const ImexRoot root;
    const std::string file = root.path() + "/reason";
    const int status =
        Child::Start("try-to-be-a-node", {file}, root.Environment()).Wait();
    if (status == 0) return std::string();
    std::string text = absl::StrCat("the trial ended with ", status);
    std::getline(std::ifstream(file), text);
    return absl::StrCat("this machine gives no namespaces: ", text);
  }();
  return reason;
}

absl::Status EnterNode(const std::string& name) {
  const char* root = std::getenv(kRootVariable);
  platform::Check(root != nullptr, "a node needs an ImexRoot");
  if (absl::Status s = Separate(); !s.ok()) return s;
  if (::sethostname(name.data(), name.size()) != 0) {
    return platform::LastError().Of("sethostname()");
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return platform::LastError().Of("mount(/, private)");
  }
  const std::string boot_id = absl::StrCat(root, "/boot_id");
  if (::mount(boot_id.c_str(), kBootId, nullptr, MS_BIND, nullptr) != 0) {
    return platform::LastError().Of(absl::StrCat("mount(", kBootId, ")"));
  }
  return absl::OkStatus();
}

void ObeyPermissionBits() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  platform::Check(::syscall(SYS_capget, &header, data) == 0, "capget()");
  for (const unsigned capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
    data[0].effective &= ~(1u << capability);
    data[0].permitted &= ~(1u << capability);
  }
  platform::Check(::syscall(SYS_capset, &header, data) == 0, "capset()");
}

ImexRoot::ImexRoot() {
  std::string pattern =
      (fs::temp_directory_path() / "vmmshare-imex-XXXXXX").string();
  platform::Check(::mkdtemp(pattern.data()) != nullptr, "mkdtemp() failed");
  path_ = pattern;
  fs::create_directories(path_ + "/proc/self");
  fs::create_directories(path_ + "/dev/shm");
  Write(path_ + "/proc/sys/kernel/osrelease", "6.1.0\n");
  // Of the form of the system's own, and another for each node.
  char id[64];
  std::snprintf(id, sizeof(id), "%08x-0000-4000-8000-%012llx\n",
                static_cast<unsigned>(::getpid()),
                static_cast<unsigned long long>(
                    std::hash<std::string>{}(path_)&0xffffffffffff));
  Write(path_ + "/boot_id", id);
  MakeChannel(0);
  StartDaemon();
}

ImexRoot::~ImexRoot() {
  daemon_.reset();
  for (const auto& [number, master] : terminals_) ::close(master);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::map<std::string, std::string> ImexRoot::Environment(
    absl::string_view cluster, int clique) const {
  return {{kRootVariable, path_},
          {kUserNamespaceVariable, ::geteuid() == 0 ? "" : UserNamespace()},
          {"VMMSHARE_HOST_FABRIC_CLUSTER", std::string(cluster)},
          {"VMMSHARE_HOST_FABRIC_CLIQUE", absl::StrCat(clique)}};
}

void ImexRoot::MakeChannel(int number, int mode) {
  RemoveChannel(number);
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char name[64];
  struct stat info {};
  platform::Check(master >= 0 && ::grantpt(master) == 0 &&
                      ::unlockpt(master) == 0 &&
                      ::ptsname_r(master, name, sizeof(name)) == 0 &&
                      ::chmod(name, static_cast<mode_t>(mode)) == 0 &&
                      ::stat(name, &info) == 0,
                  "no terminal can be had to stand for an IMEX channel");
  fs::create_directories(fs::path(Channel(path_, number)).parent_path());
  fs::create_symlink(name, Channel(path_, number));
  terminals_[number] = master;
  Write(path_ + "/proc/devices",
        absl::StrCat("Character devices:\n", major(info.st_rdev),
                     " nvidia-caps-imex-channels\n"));
}

void ImexRoot::RemoveChannel(int number) {
  const auto terminal = terminals_.find(number);
  if (terminal == terminals_.end()) return;
  ::close(terminal->second);
  terminals_.erase(terminal);
  fs::remove(Channel(path_, number));
}

void ImexRoot::StartDaemon() {
  daemon_.emplace(StartAndWait("imex-daemon"));
  const std::string process = absl::StrCat("/proc/", daemon_->pid());
  fs::create_directory_symlink(process, path_ + process);
}

void ImexRoot::KillDaemon() {
  platform::Check(daemon_.has_value(), "the daemon does not run");
  daemon_.reset();  // Its link in /proc leads nowhere now.
}

}  // namespace vmm::testing
