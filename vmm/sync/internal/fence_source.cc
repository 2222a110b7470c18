#include "vmm/sync/internal/fence_source.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "vmm/memory/internal/device_attribute.h"

namespace vmm::fence {
namespace {

// Of those that wait, at each Collect(): more than one comes for each that is
// made, so that they do not pile up, and few enough to cost nothing.
constexpr std::size_t kLookedAt = 8;

// Whether all that the fence put on streams has been signalled, as its word
// says. A peer that writes there early has a late signal come into another
// fence, which it could as well write itself: nothing is unmapped by this.
bool HasSignalled(const Leaving& fence) {
  return fence.enqueued == 0 ||
         fence.base + Look(WordsAt(fence.at), fence.base).value >=
             fence.enqueued;
}

}  // namespace

absl::Status CheckStreamOperations(const Device& device) {
  ASSIGN_OR_RETURN(
      const int can,
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                      "CAN_USE_64_BIT_STREAM_MEM_OPS"));
  if (can != 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      device.Describe(),
      " has no 64-bit stream memory operations (CU_DEVICE_ATTRIBUTE_"
      "CAN_USE_64_BIT_STREAM_MEM_OPS is 0), by which fences are signalled and "
      "waited for; nothing else can wait for what is yet to be signalled. Use "
      "CUDA's interprocess events (cuIpcGetEventHandle) there"));
}

Source::Source(platform::Driver driver, Memory& memory,
               const std::optional<Device>& device)
    : driver_(std::move(driver)), memory_(memory) {
  if (device.has_value()) spare_.emplace(*device);
}

void Source::Release(Leaving fence) {
  --fences_;
  GiveBack(std::move(fence));
}

PooledSource::PooledSource(platform::Driver driver,
                           const std::optional<Device>& device)
    : Source(std::move(driver), HostMemory(), device) {}

void PooledSource::GiveBack(Leaving fence) {
  if (HasSignalled(fence)) {
    GiveBackNow(std::move(fence));
    return;
  }
  platform::MutexLock lock(mutex_);
  waiting_.push_back(std::move(fence));
  ++waiting_count_;
}

void PooledSource::Collect() {
  if (waiting_count_ == 0) return;
  std::vector<Leaving> signalled;
  {
    platform::MutexLock lock(mutex_);
    for (std::size_t i = std::min(kLookedAt, waiting_.size()); i > 0; --i) {
      Leaving fence = std::move(waiting_.front());
      waiting_.pop_front();
      if (HasSignalled(fence)) {
        signalled.push_back(std::move(fence));
        --waiting_count_;
      } else {
        waiting_.push_back(std::move(fence));
      }
    }
  }
  for (Leaving& fence : signalled) GiveBackNow(std::move(fence));
}

void PooledSource::DropWaiting() {
  platform::MutexLock lock(mutex_);
  waiting_.clear();
}

}  // namespace vmm::fence
