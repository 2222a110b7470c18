// Shared blocks: thousands of small buffers out of a pool, shared by tickets.
//
//   shared_blocks                          on the installed NVIDIA driver
//   shared_blocks --driver=host            without a GPU, on host memory
//   shared_blocks --blocks=20000 --size=4K more and smaller
//   shared_blocks --device=0 --peer=1      imported on the second GPU
//
// The owner allocates blocks from a pool, fills them, and starts this program
// again as the importer, which subscribes to the pool: that moves the handles,
// one for each segment. Then every block is 56 bytes over a channel. The
// importer checks every byte. The owner frees every other block, and sees that
// their memory is used again only after the importer has given them back.
//
// --corrupt=BLOCK changes one byte of a block, to see the check find it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "docs/examples/bytes.h"
#include "docs/examples/gpu.h"
#include "docs/examples/pattern.h"
#include "docs/examples/process.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

ABSL_FLAG(std::uint64_t, blocks, 2000, "how many");
ABSL_FLAG(examples::Bytes, size, {64 << 10}, "bytes of a block");
ABSL_FLAG(std::optional<int>, peer, std::nullopt,
          "the importer's device; by default the owner's");
ABSL_FLAG(std::optional<std::uint64_t>, corrupt, std::nullopt,
          "the block of which a byte is changed");
ABSL_FLAG(std::string, pool, "", "the pool that a child subscribes to");
ABSL_FLAG(std::string, connect, "", "where a child connects to");

namespace {

using examples::BytesText;
using examples::ChildProcess;
using examples::Gpu;
using examples::Pattern;
using examples::Print;
using examples::Steps;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

// Messages of this program.
constexpr std::uint16_t kTickets = 1;  // Some tickets; none: these were all.
constexpr std::uint16_t kChecked = 2;  // The importer has checked them.
constexpr std::uint16_t kFreed = 3;    // The owner has freed every other one.
constexpr std::uint16_t kDone = 4;     // The importer has given them back.
constexpr std::uint16_t kFailed = 5;   // The importer failed: why.
constexpr std::size_t kTicketsAMessage = 500;

// Waits for the message `type` of the other process.
absl::Status Expect(Channel& channel, std::uint16_t type, absl::Time deadline) {
  absl::StatusOr<examples::TextMessage> heard =
      examples::Hear(channel, deadline);
  if (!heard.ok()) return heard.status();
  if (heard->type == type) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the other process says (",
                                         heard->type, "): ", heard->text));
}

absl::Status SendTickets(Channel& channel,
                         absl::Span<const vmm::PoolTicket> tickets,
                         absl::Time deadline) {
  std::vector<std::uint8_t> bytes;
  while (!tickets.empty()) {
    const std::size_t count = std::min(tickets.size(), kTicketsAMessage);
    bytes.clear();
    for (const vmm::PoolTicket& ticket : tickets.first(count)) {
      const vmm::PoolTicketBytes encoded = vmm::EncodePoolTicket(ticket);
      bytes.insert(bytes.end(), encoded.begin(), encoded.end());
    }
    absl::Status sent = channel.Send(kTickets, bytes, {}, deadline);
    if (!sent.ok()) return sent;
    tickets.remove_prefix(count);
  }
  return channel.Send(kTickets, {}, {}, deadline);
}

absl::StatusOr<std::vector<vmm::PoolTicket>> ReceiveTickets(
    Channel& channel, absl::Time deadline) {
  std::vector<vmm::PoolTicket> tickets;
  for (;;) {
    absl::StatusOr<vmm::platform::Message> message = channel.Receive(deadline);
    if (!message.ok()) return message.status();
    if (message->type != kTickets || message->payload.empty()) return tickets;
    absl::Span<const std::uint8_t> left = message->payload;
    while (!left.empty()) {
      absl::StatusOr<vmm::PoolTicket> ticket =
          vmm::DecodePoolTicket(left.subspan(0, vmm::kPoolTicketBytes));
      if (!ticket.ok()) return ticket.status();
      tickets.push_back(*ticket);
      left.remove_prefix(vmm::kPoolTicketBytes);
    }
  }
}

