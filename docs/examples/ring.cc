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
#include "vmm/queue/ring.h"

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
#include "docs/examples/ring_job.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

namespace {

using examples::BytesText;
using examples::ChildProcess;
using examples::CommandLine;
using examples::Gpu;
using examples::kFrames;
using examples::kMaxStreams;
using examples::Pattern;
using examples::Print;
using examples::RingJob;
using examples::Workplace;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

// Messages of this program, on a channel beside the ring's.
constexpr std::uint16_t kDone = 1;    // Bytes a second that the consumer had.
constexpr std::uint16_t kFailed = 2;  // Why it failed.

absl::StatusOr<RingJob> ReadJob(const CommandLine& line, absl::Time deadline) {
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
  return RingJob{*buffers, *size, *items, *streams, *corrupt, deadline};
}

absl::StatusOr<vmm::Device> ConsumersDevice(const Driver& driver,
                                            const CommandLine& line) {
  absl::StatusOr<std::uint64_t> own = line.Number("device", 0);
  if (!own.ok()) return own.status();
  absl::StatusOr<std::uint64_t> peer = line.Number("peer", *own);
  if (!peer.ok()) return peer.status();
  return vmm::Device::ByOrdinal(driver, static_cast<int>(*peer));
}

// The producer's side of the ring.
absl::Status Produce(vmm::RingWriter& ring, const Workplace& work,
                     const RingJob& job) {
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
                               const RingJob& job) {
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
  return examples::Speed(job, start);
}

absl::Status RunProducer(const Driver& driver, const CommandLine& line,
                         absl::Time deadline) {
  absl::StatusOr<RingJob> job = ReadJob(line, deadline);
  if (!job.ok()) return job.status();
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver, line);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<vmm::Device> peer = ConsumersDevice(driver, line);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<double> alone =
      examples::CopyInOneProcess(gpu->device, *peer, *job);
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
  // A consumer that is there waits for what will not come: it learns that by
  // the end of the ring.
  if (!produced.ok() && !absl::IsUnavailable(produced)) return produced;
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
  absl::StatusOr<RingJob> job = ReadJob(line, deadline);
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
