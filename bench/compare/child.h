// Starting this program again as another process.
#ifndef VMMSHARE_BENCH_COMPARE_CHILD_H_
#define VMMSHARE_BENCH_COMPARE_CHILD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "platform/ipc/channel.h"
#include "platform/os/process.h"

namespace bench::compare {

// A child: this program with other arguments, by fork and exec, for the CUDA
// driver does not survive a fork alone. Move-only.
class Child {
 public:
  static absl::StatusOr<Child> StartSelf(const std::vector<std::string>& args);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  // Kills a child that was not waited for.
  ~Child();

  // The next connection to `listener`, whose address this child was given;
  // ABORTED when the child ends before.
  absl::StatusOr<vmm::platform::Channel> Accept(
      vmm::platform::Listener& listener, absl::Time deadline);

  // Ends it at once (SIGKILL, TerminateProcess) and does not wait for that.
  void Kill();

  // OK when it has ended with exit status 0 by `deadline`.
  absl::Status Wait(absl::Time deadline);

 private:
  Child(std::int64_t pid, vmm::platform::Process process)
      : pid_(pid), process_(std::move(process)) {}
  // Waits for its end. The exit status; negative for a signal.
  int Reap();

  std::int64_t pid_;  // 0 once it was waited for.
  vmm::platform::Process process_;
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_CHILD_H_
