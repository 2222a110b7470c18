// DeviceWords: how the host reads and writes the words of fences in a device's
// memory, which no CPU reaches; internal to vmm/.
//
// It goes through the driver, on a stream that is used for nothing else: the words
// come as a copy to the host, and what is written comes behind one. Those have
// hardware queues of their own, so that they stand behind no stream that waits
// (measured with 128: a look takes 14 us) but one that copied to the host last: with
// as many of these as there are queues no look is answered (measured). The stream is made with the object: making one while
// others wait can hang in the driver (seen with 64 that waited). The default stream
// would not do: a copy on it stood behind a stream that waited (seen on H200).
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_FENCE_DEVICE_WORDS_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_FENCE_DEVICE_WORDS_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/base/keepable.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"
#include "vmm/memory/device.h"
#include "vmm/memory/internal/own_stream.h"
#include "vmm/memory/internal/pinned_bytes.h"
#include "vmm/sync/internal/fence_kernels.h"

namespace vmm::fence {

// For one thread at a time. What is put on the stream has been done once Await() is
// OK. REQUIRES, but of what says otherwise: the context of Enter() is current.
class DeviceWords {
 public:
  // The words of fences from `first` on, to which `device` has access.
  static absl::StatusOr<std::unique_ptr<DeviceWords>> Make(const Device& device,
                                                           CUdeviceptr first);
  // In any context. Waits for what is on the stream, a second at most.
  ~DeviceWords();
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;

  // In any context, by any threads.
  const platform::Driver& driver() const { return driver_; }
  absl::StatusOr<CurrentContext> Enter() const {
    return context_->MakeCurrent();
  }

  // What was in two words of `fence` when they were copied, not in one moment.
  struct Found {
    std::uint64_t value = 0;
    std::uint64_t abandoned = 0;
  };
  absl::StatusOr<Found> Read(CUdeviceptr fence, Deadline deadline);
  // Puts `value` at `word`.
  absl::Status Write(CUdeviceptr word, std::uint64_t value);
  // Puts zeros at the first `bytes`.
  absl::Status Zero(std::uint64_t bytes);
  // Puts a launch of each of `kernels` there, by which the driver loads it.
  absl::Status Warm(const FenceKernels& kernels);
  // In any context. DEADLINE_EXCEEDED: the device has not answered.
  absl::Status Await(Deadline deadline);

 private:
  DeviceWords(const platform::Driver& driver, CUdeviceptr first,
              std::shared_ptr<const PrimaryContext> context,
              PinnedBytes landing, OwnedStream stream);

  const platform::Driver driver_;
  const CUdeviceptr first_;
  const std::shared_ptr<const PrimaryContext> context_;
  platform::Keepable<PinnedBytes> landing_;  // Where copies arrive.
  const OwnedStream stream_;
  bool busy_ = false;  // The stream's work may not be done.
  // A fill or a kernel is among it, which stands where as many streams wait as there
  // are queues, whatever they did last.
  bool has_filled_ = false;
};

}  // namespace vmm::fence

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_FENCE_DEVICE_WORDS_H_