// Frees every other block while the importer holds all of them.
absl::Status FreeHalf(vmm::Pool& pool, const std::vector<CUdeviceptr>& blocks,
                      Channel& channel, absl::Time deadline) {
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    absl::Status freed = pool.Free(blocks[i], nullptr);
    if (!freed.ok()) return freed;
  }
  Print(absl::StrCat("owner: freed half: ", pool.statistics().held,
                     " bytes wait for the importer"));
  absl::Status said = examples::Say(channel, {kFreed, ""}, deadline);
  if (!said.ok()) return said;
  absl::Status done = Expect(channel, kDone, deadline);
  if (!done.ok()) return done;
  absl::StatusOr<std::uint64_t> trimmed = pool.Trim();
  if (!trimmed.ok()) return trimmed.status();
  const vmm::PoolStatistics after = pool.statistics();
  Print(absl::StrCat("owner: given back: ", after.held, " bytes wait"));
  return after.held == 0 ? absl::OkStatus()
                         : absl::InternalError("blocks did not come back");
}

// Changes the last byte of the block --corrupt, if that was asked for.
absl::Status Corrupt(const Driver& driver,
                     const std::vector<CUdeviceptr>& blocks,
                     std::uint64_t size) {
  const std::optional<std::uint64_t> index = absl::GetFlag(FLAGS_corrupt);
  if (!index.has_value()) return absl::OkStatus();
  if (*index >= blocks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--corrupt=", *index, ": expected a block below ", blocks.size()));
  }
  const CUdeviceptr last = blocks[*index] + size - 1;
  std::uint8_t byte = 0;
  if (CUresult r = driver->cuMemcpyDtoH(&byte, last, 1); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemcpyDtoH()");
  }
  if (CUresult r = driver->cuMemsetD8(last, byte ^ 1, 1); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemsetD8()");
  }
  // A fill does not wait: the peer must not be told before it is done.
  return driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()");
}

absl::Status Own(const Driver& driver, absl::Time deadline) {
  const std::uint64_t count = absl::GetFlag(FLAGS_blocks);
  if (count == 0) {
    return absl::InvalidArgumentError("--blocks=0: expected at least 1");
  }
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver);
  if (!gpu.ok()) return gpu.status();

  Steps steps("owner");
  absl::StatusOr<std::unique_ptr<vmm::Pool>> pool =
      vmm::Pool::Create(gpu->device, {});
  if (!pool.ok()) return pool.status();
  std::vector<CUdeviceptr> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    absl::StatusOr<CUdeviceptr> block = (*pool)->Allocate(size, nullptr);
    if (!block.ok()) return block.status();
    blocks.push_back(*block);
  }
  steps.Done(absl::StrCat("allocate ", count, " x ", BytesText(size)));
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    absl::Status filled =
        examples::Fill(driver, blocks[i], size, Pattern{.seed = i});
    if (!filled.ok()) return filled;
  }
  steps.Done("fill them", size * count);
  absl::Status corrupted = Corrupt(driver, blocks, size);
  if (!corrupted.ok()) return corrupted;
  absl::StatusOr<std::vector<vmm::PoolTicket>> tickets =
      (*pool)->ExportAll(blocks);
  if (!tickets.ok()) return tickets.status();
  steps.Done("export them: a ticket each");

  absl::StatusOr<std::unique_ptr<vmm::Endpoint>> endpoint =
      vmm::Endpoint::Start({});
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<vmm::Share> served = (*endpoint)->Serve(**pool);
  if (!served.ok()) return served.status();
  absl::StatusOr<Listener> listener = Listener::Bind({}, {});
  if (!listener.ok()) return listener.status();
  const int peer =
      absl::GetFlag(FLAGS_peer).value_or(absl::GetFlag(FLAGS_device));
  std::vector<std::string> words = examples::Flags({"driver", "timeout"});
  words.push_back(absl::StrCat("--connect=", listener->address()));
  words.push_back(absl::StrCat("--pool=", served->ticket()));
  words.push_back(absl::StrCat("--device=", peer));
  absl::StatusOr<ChildProcess> importer = ChildProcess::StartSelf(words);
  if (!importer.ok()) return importer.status();
  absl::StatusOr<Channel> channel = importer->Accept(*listener, deadline);
  if (!channel.ok()) return channel.status();
  steps.Done("serve the pool, start the importer");

  absl::Status status = SendTickets(*channel, *tickets, deadline);
  if (!status.ok()) return status;
  status = Expect(*channel, kChecked, deadline);
  if (!status.ok()) return status;
  steps.Done("send the tickets, wait for the check");
  const std::size_t handles = (*pool)->statistics().segments.size();
  status = FreeHalf(**pool, blocks, *channel, deadline);
  if (!status.ok()) return status;
  status = importer->Wait(deadline);
  if (!status.ok()) return status;
  Print(absl::StrCat(
      "OK: ", count, " blocks of ", size, " bytes were shared by ", handles,
      handles == 1 ? " handle" : " handles", "; every byte was verified"));
  return absl::OkStatus();
}

