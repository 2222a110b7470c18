// Watcher: a thread that looks after a ring's peer between calls; internal to
// vmm/.
//
// A host that stands in cuStreamSynchronize() makes no call of the ring. So
// somebody else has to see that the peer has gone, and let the stream go.
#ifndef VMMSHARE_VMM_QUEUE_INTERNAL_WATCHER_H_
#define VMMSHARE_VMM_QUEUE_INTERNAL_WATCHER_H_

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "platform/base/mutex.h"

namespace vmm::ring {

// Not movable; thread-compatible. In a forked child it must not be destroyed.
class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { Stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Calls `look` ten times a second from now on, on a thread. Once.
  // RESOURCE_EXHAUSTED when no thread can be had.
  absl::Status Start(std::function<void()> look);
  // Returns once `look` runs no more.
  void Stop();

 private:
  void Run();

  std::function<void()> look_;
  platform::Mutex mutex_;
  platform::CondVar changed_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace vmm::ring

#endif  // VMMSHARE_VMM_QUEUE_INTERNAL_WATCHER_H_
