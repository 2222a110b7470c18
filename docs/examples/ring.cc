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

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/gpu.h"
#include "docs/examples/pattern.h"
#include "docs/examples/process.h"
#include "docs/examples/ring_job.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

ABSL_FLAG(std::uint64_t, buffers, 8, "of the ring");
ABSL_FLAG(examples::Bytes, size, {16 << 20}, "bytes of a buffer");
ABSL_FLAG(std::uint64_t, items, 200, "that go through it");
ABSL_FLAG(std::uint64_t, streams, 2, "of each side");
ABSL_FLAG(std::optional<int>, peer, std::nullopt,
          "the consumer's device; by default the producer's");
ABSL_FLAG(std::uint64_t, corrupt, 0, "the item that is spoilt; 0: none");
ABSL_FLAG(std::string, connect, "", "where a child connects to");

namespace {

using examples::BytesText;
using examples::ChildProcess;
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

absl::StatusOr<RingJob> ReadJob(absl::Time deadline) {
  const RingJob job = {.buffers = absl::GetFlag(FLAGS_buffers),
                       .size = absl::GetFlag(FLAGS_size).count,
                       .items = absl::GetFlag(FLAGS_items),
                       .streams = absl::GetFlag(FLAGS_streams),
                       .corrupt = absl::GetFlag(FLAGS_corrupt),
                       .deadline = deadline};
  if (job.streams == 0 || kMaxStreams % job.streams != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--streams=", job.streams, ": expected 1, 2 or 4"));
  }
  if (job.buffers == 0 || job.buffers > vmm::kMaxRingBuffers ||
      job.items < kFrames) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--buffers=", job.buffers, " --items=", job.items, ": expected 1 to ",
        vmm::kMaxRingBuffers, " buffers and at least ", kFrames, " items"));
  }
  return job;
}

int ConsumersDevice() {
  return absl::GetFlag(FLAGS_peer).value_or(absl::GetFlag(FLAGS_device));
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

absl::Status RunProducer(const Driver& driver, absl::Time deadline) {
  absl::StatusOr<RingJob> job = ReadJob(deadline);
  if (!job.ok()) return job.status();
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<vmm::Device> peer =
      vmm::Device::ByOrdinal(driver, ConsumersDevice());
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
  std::vector<std::string> flags =
      examples::Flags({"driver", "items", "size", "streams", "timeout"});
  flags.push_back(absl::StrCat("--connect=", listener->address()));
  flags.push_back(absl::StrCat("--device=", ConsumersDevice()));
  absl::StatusOr<ChildProcess> consumer = ChildProcess::StartSelf(flags);
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
                                   absl::Time deadline) {
  absl::StatusOr<RingJob> job = ReadJob(deadline);
  if (!job.ok()) return job.status();
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver);
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

absl::Status Join(const Driver& driver, absl::Time deadline) {
  const std::string address = absl::GetFlag(FLAGS_connect);
  absl::StatusOr<Channel> words = Channel::Connect(address, {}, deadline);
  if (!words.ok()) return words.status();
  absl::StatusOr<Channel> channel = Channel::Connect(address, {}, deadline);
  if (!channel.ok()) return channel.status();
  absl::StatusOr<double> speed =
      RunConsumer(*std::move(channel), driver, deadline);
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
  examples::ParseCommandLine(argc, argv);
  const absl::Time deadline = examples::Deadline();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  if (!absl::GetFlag(FLAGS_connect).empty()) return Join(*driver, deadline);
  Print(absl::StrCat("driver: ", driver->Describe()));
  return RunProducer(*driver, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("ring", Run(argc, argv));
}
