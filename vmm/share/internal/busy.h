// What a client does whom a server has no room for: it waits and tries again,
// until its deadline; internal to vmm/.
#ifndef VMMSHARE_VMM_SHARE_INTERNAL_BUSY_H_
#define VMMSHARE_VMM_SHARE_INTERNAL_BUSY_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "platform/base/annotate.h"
#include "platform/ipc/channel.h"
#include "platform/os/deadline.h"

namespace vmm {

// Whether a server had room for who asked.
enum class Busy {
  kNo,      // It had, or nobody can know.
  kSaid,    // It said that it has none.
  kUnread,  // It hung up before it was asked: see TurnedAwayUnread().
};

// Whether a server that answered `status` over `channel`, to what was asked of
// it first, may have room later. An error of this side closes the channel.
inline bool IsBusy(const absl::Status& status,
                   const platform::Channel& channel) {
  return absl::IsResourceExhausted(status) && channel.is_open();
}

// A server that hung up before it could be asked: it had turned so many away
// that it did not wait until this one had read why. Or it was ending.
absl::Status TurnedAwayUnread(absl::string_view server,
                              const absl::Status& hung_up);

// Pauses between tries, random ones, so that those who are turned away together
// do not come back together. Thread-compatible.
class Backoff {
 public:
  explicit Backoff(Deadline deadline) : deadline_(deadline) {}
  // Pauses; false, at once, when there is no time for another try. A caller
  // without a deadline does not wait: it might be for ever. But after kUnread it
  // tries once more, and learns whether the server is still there.
  bool Pause(Busy busy);
  int tries() const { return tries_; }
  bool has_deadline() const;

 private:
  const Deadline deadline_;
  absl::Duration pause_ = absl::Milliseconds(5);
  int tries_ = 1;
};

// Calls `once(busy)` until it succeeds, fails with `*busy` as it was, kNo, or
// `deadline`. Then the last error with which it was busy is returned, with the
// number of tries.
template <typename Once>
auto RetryWhileBusy(Deadline deadline, Once once) -> decltype(once(nullptr)) {
  absl::Status refusal;
  for (Backoff backoff(deadline);;) {
    Busy busy = Busy::kNo;
    auto result = once(&busy);
    if (result.ok()) return result;
    const bool is_over =
        absl::IsDeadlineExceeded(result.status()) && !refusal.ok();
    if (busy == Busy::kNo && !is_over) return result;
    if (busy != Busy::kNo) refusal = result.status();
    if (is_over || !backoff.Pause(busy)) {
      if (backoff.tries() == 1 || !backoff.has_deadline()) return refusal;
      return platform::Annotate(
          refusal, "",
          absl::StrCat("Tried ", backoff.tries(), " times until the deadline"));
    }
  }
}

}  // namespace vmm

#endif  // VMMSHARE_VMM_SHARE_INTERNAL_BUSY_H_
