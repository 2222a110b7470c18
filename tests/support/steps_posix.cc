#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "platform/base/check.h"
#include "tests/support/steps.h"

namespace vmm::testing {

bool StopsSupported() { return true; }

namespace internal {

// raise(), not kill(): this very thread makes no further instruction.
void StopThisProcess() {
  platform::Check(::raise(SIGSTOP) == 0, "raise(SIGSTOP) failed");
}

void HangUpAndStop() {
  DIR* const directory = ::opendir("/proc/self/fd");
  platform::Check(directory != nullptr, "cannot read /proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) {
    // Fails for what is no connection.
    if (entry->d_name[0] != '.') {
      ::shutdown(std::atoi(entry->d_name), SHUT_RDWR);
    }
  }
  ::closedir(directory);
  StopThisProcess();
}

}  // namespace internal
}  // namespace vmm::testing
