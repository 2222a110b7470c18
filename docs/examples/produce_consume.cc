// Produce and consume: one process fills GPU memory, another reads it in
// place, without a copy, and answers in a second buffer.
//
//   produce_consume                          on the installed NVIDIA driver
//   produce_consume --driver=host            without a GPU, on host memory
//   produce_consume --size=2G --device=1     more, and on the second GPU
//
// The producer allocates both buffers, starts this program again as the
// consumer, and sends it the buffers over a channel. The consumer imports the
// data read-only and the reply buffer read-write, checks every byte of the
// data, and writes each byte inverted into the reply, which the producer
// checks. The exit status is 0 only if all of it was as it should be.
//
// --corrupt=OFFSET changes one byte after filling, to see the check find it.
// --timeout=SECONDS bounds every wait together (60).
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/gpu.h"
#include "docs/examples/pattern.h"
#include "docs/examples/process.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

ABSL_FLAG(examples::Bytes, size, {64 << 20}, "bytes");
ABSL_FLAG(std::optional<std::uint64_t>, corrupt, std::nullopt,
          "the offset of a byte to change");
ABSL_FLAG(std::string, connect, "", "where a child connects to");

namespace {

using examples::BytesText;
using examples::ChildProcess;
using examples::Gpu;
using examples::Pattern;
using examples::Print;
using examples::Steps;
using examples::TextMessage;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

constexpr Pattern kData{.seed = 2024};

// Messages of this program: the consumer is done, or why it is not.
constexpr std::uint16_t kReplyReady = 1;
constexpr std::uint16_t kFailed = 2;

// Changes the byte at --corrupt, if that was asked for.
absl::Status Corrupt(const Driver& driver, const vmm::Allocation& data) {
  const std::optional<std::uint64_t> offset = absl::GetFlag(FLAGS_corrupt);
  if (!offset.has_value()) return absl::OkStatus();
  if (*offset >= data.requested_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--corrupt=", *offset, ": expected an offset below ",
                     data.requested_size()));
  }
  const std::uint64_t word = kData.Word(*offset / 8);
  const auto byte = static_cast<std::uint8_t>(word >> (8 * (*offset % 8)));
  if (CUresult r = driver->cuMemsetD8(data.address() + *offset, byte ^ 1, 1);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemsetD8()");
  }
  // A fill does not wait: the consumer must not be told before it is done.
  return driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()");
}

absl::Status WaitForReply(Channel& channel, absl::Time deadline) {
  absl::StatusOr<TextMessage> message = examples::Hear(channel, deadline);
  if (!message.ok()) return message.status();
  if (message->type == kFailed) {
    return absl::AbortedError(
        absl::StrCat("the consumer failed: ", message->text));
  }
  if (message->type != kReplyReady) {
    return absl::DataLossError(
        absl::StrCat("the consumer sent a message of type ", message->type,
                     "; expected ", kReplyReady));
  }
  return absl::OkStatus();
}

absl::Status Produce(const Driver& driver, absl::Time deadline) {
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver);
  if (!gpu.ok()) return gpu.status();
  Print(absl::StrCat("producer: ", gpu->device.Describe()));

  Steps steps("producer");
  absl::StatusOr<vmm::Allocation> data =
      vmm::Allocation::Create(gpu->device, {.size = size});
  if (!data.ok()) return data.status();
  absl::StatusOr<vmm::Allocation> reply =
      vmm::Allocation::Create(gpu->device, {.size = size});
  if (!reply.ok()) return reply.status();
  steps.Done(absl::StrCat("allocate 2 x ", BytesText(data->size())));

  absl::Status filled = examples::Fill(driver, data->address(), size, kData);
  if (!filled.ok()) return filled;
  steps.Done(absl::StrCat("fill ", BytesText(size)), size);
  absl::Status corrupted = Corrupt(driver, *data);
  if (!corrupted.ok()) return corrupted;

  // Only processes of this user can connect: that is the empty PeerPolicy.
  absl::StatusOr<Listener> listener = Listener::Bind({}, {});
  if (!listener.ok()) return listener.status();
  std::vector<std::string> words =
      examples::Flags({"driver", "device", "timeout"});
  words.push_back(absl::StrCat("--connect=", listener->address()));
  absl::StatusOr<ChildProcess> consumer = ChildProcess::StartSelf(words);
  if (!consumer.ok()) return consumer.status();
  absl::StatusOr<Channel> channel = consumer->Accept(*listener, deadline);
  if (!channel.ok()) return channel.status();
  steps.Done("start the consumer, connect");

  // Returns once the consumer has imported both.
  absl::Status sent =
      vmm::SendAllocation(*channel, data->shareable(), deadline);
  if (!sent.ok()) return sent;
  sent = vmm::SendAllocation(*channel, reply->shareable(), deadline);
  if (!sent.ok()) return sent;
  steps.Done("send both buffers");

  absl::Status replied = WaitForReply(*channel, deadline);
  if (!replied.ok()) return replied;
  steps.Done("wait for the reply");
  absl::Status same =
      examples::Verify(driver, reply->address(), size, kData.Inverted());
  if (!same.ok()) return same;
  steps.Done("verify every byte of the reply", size);

  absl::Status ended = consumer->Wait(deadline);
  if (!ended.ok()) return ended;
  Print(absl::StrCat("OK: two processes shared ", size,
                     " bytes; every byte of the data and of the reply was "
                     "verified"));
  return absl::OkStatus();
}

