#include "vmm/sync/internal/peer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/lifeline.h"

namespace vmm {
namespace {

// How often who waits for a message looks whether there is somebody to send it.
// A hang-up wakes it at once; a forked child may keep the connection open.
constexpr absl::Duration kLookAtProcess = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<platform::Message> Peer::ReceiveOnce(
    Deadline deadline, const platform::CancelEvent* cancel) {
  absl::StatusOr<platform::Message> message =
      channel_.Receive(deadline, cancel);
  if (!message.ok() || channel_.speakers() == speakers_) return message;
  if (speakers_ != 0) {
    return absl::DataLossError(
        absl::StrCat("another process spoke for ", who_,
                     ", which is one process from its first message to its "
                     "last"));
  }
  speakers_ = channel_.speakers();
  return message;
}

absl::StatusOr<platform::Message> Peer::Receive(
    Deadline deadline, const platform::CancelEvent* cancel) {
  for (;;) {
    absl::StatusOr<platform::Message> message =
        ReceiveOnce(std::min(deadline, Deadline::In(kLookAtProcess)), cancel);
    if (!absl::IsDeadlineExceeded(message.status())) return message;
    if (ProcessHasEnded()) {
      message = ReceiveOnce(absl::InfinitePast(), cancel);  // Said before.
      if (!absl::IsDeadlineExceeded(message.status())) return message;
      return absl::UnavailableError(
          absl::StrCat("the process of ", who_, " has ended"));
    }
    if (deadline.Passed()) return message;
  }
}

absl::Status Peer::ReceiveLifeline(Deadline deadline, std::uint16_t bye) {
  std::uint16_t type = platform::kLifelineMessage;
  absl::StatusOr<platform::PeerWatch> watch =
      platform::PeerWatch::Receive(channel_, deadline, nullptr, &type);
  if (!watch.ok() && type == bye) {
    return absl::UnavailableError(
        absl::StrCat(who_, " gave up while it opened: its own error says why"));
  }
  if (absl::IsInvalidArgument(watch.status())) {
    return absl::DataLossError(watch.status().message());
  }
  RETURN_IF_ERROR(watch.status());
  if (channel_.speakers() != speakers_) {
    return absl::DataLossError(
        absl::StrCat("another process sent a lifeline for ", who_));
  }
  watch_ = *std::move(watch);
  return absl::OkStatus();
}

bool Peer::ProcessHasEnded() {
  return watch_.has_value() && watch_->Look() != platform::PeerEnd::kNotEnded;
}

bool Peer::HasEnded(Deadline deadline) {
  return watch_.has_value() && watch_->WaitForEnd(deadline).ok();
}

std::string Peer::Describe() {
  if (HasEnded(absl::InfinitePast())) return "has ended";
  return ProcessHasEnded()
             ? absl::StrCat("has ended, but ", watch_->why(),
                            ": streams that wait are let go once that is "
                            "over, or by LetGo()")
             : "is not known to have ended: streams that wait are let go by "
               "LetGo()";
}

}  // namespace vmm
