#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "platform/base/check.h"
#include "platform/os/process.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/peer_version.h"

extern char** environ;

namespace vmm::testing {
namespace {

constexpr absl::string_view kRoleFlag = "--vmmshare_child=";
// The parent's id, so that a child whose parent is already dead sees it.
constexpr char kParentVariable[] = "VMMSHARE_CHILD_PARENT";

std::map<std::string, ChildMain>& Registry() {
  static auto* registry = new std::map<std::string, ChildMain>;
  return *registry;
}

std::vector<std::string> Environment(
    const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    merged[std::string(text.substr(0, equals))] =
        std::string(text.substr(equals + 1));
  }
  for (const auto& [name, value] : changes) merged[name] = value;
  merged[kParentVariable] = absl::StrCat(::getpid());
  std::vector<std::string> entries;
  for (const auto& [name, value] : merged) {
    entries.push_back(absl::StrCat(name, "=", value));
  }
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int Reap(std::int64_t pid) {
  int status = 0;
  while (::waitpid(static_cast<pid_t>(pid), &status, 0) < 0) {
    platform::Check(errno == EINTR, "waitpid() of a test's child failed");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

bool RegisterChild(const std::string& name, ChildMain main) {
  platform::Check(Registry().emplace(name, main).second,
                  absl::StrCat("child ", name, " is registered twice"));
  return true;
}

Child Child::Start(const std::string& name,
                   const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& env) {
  platform::Check(Registry().contains(name),
                  absl::StrCat("no child ", name, " is registered"));
  std::vector<std::string> words = CommandFor(
      IsEmulated() ? std::filesystem::read_symlink("/proc/self/exe").string()
                   : "/proc/self/exe");
  words.push_back(absl::StrCat(kRoleFlag, name));
  words.insert(words.end(), args.begin(), args.end());
  std::vector<std::string> entries = Environment(WithPeerVersion(env));
  std::fflush(nullptr);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, words.front().c_str(), nullptr, nullptr,
                     Pointers(words).data(), Pointers(entries).data());
  if (error != 0) {
    platform::Die(absl::StrCat("posix_spawn() of child ", name,
                               " failed: ", std::strerror(error)));
  }
  return Child(pid);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

Child::~Child() {
  if (pid_ <= 0) return;
  Kill();
  Reap(pid_);
}

void Child::Kill() { ::kill(static_cast<pid_t>(pid_), SIGKILL); }
void Child::Continue() { ::kill(static_cast<pid_t>(pid_), SIGCONT); }

void Child::Stop() {
  ::kill(static_cast<pid_t>(pid_), SIGSTOP);
  // The signal takes effect some time later; what a test does next relies on
  // the child standing still.
  siginfo_t info;
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info,
                  WSTOPPED | WEXITED | WNOWAIT) != 0) {
    platform::Check(errno == EINTR, "waitid() of a test's child failed");
  }
}

bool Child::IsStopped() const {
  siginfo_t info = {};
  const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info,
                              WSTOPPED | WNOHANG | WNOWAIT);
  return result == 0 && info.si_pid != 0 && info.si_code == CLD_STOPPED;
}

int Child::Wait(absl::Time deadline) {
  platform::Check(pid_ > 0, "this child was waited for already");
  const absl::StatusOr<platform::Process> process =
      platform::Process::Open(pid_);
  if (!process.ok()) platform::Die(process.status().ToString());
  if (absl::Status status = process->WaitForExit(deadline); !status.ok()) {
    ADD_FAILURE() << "child " << pid_ << ": " << status;
    Kill();
  }
  return Reap(std::exchange(pid_, -1));
}

bool EndedByAFault(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

void KillThisProcess() {
  for (;;) ::kill(::getpid(), SIGKILL);
}

int RunAsChild(int argc, char** argv) {
  absl::string_view role = argc > 1 ? argv[1] : "";
  if (!absl::ConsumePrefix(&role, kRoleFlag)) return -1;
  // A test that is killed takes its children along.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* parent = std::getenv(kParentVariable);
  if (parent == nullptr || absl::StrCat(::getppid()) != parent) return 125;

  const auto found = Registry().find(std::string(role));
  platform::Check(found != Registry().end(),
                  absl::StrCat("no child ", role, " is registered"));
  const std::vector<std::string> args(argv + 2, argv + argc);
  int framework_argc = 1;
  ::testing::InitGoogleTest(&framework_argc, argv);
  const int status = found->second(args);
  platform::Check(status >= 0, "a child's main must not answer less than 0");
  // EXPECT_ and ASSERT_ in a child count as well.
  const bool failed =
      ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  return status == 0 && failed ? 1 : status;
}

}  // namespace vmm::testing
