#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "platform/base/check.h"
#include "tests/support/fork.h"

namespace vmm::testing {
namespace {

// What hangs in there must not hang the tests.
constexpr unsigned kSeconds = 30;

}  // namespace

bool MayFork() { return true; }

int RunInFork(const std::function<int()>& in_child) {
  const pid_t pid = ::fork();
  platform::Check(pid >= 0, "fork() failed");
  if (pid == 0) {
    ::alarm(kSeconds);
    ::_exit(in_child());
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    platform::Check(errno == EINTR, "waitpid() failed");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void RunApart(const std::function<void()>& in_child) {
  const pid_t pid = ::fork();
  platform::Check(pid >= 0, "fork() failed");
  if (pid != 0) return;
  in_child();
  ::_exit(0);
}

}  // namespace vmm::testing
