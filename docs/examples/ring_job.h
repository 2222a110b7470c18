// What the ring example and its comparison share: the job, and a place to work.
#ifndef VMMSHARE_DOCS_EXAMPLES_RING_JOB_H_
#define VMMSHARE_DOCS_EXAMPLES_RING_JOB_H_

#include <cuda.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "vmm/vmm.h"

namespace examples {

// Frames that differ, which the items go through by turns. The consumer keeps
// one item of each, the last, and looks at it when all has come.
constexpr std::uint64_t kFrames = 4;
// Items of one frame go to one stream, in order.
constexpr std::uint64_t kMaxStreams = kFrames;

struct RingJob {
  std::uint64_t buffers = 0;
  std::uint64_t size = 0;
  std::uint64_t items = 0;
  std::uint64_t streams = 0;
  std::uint64_t corrupt = 0;  // An item's number; 0: none.
  absl::Time deadline;
};

// Streams, and `count` buffers of the job's size, private to this process.
class Workplace {
 public:
  static absl::StatusOr<Workplace> Make(const vmm::Device& device,
                                        std::uint64_t count,
                                        const RingJob& job) {
    absl::StatusOr<vmm::Allocation> memory = vmm::Allocation::Create(
        device,
        {.size = count * job.size, .sharing = vmm::SharePolicy::Private()});
    if (!memory.ok()) return memory.status();
    const vmm::platform::Driver& driver = device.driver();
    Workplace made(driver, *std::move(memory), job.size);
    while (made.streams_.size() < job.streams) {
      CUstream stream = nullptr;
      if (CUresult r = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
          r != CUDA_SUCCESS) {
        return driver.Error(r, "cuStreamCreate()");
      }
      made.streams_.push_back(stream);
    }
    return made;
  }
  Workplace(Workplace&& other) noexcept
      : driver_(std::move(other.driver_)),
        memory_(std::move(other.memory_)),
        size_(other.size_),
        streams_(std::exchange(other.streams_, {})) {}
  Workplace& operator=(Workplace&&) = delete;
  ~Workplace() {
    for (CUstream stream : streams_) {
      driver_->cuStreamSynchronize(stream);
      driver_->cuStreamDestroy(stream);
    }
  }

  const vmm::platform::Driver& driver() const { return driver_; }
  CUstream StreamOf(std::uint64_t item) const {
    return streams_[item % streams_.size()];
  }
  CUdeviceptr At(std::uint64_t index) const {
    return memory_.address() + index * size_;
  }
  absl::Status Copy(CUdeviceptr to, CUdeviceptr from, CUstream stream) const {
    return driver_.Error(driver_->cuMemcpyDtoDAsync(to, from, size_, stream),
                         "cuMemcpyDtoDAsync()");
  }
  absl::Status Sync() const {
    for (CUstream stream : streams_) {
      if (CUresult r = driver_->cuStreamSynchronize(stream);
          r != CUDA_SUCCESS) {
        return driver_.Error(r, "cuStreamSynchronize()");
      }
    }
    return absl::OkStatus();
  }

 private:
  Workplace(const vmm::platform::Driver& driver, vmm::Allocation memory,
            std::uint64_t size)
      : driver_(driver), memory_(std::move(memory)), size_(size) {}

  vmm::platform::Driver driver_;
  vmm::Allocation memory_;
  std::uint64_t size_;
  std::vector<CUstream> streams_;
};

// Bytes a second, since `start`.
inline double Speed(const RingJob& job, absl::Time start) {
  return static_cast<double>(job.items * job.size) /
         absl::ToDoubleSeconds(absl::Now() - start);
}

// Bytes a second of one process that makes the ring's copies without the ring,
// from `producer` to `consumer`, which may be the same.
absl::StatusOr<double> CopyInOneProcess(const vmm::Device& producer,
                                        const vmm::Device& consumer,
                                        const RingJob& job);

}  // namespace examples

#endif  // VMMSHARE_DOCS_EXAMPLES_RING_JOB_H_
