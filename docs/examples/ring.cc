// A ring: one process fills buffers on its GPU stream, another one uses them on
// its own, and no host waits for a GPU.
//
//   ring                                   on the installed NVIDIA driver
//   ring --driver=host                     without a GPU, on host memory
//   ring --buffers=8 --size=16M --items=400 --streams=2
//   ring --device=0 --peer=1               used on the second GPU
//
// The producer copies a frame into each buffer, the consumer copies it out, and
// checks some of what came, byte for byte. Before it one process does the same
// copies through as many buffers, on as many streams of the same two devices:
// what it costs to be two processes is the ratio. Each side goes through its
// streams by turns, so that one waits for the other side while another copies.
//
// --corrupt=ITEM publishes one item with a byte changed, to see the check find
// it.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "docs/examples/gpu.h"
#include "docs/examples/pattern.h"
#include "docs/examples/process.h"
#include "docs/examples/support.h"
#include "vmm/recorded_event.h"
#include "vmm/vmm.h"

namespace {

using examples::BytesText;
using examples::ChildProcess;
using examples::CommandLine;
using examples::Gpu;
using examples::Pattern;
using examples::Print;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

// Messages of this program, on a channel beside the ring's.
constexpr std::uint16_t kDone = 1;    // Bytes a second that the consumer had.
constexpr std::uint16_t kFailed = 2;  // Why it failed.

// Frames that differ, which the items go through by turns. The consumer keeps
// one item of each, the last, and looks at it when all has come.
constexpr std::uint64_t kFrames = 4;
// Items of one frame go to one stream, in order.
constexpr std::uint64_t kMaxStreams = kFrames;

struct Job {
  std::uint64_t buffers = 0;
  std::uint64_t size = 0;
  std::uint64_t items = 0;
  std::uint64_t streams = 0;
  std::uint64_t corrupt = 0;  // An item's number; 0: none.
  absl::Time deadline;
};

absl::StatusOr<Job> ReadJob(const CommandLine& line, absl::Time deadline) {
  absl::StatusOr<std::uint64_t> buffers = line.Number("buffers", 8);
  if (!buffers.ok()) return buffers.status();
  absl::StatusOr<std::uint64_t> size = line.Bytes("size", 16 << 20);
  if (!size.ok()) return size.status();
  absl::StatusOr<std::uint64_t> items = line.Number("items", 200);
  if (!items.ok()) return items.status();
  absl::StatusOr<std::uint64_t> corrupt = line.Number("corrupt", 0);
  if (!corrupt.ok()) return corrupt.status();
  absl::StatusOr<std::uint64_t> streams = line.Number("streams", 2);
  if (!streams.ok()) return streams.status();
  if (*streams == 0 || kMaxStreams % *streams != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--streams=", *streams, ": expected 1, 2 or 4"));
  }
  if (*buffers == 0 || *buffers > vmm::kMaxRingBuffers || *items < kFrames) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--buffers=", *buffers, " --items=", *items, ": expected 1 to ",
        vmm::kMaxRingBuffers, " buffers and at least ", kFrames, " items"));
  }
  return Job{*buffers, *size, *items, *streams, *corrupt, deadline};
}

// Streams, and `count` buffers of the job's size, private to this process.
class Workplace {
 public:
  static absl::StatusOr<Workplace> Make(const vmm::Device& device,
                                        std::uint64_t count, const Job& job) {
    absl::StatusOr<vmm::Allocation> memory = vmm::Allocation::Create(
        device,
        {.size = count * job.size, .sharing = vmm::SharePolicy::Private()});
    if (!memory.ok()) return memory.status();
    const Driver& driver = device.driver();
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

  const Driver& driver() const { return driver_; }
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
  Workplace(const Driver& driver, vmm::Allocation memory, std::uint64_t size)
      : driver_(driver), memory_(std::move(memory)), size_(size) {}

  Driver driver_;
  vmm::Allocation memory_;
  std::uint64_t size_;
  std::vector<CUstream> streams_;
};

double Speed(const Job& job, absl::Time start) {
  return static_cast<double>(job.items * job.size) /
         absl::ToDoubleSeconds(absl::Now() - start);
}

// What the ring does, in one process: each frame into a buffer, by a stream of
// the producer's device, and out of it by one of the consumer's. Events order
// them, as the ring's fences do, and no host waits.
class OneProcess {
 public:
  static absl::StatusOr<OneProcess> Make(const Gpu& producer,
                                         const vmm::Device& consumer,
                                         const Job& job) {
    absl::StatusOr<vmm::Allocation> buffers = vmm::Allocation::Create(
        producer.device,
        {.size = job.buffers * job.size,
         .sharing = vmm::SharePolicy::Private(),
         .also = {{vmm::Location::On(consumer), vmm::Access::kReadWrite}}});
    if (!buffers.ok()) return buffers.status();
    absl::StatusOr<Side> in = MakeSide(producer.device, job);
    if (!in.ok()) return in.status();
    absl::StatusOr<Side> out = MakeSide(consumer, job);
    if (!out.ok()) return out.status();
    return OneProcess(*std::move(buffers), *std::move(in), *std::move(out));
  }

