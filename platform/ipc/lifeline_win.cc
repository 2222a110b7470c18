#include "platform/ipc/lifeline.h"

namespace vmm::platform {

absl::Status SendLifeline(Channel&, Deadline) { return absl::OkStatus(); }

void LetGoOfInheritedLifelines() {}

absl::StatusOr<OsHandle> ReceiveLifeline(Channel&, Deadline, const CancelEvent*,
                                         std::uint16_t*) {
  return OsHandle();
}

absl::StatusOr<LifelineReading> ReadLifeline(const OsHandle&) {
  return LifelineReading();
}

absl::StatusOr<LifelineReading> AskLifeline(
    const std::shared_ptr<const OsHandle>&, const PeerCredentials&) {
  return LifelineReading();
}

std::chrono::milliseconds internal::SetLifelinePatience(
    std::chrono::milliseconds) {
  return kLifelinePatience;  // Nobody ever waits.
}

}  // namespace vmm::platform
