// What libpmix is asked, and calls back with, from a thread of its own.
//
// Internal to fabric/pmix.cc.
#ifndef VMMSHARE_FABRIC_PMIX_ANSWER_H_
#define VMMSHARE_FABRIC_PMIX_ANSWER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fabric/exchange.h"
#include "fabric/pmix_abi.h"
#include "platform/base/mutex.h"
#include "platform/os/deadline.h"

namespace vmm::fabric {

// What libpmix calls back with.
struct PmixReply {
  pmix::Status status = pmix::kSuccess;
  std::uint16_t type = 0;
  std::uint32_t number = 0;
  Bytes bytes = {};
};

// An answer that is waited for. libpmix may give it after the waiter has left:
// both hold it.
class PmixAnswer {
 public:
  // What was asked. libpmix looks at it from a thread of its own, until it
  // answers (seen: it does not copy the key).
  pmix::Proc process{};
  std::string key;
  std::array<pmix::Info, 2> how{};

  // What libpmix is given to call back with, once: by Done() or GotValue().
  static void* Hold(const std::shared_ptr<PmixAnswer>& answer);
  // Takes it back where it is not called.
  static std::shared_ptr<PmixAnswer> TakeBack(void* held);
  // pmix::DoneCallback and pmix::ValueCallback: give the answer that is held.
  static void Done(pmix::Status status, void* held);
  static void GotValue(pmix::Status status, pmix::Value* value, void* held);

  void Give(PmixReply content) {
    const platform::MutexLock lock(mutex_);
    content_ = std::move(content);
    given_.NotifyAll();
  }

  // Nothing when it has not come by `deadline`.
  std::optional<PmixReply> WaitFor(Deadline deadline) {
    platform::MutexLock lock(mutex_);
    while (!content_.has_value() && !deadline.Passed()) {
      given_.WaitFor(mutex_, deadline.Slice());
    }
    return content_;
  }

 private:
  platform::Mutex mutex_;
  platform::CondVar given_;
  std::optional<PmixReply> content_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace vmm::fabric

#endif  // VMMSHARE_FABRIC_PMIX_ANSWER_H_