  // Bytes a second, once through all buffers first.
  absl::StatusOr<double> Copy(const Job& job) {
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
                                       const Job& job) {
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

absl::StatusOr<double> CopyInOneProcess(const Gpu& gpu, const CommandLine& line,
                                        const Job& job) {
  absl::StatusOr<std::uint64_t> own = line.Number("device", 0);
  if (!own.ok()) return own.status();
  absl::StatusOr<std::uint64_t> peer = line.Number("peer", *own);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<vmm::Device> consumer =
      vmm::Device::ByOrdinal(gpu.device.driver(), static_cast<int>(*peer));
  if (!consumer.ok()) return consumer.status();
  absl::StatusOr<OneProcess> alone = OneProcess::Make(gpu, *consumer, job);
  if (!alone.ok()) return alone.status();
  return alone->Copy(job);
}

// The producer's side of the ring.
absl::Status Produce(vmm::RingWriter& ring, const Workplace& work,
                     const Job& job) {
  for (std::uint64_t i = 0; i < job.items; ++i) {
    CUstream stream = work.StreamOf(i);
    absl::StatusOr<vmm::RingBuffer> buffer = ring.Acquire(stream, job.deadline);
    if (!buffer.ok()) return buffer.status();
    // Beside the frames lies a spoilt one.
    const bool spoil = buffer->number == job.corrupt;
    absl::Status copied = work.Copy(
        buffer->address, work.At(spoil ? kFrames : i % kFrames), stream);
    if (!copied.ok()) return copied;
    absl::Status sent = ring.Publish(*buffer, stream, job.deadline);
    if (!sent.ok()) return sent;
  }
  return ring.Finish(job.deadline);
}

// The consumer's. Bytes a second from the first item on.
absl::StatusOr<double> Consume(vmm::RingReader& ring, const Workplace& work,
                               const Job& job) {
  absl::Time start;
  for (std::uint64_t i = 0;; ++i) {
    CUstream stream = work.StreamOf(i);
    absl::StatusOr<vmm::RingBuffer> buffer = ring.Acquire(stream, job.deadline);
    if (absl::IsOutOfRange(buffer.status())) break;
    if (!buffer.ok()) return buffer.status();
    if (i == 0) start = absl::Now();
    absl::Status copied =
        work.Copy(work.At(i % kFrames), buffer->address, stream);
    if (!copied.ok()) return copied;
    absl::Status freed = ring.Release(*buffer, stream);
    if (!freed.ok()) return freed;
  }
  absl::Status finished = ring.Finish(job.deadline);
  if (!finished.ok()) return finished;
  return Speed(job, start);
}

absl::Status RunProducer(const Driver& driver, const CommandLine& line,
                         absl::Time deadline) {
  absl::StatusOr<Job> job = ReadJob(line, deadline);
  if (!job.ok()) return job.status();
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver, line);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<double> alone = CopyInOneProcess(*gpu, line, *job);
  if (!alone.ok()) return alone.status();

  absl::StatusOr<Workplace> work =
      Workplace::Make(gpu->device, kFrames + 1, *job);
  if (!work.ok()) return work.status();
  for (std::uint64_t i = 0; i <= kFrames; ++i) {
    absl::Status filled =
        examples::Fill(driver, work->At(i), job->size, Pattern{.seed = i});
    if (!filled.ok()) return filled;
  }
  absl::StatusOr<std::unique_ptr<vmm::RingHome>> home =
      vmm::RingHome::Create(gpu->device);
  if (!home.ok()) return home.status();
  absl::StatusOr<Listener> listener = Listener::Bind({}, {});
  if (!listener.ok()) return listener.status();
  absl::StatusOr<ChildProcess> consumer = ChildProcess::StartSelf(
      {absl::StrCat("--connect=", listener->address()),
       absl::StrCat("--driver=", line.Text("driver", "system")),
       absl::StrCat("--device=", line.Text("peer", line.Text("device", "0"))),
       absl::StrCat("--size=", job->size), absl::StrCat("--items=", job->items),
       absl::StrCat("--streams=", job->streams),
       absl::StrCat("--timeout=", line.Text("timeout", "60"))});
  if (!consumer.ok()) return consumer.status();
  absl::StatusOr<Channel> words = consumer->Accept(*listener, deadline);
  if (!words.ok()) return words.status();
  absl::StatusOr<Channel> channel = consumer->Accept(*listener, deadline);
  if (!channel.ok()) return channel.status();

  absl::StatusOr<std::unique_ptr<vmm::RingWriter>> ring = vmm::RingWriter::Open(
      **home, *std::move(channel),
      {.buffers = static_cast<std::uint32_t>(job->buffers), .bytes = job->size},
      deadline);
  if (!ring.ok()) return ring.status();
  absl::Status produced = Produce(**ring, *work, *job);
  // If the consumer has failed, that is why.
  absl::StatusOr<examples::TextMessage> heard =
      examples::Hear(*words, deadline);
  if (heard.ok() && heard->type == kFailed) {
    return absl::AbortedError(absl::StrCat("the consumer: ", heard->text));
  }
  if (!produced.ok()) return produced;
  if (!heard.ok()) return heard.status();
  double through = 0;
  if (!absl::SimpleAtod(heard->text, &through)) {
    return absl::DataLossError("the consumer sent no number");
  }
  ring->reset();
  absl::Status ended = consumer->Wait(deadline);
  if (!ended.ok()) return ended;
  Print(absl::StrFormat("one process: %8.2f GB/s in and out", *alone * 1e-9));
  Print(absl::StrFormat("the ring:    %8.2f GB/s, %.2f of that", through * 1e-9,
                        through / *alone));
  Print(absl::StrCat("OK: ", job->items, " items of ", BytesText(job->size),
                     " went through ", job->buffers, " buffers; the last ",
                     kFrames, " were verified"));
  return absl::OkStatus();
}

absl::StatusOr<double> RunConsumer(Channel channel, const Driver& driver,
                                   const CommandLine& line,
                                   absl::Time deadline) {
  absl::StatusOr<Job> job = ReadJob(line, deadline);
  if (!job.ok()) return job.status();
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver, line);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<Workplace> work = Workplace::Make(gpu->device, kFrames, *job);
  if (!work.ok()) return work.status();
  absl::StatusOr<std::unique_ptr<vmm::RingReader>> ring =
      vmm::RingReader::Open(gpu->device, std::move(channel), {}, deadline);
  if (!ring.ok()) return ring.status();
  absl::StatusOr<double> speed = Consume(**ring, *work, *job);
  if (!speed.ok()) return speed.status();
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    absl::Status same =
        examples::Verify(driver, work->At(i), job->size, Pattern{.seed = i});
    if (same.ok()) continue;
    return absl::DataLossError(
        absl::StrCat("the last item of frame ", i, ": ", same.message()));
  }
  return speed;
}

