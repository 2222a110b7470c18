#include "vmm/queue/internal/watcher.h"

#include <utility>

#include "platform/os/start_thread.h"

namespace vmm::ring {
namespace {

// What a stream that waits for a peer that has gone waits longer than it must.
constexpr std::chrono::milliseconds kLookAgain{100};

}  // namespace

void Watcher::Stop() {
  {
    const platform::MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status Watcher::Start(std::function<void()> look) {
  look_ = std::move(look);
  return platform::StartThread(thread_, "vmmshare-watch",
                               "that looks after a ring's peer",
                               [this] { Run(); });
}

void Watcher::Run() {
  platform::MutexLock lock(mutex_);
  while (!ends_) {
    changed_.WaitFor(mutex_, kLookAgain);
    if (ends_) return;
    const platform::MutexUnlock while_looking(mutex_);
    look_();
  }
}

}  // namespace vmm::ring
