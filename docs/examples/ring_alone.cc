// The ring example's comparison: the same copies in one process.
#include "docs/examples/ring_job.h"
#include "vmm/memory/internal/recorded_event.h"

namespace examples {
namespace {

using vmm::platform::Driver;

// What the ring does, in one process: each frame into a buffer, by a stream of
// the producer's device, and out of it by one of the consumer's. Events order
// them, as the ring's fences do, and no host waits.
class OneProcess {
 public:
  static absl::StatusOr<OneProcess> Make(const vmm::Device& producer,
                                         const vmm::Device& consumer,
                                         const RingJob& job) {
    absl::StatusOr<vmm::Allocation> buffers = vmm::Allocation::Create(
        producer,
        {.size = job.buffers * job.size,
         .sharing = vmm::SharePolicy::Private(),
         .also = {{vmm::Location::On(consumer), vmm::Access::kReadWrite}}});
    if (!buffers.ok()) return buffers.status();
    absl::StatusOr<Side> in = MakeSide(producer, job);
    if (!in.ok()) return in.status();
    absl::StatusOr<Side> out = MakeSide(consumer, job);
    if (!out.ok()) return out.status();
    return OneProcess(*std::move(buffers), *std::move(in), *std::move(out));
  }

  // Bytes a second, once through all buffers first.
  absl::StatusOr<double> Copy(const RingJob& job) {
    absl::Time start;
    for (std::uint64_t i = 0; i < job.items + job.buffers; ++i) {
      if (i == job.buffers) {
        absl::Status warm = Sync();
        if (!warm.ok()) return warm;
        start = absl::Now();
      }
      const std::uint64_t buffer = i % job.buffers;
      const CUdeviceptr address = buffers_.address() + buffer * job.size;
      absl::Status in =
          Step(in_, i, address, in_.work.At(i % kFrames),
               i < job.buffers ? nullptr : &out_.passed[buffer], buffer);
      if (!in.ok()) return in;
      absl::Status out = Step(out_, i, out_.work.At(i % kFrames), address,
                              &in_.passed[buffer], buffer);
      if (!out.ok()) return out;
    }
    absl::Status passed = Sync();
    if (!passed.ok()) return passed;
    return Speed(job, start);
  }

 private:
  struct Side {
    vmm::PrimaryContext context;
    Workplace work;
    std::vector<vmm::OwnedEvent> passed;  // One a buffer.
  };

  OneProcess(vmm::Allocation buffers, Side in, Side out)
      : buffers_(std::move(buffers)),
        in_(std::move(in)),
        out_(std::move(out)) {}

  static absl::StatusOr<Side> MakeSide(const vmm::Device& device,
                                       const RingJob& job) {
    absl::StatusOr<vmm::PrimaryContext> context =
        vmm::PrimaryContext::Retain(device);
    if (!context.ok()) return context.status();
    absl::StatusOr<vmm::CurrentContext> current = context->MakeCurrent();
    if (!current.ok()) return current.status();
    absl::StatusOr<Workplace> work = Workplace::Make(device, kFrames, job);
    if (!work.ok()) return work.status();
    Side side{*std::move(context), *std::move(work), {}};
    for (std::uint64_t i = 0; i < job.buffers; ++i) {
      absl::StatusOr<vmm::OwnedEvent> event =
          vmm::RecordEvent(device.driver(), side.work.StreamOf(i));
      if (!event.ok()) return event.status();
      side.passed.push_back(*std::move(event));
    }
    return side;
  }

  // One copy on the item's stream, after `after` and before its own event.
  static absl::Status Step(const Side& side, std::uint64_t item, CUdeviceptr to,
                           CUdeviceptr from, const vmm::OwnedEvent* after,
                           std::uint64_t buffer) {
    absl::StatusOr<vmm::CurrentContext> current = side.context.MakeCurrent();
    if (!current.ok()) return current.status();
    const Driver& driver = side.work.driver();
    CUstream stream = side.work.StreamOf(item);
    if (after != nullptr) {
      const CUresult waits =
          driver->cuStreamWaitEvent(stream, after->get().event, 0);
      if (waits != CUDA_SUCCESS) {
        return driver.Error(waits, "cuStreamWaitEvent()");
      }
    }
    absl::Status copied = side.work.Copy(to, from, stream);
    if (!copied.ok()) return copied;
    return driver.Error(
        driver->cuEventRecord(side.passed[buffer].get().event, stream),
        "cuEventRecord()");
  }

  absl::Status Sync() const {
    absl::Status in = in_.work.Sync();
    return in.ok() ? out_.work.Sync() : in;
  }

  vmm::Allocation buffers_;
  Side in_;
  Side out_;
};

}  // namespace

absl::StatusOr<double> CopyInOneProcess(const vmm::Device& producer,
                                        const vmm::Device& consumer,
                                        const RingJob& job) {
  absl::StatusOr<OneProcess> alone = OneProcess::Make(producer, consumer, job);
  if (!alone.ok()) return alone.status();
  return alone->Copy(job);
}

}  // namespace examples
