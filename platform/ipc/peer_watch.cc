#include "platform/ipc/peer_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/base/status_macros.h"

namespace vmm::platform {
namespace {

// For the driver to take down the context of a forked child that has let go of
// its lifeline: 16 times the longest that was measured.
constexpr std::chrono::seconds kTeardown{2};
constexpr absl::Duration kLookAgain = absl::Milliseconds(1);

}  // namespace

absl::StatusOr<PeerWatch> PeerWatch::Receive(Channel& channel,
                                             Deadline deadline,
                                             const CancelEvent* cancel,
                                             std::uint16_t* type) {
  ASSIGN_OR_RETURN(OsHandle lifeline,
                   ReceiveLifeline(channel, deadline, cancel, type));
  absl::StatusOr<Process> process = channel.OpenPeer();
  if (process.ok()) {
    return PeerWatch(*std::move(process), std::move(lifeline), channel.peer());
  }
  // Of old kernels and hidden namespaces; of what Windows lets nobody open.
  if (absl::IsUnimplemented(process.status()) ||
      absl::IsPermissionDenied(process.status())) {
    return PeerWatch(std::nullopt, std::move(lifeline), channel.peer());
  }
  // Whoever were given memory all the same would be waited for without end.
  return process.status();
}

PeerEnd PeerWatch::Look() {
  if (end_ == PeerEnd::kNotEnded) {
    if (!process_.has_value()) return end_;
    const absl::StatusOr<bool> exited = process_->HasExited();
    if (!exited.ok() || !*exited) return end_;
    end_ = PeerEnd::kUnproven;
  }
  if (end_ == PeerEnd::kUnproven) {
    const char* const why = WhyUnproven();
    if (why == nullptr) {
      end_ = PeerEnd::kProven;
    } else {
      why_ = why;
    }
  }
  return end_;
}

const char* PeerWatch::WhyUnproven() {
  if (!deserted_.has_value()) {
    // Whoever looks holds locks.
    const absl::StatusOr<LifelineReading> reading =
        AskLifeline(lifeline_, peer_);
    if (absl::IsUnavailable(reading.status())) {
      return "the kernel has not said yet whether a process that it forked "
             "lives";
    }
    if (!reading.ok()) {
      return "its lifeline cannot be read, so that nobody knows whether a "
             "process that it forked lives";
    }
    if (reading->mapped) {
      was_outlived_ = true;
      return "a process that it forked, and that may have its GPU context, "
             "lives";
    }
    if (reading->unseen) {
      return "it forked processes that cannot be watched, and that may have "
             "its GPU context";
    }
    if (reading->forks == 0 && !was_outlived_) return nullptr;
    deserted_ = std::chrono::steady_clock::now();
  }
  if (std::chrono::steady_clock::now() - *deserted_ >= kTeardown) {
    return nullptr;
  }
  return "it had forked, and the GPU context that it shared with its "
         "children may be there for 2 s more";
}

absl::Status PeerWatch::WaitForEnd(Deadline deadline) {
  for (;;) {
    const PeerEnd end = Look();
    if (end == PeerEnd::kProven) return absl::OkStatus();
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          end == PeerEnd::kUnproven
              ? absl::StrCat("the peer's process has ended, but ", why_)
              : std::string("the peer's process is not known to have ended"));
    }
    if (process_.has_value() && end == PeerEnd::kNotEnded) {
      process_->WaitForExit(deadline).IgnoreError();
    } else {
      absl::SleepFor(std::min(kLookAgain, deadline.Left()));
    }
  }
}

}  // namespace vmm::platform
