#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "docs/examples/process.h"
#include "platform/os/os_error.h"

namespace examples {
namespace {

using vmm::platform::OsError;
using vmm::platform::Process;

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(
    const std::map<std::string, std::string>& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!changes.contains(name)) entries.emplace_back(text);
  }
  for (const auto& [name, value] : changes) {
    entries.push_back(absl::StrCat(name, "=", value));
  }
  return entries;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::StartSelf(
    const std::vector<std::string>& args,
    const std::map<std::string, std::string>& env) {
  std::vector<std::string> words = {"/proc/self/exe"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<std::string> entries = Environment(env);
  // Whoever started this program may have had it ignored: then the system keeps no
  // child's exit status, and gives its id away.
  signal(SIGCHLD, SIG_DFL);
  pid_t pid = 0;
  if (int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr,
                              Pointers(words).data(), Pointers(entries).data());
      error != 0) {
    return OsError(error, "posix_spawn(this program)");
  }
  // Not reaped yet, so the id is still the child's.
  absl::StatusOr<Process> process = Process::Open(pid);
  if (!process.ok()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return process.status();
  }
  return ChildProcess(pid, *std::move(process));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), process_(std::move(other.process_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ == 0) return;
  Kill();
  Reap();
}

void ChildProcess::Kill() {
  if (pid_ != 0) kill(static_cast<pid_t>(pid_), SIGKILL);
}

absl::Status ChildProcess::Wait(absl::Time deadline) {
  absl::Status ended = process_.WaitForExit(deadline);
  if (!ended.ok()) return ended;
  const std::int64_t pid = pid_;
  const int status = Reap();
  if (WIFSIGNALED(status)) {
    return absl::AbortedError(absl::StrCat(
        "process ", pid, " was ended by signal ", WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return absl::AbortedError(absl::StrCat(
        "process ", pid, " ended with exit status ", WEXITSTATUS(status)));
  }
  return absl::OkStatus();
}

int ChildProcess::Reap() {
  int status = 1 << 8;  // A status that cannot be had counts as a failure.
  const auto pid = static_cast<pid_t>(std::exchange(pid_, 0));
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace examples
