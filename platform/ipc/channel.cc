// What is the same on every system: how channels move, and events under events.
#include "platform/ipc/channel.h"

#include <utility>

namespace vmm::platform {

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

}  // namespace vmm::platform