// Writes every byte of `data`, inverted, into `reply`.
absl::Status WriteReply(const Driver& driver,
                        const vmm::ImportedAllocation& data,
                        const vmm::ImportedAllocation& reply) {
  const std::uint64_t size = data.requested_size();
  std::vector<std::uint64_t> words(1 << 20);
  const std::uint64_t piece = words.size() * sizeof(words[0]);
  for (std::uint64_t at = 0; at < size; at += piece) {
    const std::uint64_t count = std::min(piece, size - at);
    if (CUresult r =
            driver->cuMemcpyDtoH(words.data(), data.address() + at, count);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemcpyDtoH(data)");
    }
    for (std::uint64_t& word : words) word = ~word;
    if (CUresult r =
            driver->cuMemcpyHtoD(reply.address() + at, words.data(), count);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemcpyHtoD(reply)");
    }
  }
  // Copies may still be on their way: the producer must not be told before.
  return driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()");
}

absl::Status ConsumeFrom(Channel& channel, const Driver& driver,
                         absl::Time deadline) {
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver);
  if (!gpu.ok()) return gpu.status();

  Steps steps("consumer");
  // Read-only unless asked otherwise.
  absl::StatusOr<vmm::ImportedAllocation> data =
      vmm::ReceiveAllocation(channel, driver, {}, deadline);
  if (!data.ok()) return data.status();
  steps.Done("import the data, read-only");
  absl::StatusOr<vmm::ImportedAllocation> reply = vmm::ReceiveAllocation(
      channel, driver, {.access = vmm::Access::kReadWrite}, deadline);
  if (!reply.ok()) return reply.status();
  steps.Done("import the reply buffer, read-write");
  if (data->requested_size() > reply->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the reply buffer has ", reply->size(),
                     " bytes; expected at least ", data->requested_size()));
  }

  absl::Status same =
      examples::Verify(driver, data->address(), data->requested_size(), kData);
  if (!same.ok()) return same;
  steps.Done("verify every byte of the data", data->requested_size());
  absl::Status written = WriteReply(driver, *data, *reply);
  if (!written.ok()) return written;
  steps.Done("write the reply", data->requested_size());
  return absl::OkStatus();
}

absl::Status Consume(const Driver& driver, absl::Time deadline) {
  absl::StatusOr<Channel> channel =
      Channel::Connect(absl::GetFlag(FLAGS_connect), {}, deadline);
  if (!channel.ok()) return channel.status();
  absl::Status status = ConsumeFrom(*channel, driver, deadline);
  // The producer is told either way, so that it never waits for nothing.
  absl::Status told = examples::Say(
      *channel,
      {status.ok() ? kReplyReady : kFailed, status.ToString().substr(0, 1024)},
      deadline);
  return status.ok() ? told : status;
}

absl::Status Run(int argc, char** argv) {
  examples::ParseCommandLine(argc, argv);
  const absl::Time deadline = examples::Deadline();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  if (!absl::GetFlag(FLAGS_connect).empty()) return Consume(*driver, deadline);
  Print(absl::StrCat("driver: ", driver->Describe()));
  return Produce(*driver, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("produce_consume", Run(argc, argv));
}
