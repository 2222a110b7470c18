#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "platform/base/check.h"
#include "tests/support/host_instance.h"
#include "tests/support/test_driver.h"

namespace vmm::testing {
namespace {

class ChannelDirectory {
 public:
  ChannelDirectory() {
    platform::Check(::mkdtemp(path_) != nullptr, "mkdtemp() failed");
    ::setenv("XDG_RUNTIME_DIR", path_, /*overwrite=*/1);
    ::unsetenv("NVIDIA_DRA_LOCAL_IPC_DIR");
  }
  ~ChannelDirectory() {
    std::error_code ignored;
    if (::getpid() == pid_) std::filesystem::remove_all(path_, ignored);
  }

 private:
  char path_[32] = "/tmp/vmmshare-test-XXXXXX";
  const pid_t pid_ = ::getpid();
};

}  // namespace

void UseAHostInstanceOfOwn() {
  ::setenv("VMMSHARE_HOST_INSTANCE", HostInstanceName().c_str(),
           /*overwrite=*/0);
}

void UseAChannelDirectoryOfOwn() { static const ChannelDirectory directory; }

void UseTheHostMemoryDriver() {
  ::setenv("VMMSHARE_TEST_DRIVER", "host", /*overwrite=*/1);
}

}  // namespace vmm::testing
