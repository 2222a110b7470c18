#include "vmm/share/retire.h"

#include <deque>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/memory/stream_capture.h"

namespace vmm {
struct RetireQueue::Impl {
  // Nothing until its place is there.
  using Memory =
      std::variant<std::monostate, Allocation, ImportedAllocation, Mapping>;
  struct Retired {
    Memory memory;
    OwnedEvent passed;
  };

  // `memory` goes only once the event and the place for both are there: whatever
  // has it when something is thrown, as where the host has no memory left, unmaps
  // it under the work that uses it.
  template <typename T>
  absl::Status Retire(T&& memory, CUstream stream) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    ASSIGN_OR_RETURN(OwnedEvent event, RecordEvent(driver, stream));
    Retired& place = retired.emplace_back();
    place.memory.template emplace<T>(std::forward<T>(memory));
    place.passed = std::move(event);
    return absl::OkStatus();
  }

  // What became of all that was retired, at one look.
  struct Look {
    std::size_t collected = 0;
    std::size_t unfinished = 0;
    absl::Status failed;  // The first that did.
  };
  // A stream whose work failed keeps its own memory, and not that of others: it may
  // be of another device.
  Look Collect() {
    Look look;
    // Streams pass their work in any order among each other.
    for (auto at = retired.begin(); at != retired.end();) {
      const absl::StatusOr<bool> passed = HasPassed(at->passed);
      look.failed.Update(passed.status());
      if (passed.ok() && *passed) {
        at = retired.erase(at);
        ++look.collected;
        continue;
      }
      if (passed.ok()) ++look.unfinished;
      ++at;
    }
    look.failed = platform::Annotate(
        look.failed, "RetireQueue::Collect(): the memory is kept");
    return look;
  }

  platform::Driver driver;
  std::deque<Retired> retired = {};
};

RetireQueue::RetireQueue(platform::Driver driver)
    : impl_(std::make_unique<Impl>(Impl{std::move(driver)})) {}
RetireQueue::RetireQueue(RetireQueue&&) noexcept = default;

RetireQueue::~RetireQueue() {
  if (impl_ == nullptr || impl_->retired.empty()) return;
  const platform::Driver& driver = impl_->driver;
  const RelaxedCapture relaxed(driver);
  for (Impl::Retired& retired : impl_->retired) {
    platform::ReportReleaseFailure(
        driver.Error(driver->cuEventSynchronize(retired.passed.get().event),
                     "cuEventSynchronize() of retired memory"));
  }
}

absl::Status RetireQueue::Retire(Allocation&& memory, CUstream stream) {
  return impl_->Retire(std::move(memory), stream);
}

absl::Status RetireQueue::Retire(ImportedAllocation&& memory, CUstream stream) {
  return impl_->Retire(std::move(memory), stream);
}

absl::Status RetireQueue::Retire(Mapping&& memory, CUstream stream) {
  return impl_->Retire(std::move(memory), stream);
}

std::size_t RetireQueue::size() const {
  return impl_ == nullptr ? 0 : impl_->retired.size();
}

absl::StatusOr<std::size_t> RetireQueue::Collect() {
  const Impl::Look look = impl_->Collect();
  if (!look.failed.ok()) return look.failed;
  return look.collected;
}

absl::Status RetireQueue::Drain(Deadline deadline) {
  // CUDA offers no wait for an event with a deadline.
  platform::Pauses pauses;
  for (;;) {
    const Impl::Look look = impl_->Collect();
    if (look.unfinished == 0) return look.failed;
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          look.unfinished, " retired allocations still wait for their streams",
          look.failed.ok() ? "" : "; of others, the first: ",
          look.failed.message()));
    }
    pauses.Take(deadline);
  }
}

}  // namespace vmm
