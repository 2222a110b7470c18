// Starting this program again as another process.
#ifndef VMMSHARE_DOCS_EXAMPLES_PROCESS_H_
#define VMMSHARE_DOCS_EXAMPLES_PROCESS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/os/process.h"

namespace examples {

// A child: this program with other arguments. Never fork without exec once the
// CUDA driver is loaded: it does not survive in the child. Move-only.
class ChildProcess {
 public:
  // `env` adds to, or changes, this process's environment.
  static absl::StatusOr<ChildProcess> StartSelf(
      const std::vector<std::string>& args,
      const std::map<std::string, std::string>& env = {});
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills a child that was not waited for.
  ~ChildProcess();

  // The next connection to `listener`, which this child was given the address
  // of; ABORTED when the child ends before.
  absl::StatusOr<vmm::platform::Channel> Accept(
      vmm::platform::Listener& listener, absl::Time deadline);

  // Ends it at once (SIGKILL, TerminateProcess), and does not wait for that.
  void Kill();

  // OK when it has ended with exit status 0 by `deadline`.
  absl::Status Wait(absl::Time deadline);

 private:
  ChildProcess(std::int64_t pid, vmm::platform::Process process)
      : pid_(pid), process_(std::move(process)) {}
  int Reap();

  std::int64_t pid_;  // 0 once it was waited for.
  vmm::platform::Process process_;
};

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_PROCESS_H_
