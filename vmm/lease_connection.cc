#include "vmm/lease_connection.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "platform/annotate.h"
#include "platform/process.h"
#include "vmm/protocol.h"

namespace vmm {
namespace {

// How long a return may wait for an owner that does not read. Later the owner
// sees a hang-up, and waits for the end of this process.
constexpr absl::Duration kReturnTimeout = absl::Seconds(1);

}  // namespace

LeaseConnection::LeaseConnection(platform::Channel channel,
                                 std::vector<MemoryId> ids)
    : forks_(platform::ForksSoFar()),
      channel_(std::move(channel)),
      held_(std::move(ids)) {}

void LeaseConnection::Return(const MemoryId& id) {
  if (platform::ForksSoFar() != forks_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  held_.erase(std::find(held_.begin(), held_.end(), id));
  if (std::find(held_.begin(), held_.end(), id) == held_.end()) {
    return_by_.erase(id);
  }
  // An owner that has gone need not know.
  protocol::SendReturn(channel_, {id}, absl::Now() + kReturnTimeout)
      .IgnoreError();
  if (held_.empty()) channel_.Close();
}

LeaseStatus LeaseConnection::StatusOf(const MemoryId& id) {
  if (platform::ForksSoFar() != forks_) {
    return {absl::FailedPreconditionError(
                "a forked child has no lease: its parent has"),
            std::nullopt};
  }
  std::lock_guard<std::mutex> lock(mutex_);
  while (connection_.ok()) {
    const absl::Status news = ReadNews();
    if (absl::IsDeadlineExceeded(news)) break;  // There are no more.
    connection_ = platform::Annotate(news, "the owner of the memory");
  }
  LeaseStatus status{connection_, std::nullopt};
  const auto wanted = return_by_.find(id);
  if (wanted != return_by_.end()) status.return_by = wanted->second;
  return status;
}

absl::Status LeaseConnection::ReadNews() {
  absl::StatusOr<platform::Message> message =
      channel_.Receive(absl::InfinitePast());
  if (!message.ok()) return message.status();
  absl::StatusOr<protocol::Recall> recall = protocol::DecodeRecall(*message);
  if (!recall.ok()) {
    channel_.Close();
    return recall.status();
  }
  const absl::Time return_by = absl::Now() + recall->within;
  for (const MemoryId& id : recall->ids) {
    if (std::find(held_.begin(), held_.end(), id) != held_.end()) {
      return_by_[id] = return_by;
    }
  }
  return absl::OkStatus();
}

}  // namespace vmm
