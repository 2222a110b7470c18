// What is the same on every system: how channels move, events under events, and
// names that are taken.
#include "platform/ipc/channel.h"

#include <utility>

#include "absl/strings/cord.h"
#include "platform/ipc/peer.h"

namespace vmm::platform {
namespace {

constexpr char kTakenPayload[] = "vmmshare/taken_by_process";

}  // namespace

Channel::Channel(Channel&& other) noexcept
    : socket_(std::move(other.socket_)),
      peer_(std::move(other.peer_)),
      broken_(other.broken_.load()),
      state_(std::move(other.state_)) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  if (this != &other) {
    Close();
    socket_ = std::move(other.socket_);
    peer_ = std::move(other.peer_);
    broken_ = other.broken_.load();
    state_ = std::move(other.state_);
  }
  return *this;
}

Channel::~Channel() { Close(); }

absl::StatusOr<CancelEvent> CancelEvent::CreateUnder(
    const CancelEvent& parent) {
  absl::StatusOr<CancelEvent> made = Create();
  if (made.ok()) made->parent_ = &parent.handle();
  return made;
}

absl::Status TakenByProcessError(absl::string_view message) {
  absl::Status status = absl::AlreadyExistsError(message);
  status.SetPayload(kTakenPayload, absl::Cord("yes"));
  return status;
}

bool IsTakenByProcess(const absl::Status& status) {
  return status.GetPayload(kTakenPayload).has_value();
}

}  // namespace vmm::platform