absl::Status Join(const Driver& driver, const CommandLine& line,
                  absl::Time deadline) {
  const std::string address = line.Text("connect", "");
  absl::StatusOr<Channel> words = Channel::Connect(address, {}, deadline);
  if (!words.ok()) return words.status();
  absl::StatusOr<Channel> channel = Channel::Connect(address, {}, deadline);
  if (!channel.ok()) return channel.status();
  absl::StatusOr<double> speed =
      RunConsumer(*std::move(channel), driver, line, deadline);
  if (speed.ok()) {
    return examples::Say(*words, {kDone, absl::StrCat(*speed)}, deadline);
  }
  // The producer is told, so that it never waits for nothing.
  examples::Say(*words, {kFailed, speed.status().ToString().substr(0, 1024)},
                deadline)
      .IgnoreError();
  return speed.status();
}

absl::Status Run(int argc, char** argv) {
  absl::StatusOr<CommandLine> line =
      CommandLine::Parse(argc, argv,
                         {"corrupt", "driver", "device", "peer", "buffers",
                          "size", "items", "streams", "timeout", "connect"});
  if (!line.ok()) return line.status();
  absl::StatusOr<absl::Time> deadline = line->Deadline();
  if (!deadline.ok()) return deadline.status();
  absl::StatusOr<Driver> driver = examples::LoadDriver(*line);
  if (!driver.ok()) return driver.status();
  if (line->Has("connect")) return Join(*driver, *line, *deadline);
  Print(absl::StrCat("driver: ", driver->Describe()));
  return RunProducer(*driver, *line, *deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("ring", Run(argc, argv));
}
