#include "tests/support/same_process_id_posix.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "platform/base/check.h"

namespace vmm::testing {
namespace {

std::atomic<pid_t> g_id{0};  // 0: each has its own.

}  // namespace
}  // namespace vmm::testing

// In place of the C library's, for what is linked into this program and for the
// shared libraries that it uses.
extern "C" pid_t getpid() noexcept {
  const pid_t id = vmm::testing::g_id;
  return id != 0 ? id : static_cast<pid_t>(::syscall(SYS_getpid));
}

namespace vmm::testing {

SameProcessId::SameProcessId() {
  platform::Check(g_id.exchange(::getpid()) == 0, "there is one already");
}

SameProcessId::~SameProcessId() { g_id = 0; }

}  // namespace vmm::testing
