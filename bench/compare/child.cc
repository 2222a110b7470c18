#include "bench/compare/child.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace bench::compare {

using vmm::platform::Channel;
using vmm::platform::Listener;

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), process_(std::move(other.process_)) {}

Child::~Child() {
  if (pid_ == 0) return;
  Kill();
  Reap();
}

absl::StatusOr<Channel> Child::Accept(Listener& listener, absl::Time deadline) {
  // In turns: a child that ended will not connect any more.
  for (;;) {
    const absl::Time turn =
        std::min(deadline, absl::Now() + absl::Milliseconds(200));
    absl::StatusOr<Channel> channel = listener.Accept(turn);
    if (channel.ok() || !absl::IsDeadlineExceeded(channel.status())) {
      return channel;
    }
    absl::StatusOr<bool> ended = process_.HasExited();
    if (!ended.ok()) return ended.status();
    if (*ended) {
      return absl::AbortedError(
          absl::StrCat("process ", pid_, " ended before it connected"));
    }
    if (absl::Now() >= deadline) return channel;
  }
}

absl::Status Child::Wait(absl::Time deadline) {
  absl::Status ended = process_.WaitForExit(deadline);
  if (!ended.ok()) return ended;
  const std::int64_t pid = pid_;
  const int status = Reap();
  if (status == 0) return absl::OkStatus();
  return absl::AbortedError(
      status < 0
          ? absl::StrCat("process ", pid, " was ended by signal ", -status)
          : absl::StrCat("process ", pid, " ended with exit status ", status));
}

}  // namespace bench::compare