absl::Status ImportFrom(Channel& channel, const Driver& driver,
                        absl::Time deadline) {
  absl::StatusOr<Gpu> gpu = examples::UseGpu(driver);
  if (!gpu.ok()) return gpu.status();
  Steps steps("importer");
  vmm::ImportOptions options;
  options.grants = {{vmm::Location::On(gpu->device), vmm::Access::kRead}};
  absl::StatusOr<std::unique_ptr<vmm::ImportedPool>> pool =
      vmm::ImportedPool::Subscribe(driver, absl::GetFlag(FLAGS_pool), options,
                                   deadline);
  if (!pool.ok()) return pool.status();
  steps.Done("subscribe to the pool");
  absl::StatusOr<std::vector<vmm::PoolTicket>> tickets =
      ReceiveTickets(channel, deadline);
  if (!tickets.ok()) return tickets.status();
  steps.Done(absl::StrCat("receive ", tickets->size(), " tickets"));
  absl::StatusOr<std::vector<vmm::ImportedBlock>> blocks =
      (*pool)->ImportAll(*tickets, deadline);
  if (!blocks.ok()) return blocks.status();
  steps.Done("import them all");
  for (std::size_t i = 0; i < blocks->size(); ++i) {
    const vmm::ImportedBlock& block = (*blocks)[i];
    absl::Status same = examples::Verify(driver, block.address(), block.size(),
                                         Pattern{.seed = i});
    if (!same.ok()) {
      return absl::DataLossError(
          absl::StrCat("block ", i, ": ", same.message()));
    }
  }
  steps.Done("verify every byte");
  absl::Status said = examples::Say(channel, {kChecked, ""}, deadline);
  if (!said.ok()) return said;

  absl::Status freed = Expect(channel, kFreed, deadline);
  if (!freed.ok()) return freed;
  // Still here, though the owner has freed half of them.
  for (std::size_t i = 0; i < blocks->size(); i += 2) {
    absl::Status same =
        examples::Verify(driver, (*blocks)[i].address(), (*blocks)[i].size(),
                         Pattern{.seed = i});
    if (!same.ok()) return same;
  }
  blocks->clear();  // Gives them back.
  const absl::Status stale =
      (*pool)->Import(tickets->front(), deadline).status();
  Print(absl::StrCat("importer: a ticket to a freed block: ",
                     absl::StatusCodeToString(stale.code())));
  if (!absl::IsFailedPrecondition(stale)) {
    return absl::InternalError("the ticket to a freed block was not refused");
  }
  return examples::Say(channel, {kDone, ""}, deadline);
}

absl::Status Import(const Driver& driver, absl::Time deadline) {
  absl::StatusOr<Channel> channel =
      Channel::Connect(absl::GetFlag(FLAGS_connect), {}, deadline);
  if (!channel.ok()) return channel.status();
  absl::Status status = ImportFrom(*channel, driver, deadline);
  if (status.ok()) return status;
  // The owner is told, so that it never waits for nothing.
  examples::Say(*channel, {kFailed, status.ToString().substr(0, 1024)},
                deadline)
      .IgnoreError();
  return status;
}

absl::Status Run(int argc, char** argv) {
  examples::ParseCommandLine(argc, argv);
  const absl::Time deadline = examples::Deadline();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  if (!absl::GetFlag(FLAGS_connect).empty()) return Import(*driver, deadline);
  Print(absl::StrCat("driver: ", driver->Describe()));
  return Own(*driver, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("shared_blocks", Run(argc, argv));
}
