#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "bench/compare/child.h"
#include "platform/os/os_error.h"

namespace bench::compare {

using vmm::platform::OsError;
using vmm::platform::Process;

absl::StatusOr<Child> Child::StartSelf(const std::vector<std::string>& args) {
  std::vector<std::string> words = {"/proc/self/exe"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  if (int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr,
                              pointers.data(), environ);
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
  return Child(pid, *std::move(process));
}

void Child::Kill() {
  if (pid_ != 0) kill(static_cast<pid_t>(pid_), SIGKILL);
}

int Child::Reap() {
  int status = 1 << 8;  // A status that cannot be had counts as a failure.
  const auto pid = static_cast<pid_t>(std::exchange(pid_, 0));
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace bench::compare
