// A process that forks and can then be killed, while its child goes on.
#ifndef VMMSHARE_TESTS_IPC_FORKS_AND_WAITS_POSIX_H_
#define VMMSHARE_TESTS_IPC_FORKS_AND_WAITS_POSIX_H_

#include <unistd.h>

#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "tests/ipc/vmm_ipc_test.h"

namespace vmm::testing {

// The child tells the test that it is there, and ends when the test hangs up.
[[noreturn]] inline void ForkAndWait(platform::Channel boss) {
  if (::fork() == 0) {
    Tell(boss);
    boss.WaitForHangUp(absl::InfiniteFuture()).IgnoreError();
    ::_exit(0);
  }
  for (;;) ::pause();
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_IPC_FORKS_AND_WAITS_POSIX_H_
