#include "vmm/share/internal/lease_connection.h"

#include <mutex>
#include <utility>

#include "absl/time/clock.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/share/internal/protocol.h"

namespace vmm {
namespace {

// How long a return may wait for an owner that does not read. Later the owner
// sees a hang-up, and waits for the end of this process.
constexpr absl::Duration kReturnTimeout = absl::Seconds(1);

}  // namespace

LeaseConnection::LeaseConnection(platform::Channel channel,
                                 const std::vector<MemoryId>& ids)
    : channel_(std::move(channel)), to_return_(ids.size()) {
  for (const MemoryId& id : ids) ++held_[id].times;
}

void LeaseConnection::Return(const MemoryId& id) {
  if (!made_.is_still_here()) return;
  {
    platform::MutexLock lock(mutex_);
    const auto found = held_.find(id);
    if (--found->second.times == 0) held_.erase(found);
  }
  platform::MutexLock lock(sending_);
  // An owner that has gone need not know.
  protocol::SendReturn(channel_, {id}, Deadline::In(kReturnTimeout))
      .IgnoreError();
  if (--to_return_ == 0) channel_.Close();
}

LeaseStatus LeaseConnection::StatusOf(const MemoryId& id) {
  if (!made_.is_still_here()) {
    return {absl::FailedPreconditionError(
                "a forked child has no lease: its parent has"),
            std::nullopt};
  }
  platform::MutexLock lock(mutex_);
  // One reads; others find what it has read.
  if (connection_.ok() && !std::exchange(is_reading_, true)) {
    lock.Unlock();
    absl::Status news;
    for (int i = 0; i < kMostNews && news.ok(); ++i) news = ReadNews();
    lock.Lock();
    is_reading_ = false;
    if (!absl::IsDeadlineExceeded(news)) {  // There are no more.
      connection_ = platform::Annotate(news, "the owner of the memory");
    }
  }
  LeaseStatus status{connection_, std::nullopt};
  const auto found = held_.find(id);
  if (found != held_.end()) status.return_by = found->second.return_by;
  return status;
}

absl::Status LeaseConnection::ReadNews() {
  ASSIGN_OR_RETURN(const platform::Message message,
                   channel_.Receive(absl::InfinitePast()));
  absl::StatusOr<protocol::Recall> recall = protocol::DecodeRecall(message);
  if (!recall.ok()) {
    // Unless something is being returned: then that is the end of it.
    if (sending_.TryLock()) {
      const platform::MutexLock lock(sending_, std::adopt_lock);
      channel_.Close();
    }
    return recall.status();
  }
  const absl::Time return_by = absl::Now() + recall->within;
  platform::MutexLock lock(mutex_);
  for (const MemoryId& id : recall->ids) {
    const auto found = held_.find(id);
    if (found != held_.end()) found->second.return_by = return_by;
  }
  return absl::OkStatus();
}

}  // namespace vmm
