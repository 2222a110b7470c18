// A library whose threads nobody joins, for keep_loaded_posix_test.cc to load and
// to unload.
#include <fcntl.h>

#include <memory>
#include <utility>

#include "platform/ipc/lifeline.h"
#include "platform/os/close_elsewhere_posix.h"
#include "platform/os/descriptor_posix.h"
#include "platform/os/process.h"
#include "platform/os/run_detached.h"

namespace {

vmm::platform::OsHandle OpenNull() {
  return vmm::platform::AdoptDescriptor(
      ::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

extern "C" void vmmshare_test_ask_lifeline() {
  vmm::platform::AskLifeline(
      std::make_shared<const vmm::platform::OsHandle>(OpenNull()),
      {vmm::platform::CurrentUser(), 1})
      .IgnoreError();
}

extern "C" void vmmshare_test_close_elsewhere() {
  vmm::platform::CloseElsewhere(OpenNull(),
                                vmm::platform::Connections::kOfPeers);
}

extern "C" void vmmshare_test_run_detached() {
  vmm::platform::RunDetached("vmmshare-test", [] {});
}
