#include "vmm/c/internal/hook.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/mutex.h"
#include "platform/os/per_process.h"
#include "platform/os/process.h"
#include "vmm/c/hooks.h"
#include "vmm/c/internal/call.h"

namespace vmm::c {
namespace {

class LastFailure {
 public:
  void Remember(const absl::Status& failure) {
    const platform::MutexLock lock(mutex_);
    failure_ = failure;
  }
  absl::Status Take() {
    const platform::MutexLock lock(mutex_);
    return std::exchange(failure_, absl::OkStatus());
  }

 private:
  platform::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: PyTorch frees after the end of main().
constinit platform::PerProcess<LastFailure> last_failure;

// In which process, by its ForksSoFar(), a hook was refused last; 0: in none. It is
// refused in forked children alone, whose number is above 0.
constinit std::atomic<std::uint64_t> refused_in{0};
// In which process, by its ForksSoFar() and 1, a hook failed last for want of memory
// of the host; 0: in none. Of that LastFailure needs some, too.
constinit std::atomic<std::uint64_t> lacked_memory_in{0};

// Runs a hook's `body`. Does not throw what says that the host lacks memory.
absl::Status RunHook(absl::FunctionRef<absl::Status()> body) {
  try {
    absl::Status status = body();
    if (!status.ok()) {
      last_failure.Get().Remember(status);
      lacked_memory_in.store(0);
    }
    return status;
  } catch (const std::bad_alloc&) {
    lacked_memory_in.store(platform::ForksSoFar() + 1);
    return absl::OkStatus();  // A hook says how it ended by what it returns.
  }
}

}  // namespace

void Hook(bool is_of_parent_alone, absl::FunctionRef<absl::Status()> body) {
  // A thread of the parent's may have held any lock, the allocator's too, when it
  // forked.
  if (is_of_parent_alone) return refused_in.store(platform::ForksSoFar());
  Call(nullptr, [&] { return RunHook(body); });
}

absl::Status CheckDevice(absl::string_view what, const Device& own,
                         std::int32_t device) {
  if (own.ordinal() == device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", what, " is of ", own.Describe(), " and not of device ", device,
      ". Give the ", what, "'s own device, or a ", what, " of the other one."));
}

}  // namespace vmm::c

vmmshare_status vmmshare_hooks_last_error(vmmshare_error** error) {
  return vmm::c::Call(error, []() -> absl::Status {
    const std::uint64_t forks = vmm::c::refused_in.exchange(0);
    if (forks != 0 && forks == vmm::platform::ForksSoFar()) {
      return absl::FailedPreconditionError(
          "the parent's GPU memory cannot be used in a forked child. Start the "
          "process by exec(), as multiprocessing's spawn does.");
    }
    vmm::c::LastFailure* const own = vmm::c::last_failure.Find();
    if (vmm::c::lacked_memory_in.exchange(0) ==
        vmm::platform::ForksSoFar() + 1) {
      if (own != nullptr) own->Take().IgnoreError();  // It came before.
      return absl::ResourceExhaustedError(
          "the host had no memory for the books of what a hook was asked for; "
          "expected some. Call it again when there is.");
    }
    return own == nullptr ? absl::OkStatus() : own->Take();
  });
}
