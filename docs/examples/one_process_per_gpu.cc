// One process per GPU: each allocates a buffer on its own GPU, and every
// process maps every other one's buffer and copies from it, GPU to GPU.
//
//   one_process_per_gpu                        as many processes as GPUs
//   one_process_per_gpu --processes=4          several may share a GPU
//   one_process_per_gpu --isolate              each sees only its own GPU
//   one_process_per_gpu --driver=host          without a GPU
//   --size=64M --timeout=60                    bytes a buffer, seconds in all
//   --corrupt=RANK                             see the check find a wrong
//                                              buffer
//
// The launcher starts this program once for each rank and hands round the
// tickets, which are plain strings; the handles themselves go directly from
// owner to importer. It prints a matrix of who could read whose buffer, with
// the speed of the copies. The exit status is 0 only if all are OK, and no
// process made a context on a GPU that is not its own.
#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "docs/examples/bytes.h"
#include "docs/examples/pattern.h"
#include "docs/examples/process.h"
#include "docs/examples/support.h"
#include "vmm/vmm.h"

ABSL_FLAG(std::optional<std::uint64_t>, processes, std::nullopt,
          "how many; by default one for each GPU");
ABSL_FLAG(bool, isolate, false, "each process sees only its own GPU");
ABSL_FLAG(examples::Bytes, size, {64 << 20}, "bytes of each process");
ABSL_FLAG(std::optional<std::uint64_t>, corrupt, std::nullopt,
          "the rank that writes something else");
ABSL_FLAG(std::string, launcher, "", "where a child connects to");
ABSL_FLAG(std::uint64_t, rank, 0, "a child's");

namespace {

using examples::ChildProcess;
using examples::Pattern;
using examples::Print;
using examples::Say;
using examples::TextMessage;
using vmm::platform::Channel;
using vmm::platform::Driver;
using vmm::platform::Listener;

// Messages between a rank and the launcher; payloads are text.
constexpr std::uint16_t kTicket = 1;   // Both ways, one message a ticket.
constexpr std::uint16_t kResult = 2;   // A rank's row of the matrix.
constexpr std::uint16_t kAllDone = 3;  // Nobody needs anybody any more.
constexpr std::uint16_t kFailed = 4;   // A rank cannot go on, and why.

// What the owner of rank `rank` fills its buffer with.
Pattern PatternOf(std::uint64_t rank) { return {.seed = 1000 + rank}; }

// The text of the next message, which must be a `type`.
absl::StatusOr<std::string> Expect(Channel& channel, std::uint16_t type,
                                   absl::Time deadline) {
  absl::StatusOr<TextMessage> message = examples::Hear(channel, deadline);
  if (!message.ok()) return message.status();
  if (message->type == kFailed) return absl::AbortedError(message->text);
  if (message->type != type) {
    return absl::DataLossError(absl::StrCat("a message of type ", message->type,
                                            " came; expected ", type));
  }
  return message->text;
}

// ---- A rank ---------------------------------------------------------------

struct Rank {
  std::uint64_t rank = 0;
  std::uint64_t ranks = 0;
  std::uint64_t size = 0;
  Pattern pattern;
  absl::Time deadline;
};

// Copies `from` into `into` until the time can be measured. Bytes a second.
absl::StatusOr<double> CopySpeed(const Driver& driver, CUdeviceptr into,
                                 CUdeviceptr from, std::uint64_t size) {
  constexpr int kCopies = 10;
  const absl::Time start = absl::Now();
  for (int i = 0; i < kCopies; ++i) {
    if (CUresult r = driver->cuMemcpyDtoDAsync(into, from, size, nullptr);
        r != CUDA_SUCCESS) {
      return driver.Error(r, "cuMemcpyDtoDAsync()");
    }
  }
  if (CUresult r = driver->cuCtxSynchronize(); r != CUDA_SUCCESS) {
    return driver.Error(r, "cuCtxSynchronize()");
  }
  return static_cast<double>(size) * kCopies /
         absl::ToDoubleSeconds(absl::Now() - start);
}

// Copies a peer's buffer to this GPU and checks it. Bytes a second.
absl::StatusOr<double> CheckPeer(const vmm::ImportedAllocation& peer,
                                 const vmm::Allocation& scratch,
                                 const Pattern& expected, std::uint64_t size) {
  const Driver& driver = scratch.device().driver();
  if (CUresult r =
          driver->cuMemcpyDtoD(scratch.address(), peer.address(), size);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuMemcpyDtoD()");
  }
  absl::Status same =
      examples::Verify(driver, scratch.address(), size, expected);
  if (!same.ok()) return same;
  return CopySpeed(driver, scratch.address(), peer.address(), size);
}

// FAILED_PRECONDITION when this process made a context on another GPU.
absl::Status CheckOnlyOwnContext(const vmm::Device& own) {
  absl::StatusOr<std::vector<vmm::Device>> all = vmm::Device::All(own.driver());
  if (!all.ok()) return all.status();
  for (const vmm::Device& device : *all) {
    absl::StatusOr<bool> active = vmm::PrimaryContext::IsActive(device);
    if (!active.ok()) return active.status();
    if (*active && device.uuid() != own.uuid()) {
      return absl::FailedPreconditionError(
          absl::StrCat("a context was made on ", device.Describe(),
                       ", which this process does not use"));
    }
  }
  return absl::OkStatus();
}

// One line a peer: its rank, and the speed or the error.
absl::Status RunRank(const vmm::Device& device, const Rank& me,
                     Channel& launcher) {
  const Driver& driver = device.driver();
  absl::StatusOr<vmm::PrimaryContext> context =
      vmm::PrimaryContext::Retain(device);
  if (!context.ok()) return context.status();
  absl::StatusOr<vmm::CurrentContext> current = context->MakeCurrent();
  if (!current.ok()) return current.status();

  absl::StatusOr<vmm::Allocation> buffer =
      vmm::Allocation::Create(device, {.size = me.size});
  if (!buffer.ok()) return buffer.status();
  // Never shared, so it asks for no handle.
  absl::StatusOr<vmm::Allocation> scratch = vmm::Allocation::Create(
      device, {.size = me.size, .sharing = vmm::SharePolicy::Private()});
  if (!scratch.ok()) return scratch.status();
  absl::Status filled =
      examples::Fill(driver, buffer->address(), me.size, me.pattern);
  if (!filled.ok()) return filled;

  absl::StatusOr<std::unique_ptr<vmm::Endpoint>> endpoint =
      vmm::Endpoint::Start({});
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<vmm::Share> mine = (*endpoint)->Publish(buffer->shareable());
  if (!mine.ok()) return mine.status();
  absl::Status told =
      Say(launcher, {kTicket, absl::StrCat(me.rank, " ", mine->ticket())},
          me.deadline);
  if (!told.ok()) return told;

  std::vector<std::uint64_t> owners;
  std::vector<std::string> tickets;
  for (std::uint64_t rank = 0; rank < me.ranks; ++rank) {
    absl::StatusOr<std::string> ticket = Expect(launcher, kTicket, me.deadline);
    if (!ticket.ok()) return ticket.status();
    if (rank == me.rank) continue;
    owners.push_back(rank);
    tickets.push_back(*std::move(ticket));
  }
  // Naming the own GPU is what makes it work for memory of GPUs that this
  // process does not see.
  absl::StatusOr<std::vector<vmm::ImportedAllocation>> peers = vmm::OpenTickets(
      driver, tickets,
      {.grants = {{vmm::Location::On(device), vmm::Access::kRead}}},
      me.deadline);
  if (!peers.ok()) return peers.status();

  std::string row;
  for (std::size_t i = 0; i < peers->size(); ++i) {
    absl::StatusOr<double> speed =
        CheckPeer((*peers)[i], *scratch, PatternOf(owners[i]), me.size);
    absl::StrAppend(&row, owners[i], " ",
                    speed.ok()
                        ? absl::StrFormat("OK %.1f", *speed * 1e-9)
                        : absl::StrCat("FAIL ", speed.status().message()),
                    "\n");
  }
  absl::Status only_own = CheckOnlyOwnContext(device);
  if (!only_own.ok()) return only_own;
  told = Say(launcher, {kResult, row}, me.deadline);
  if (!told.ok()) return told;
  // This endpoint serves until everybody has had what it needs.
  return Expect(launcher, kAllDone, me.deadline).status();
}

absl::Status StartRank(const Driver& driver, absl::Time deadline) {
  Rank me;
  me.deadline = deadline;
  me.rank = absl::GetFlag(FLAGS_rank);
  me.ranks = absl::GetFlag(FLAGS_processes).value_or(0);
  me.size = absl::GetFlag(FLAGS_size).count;
  me.pattern = PatternOf(me.rank);
  if (absl::GetFlag(FLAGS_corrupt) == me.rank) {
    me.pattern = me.pattern.Inverted();
  }
  absl::StatusOr<Channel> launcher =
      Channel::Connect(absl::GetFlag(FLAGS_launcher), {}, deadline);
  if (!launcher.ok()) return launcher.status();
  absl::StatusOr<vmm::Device> device =
      vmm::Device::ByOrdinal(driver, absl::GetFlag(FLAGS_device));
  absl::Status status =
      device.ok() ? RunRank(*device, me, *launcher) : device.status();
  if (!status.ok()) {
    // Best effort: the launcher also sees this process end.
    Say(*launcher, {kFailed, status.ToString().substr(0, 2048)}, deadline)
        .IgnoreError();
  }
  return status;
}

// ---- The launcher ---------------------------------------------------------

struct Launched {
  ChildProcess process;
  std::optional<Channel> channel;
  std::string ticket;
};

absl::StatusOr<std::vector<Launched>> StartAll(
    const std::vector<vmm::Device>& devices, std::uint64_t count,
    Listener& listener) {
  std::vector<Launched> all;
  for (std::uint64_t rank = 0; rank < count; ++rank) {
    const vmm::Device& device = devices[rank % devices.size()];
    const bool isolate = absl::GetFlag(FLAGS_isolate);
    std::map<std::string, std::string> env;
    // A process that sees one GPU calls it 0.
    if (isolate) env["CUDA_VISIBLE_DEVICES"] = device.uuid().ToString();
    std::vector<std::string> words =
        examples::Flags({"corrupt", "driver", "size", "timeout"});
    words.push_back(absl::StrCat("--launcher=", listener.address()));
    words.push_back(absl::StrCat("--rank=", rank));
    words.push_back(absl::StrCat("--processes=", count));
    words.push_back(absl::StrCat("--device=", isolate ? 0 : device.ordinal()));
    absl::StatusOr<ChildProcess> process = ChildProcess::StartSelf(words, env);
    if (!process.ok()) return process.status();
    all.push_back({*std::move(process), std::nullopt, ""});
  }
  return all;
}

// Takes every rank's ticket, and gives all of them to each.
absl::Status HandRoundTickets(std::vector<Launched>& all, Listener& listener,
                              absl::Time deadline) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    absl::StatusOr<Channel> channel = all[i].process.Accept(listener, deadline);
    if (!channel.ok()) return channel.status();
    absl::StatusOr<std::string> text = Expect(*channel, kTicket, deadline);
    if (!text.ok()) return text.status();
    const std::pair<std::string, std::string> words =
        absl::StrSplit(*text, absl::MaxSplits(' ', 1));
    std::uint64_t rank = 0;
    if (!absl::SimpleAtoi(words.first, &rank) || rank >= all.size() ||
        all[rank].channel.has_value()) {
      return absl::DataLossError(
          absl::StrCat("a process says it is rank ", words.first));
    }
    all[rank].channel.emplace(*std::move(channel));
    all[rank].ticket = words.second;
  }
  for (Launched& receiver : all) {
    for (const Launched& owner : all) {
      absl::Status sent =
          Say(*receiver.channel, {kTicket, owner.ticket}, deadline);
      if (!sent.ok()) return sent;
    }
  }
  return absl::OkStatus();
}

// Prints a rank's row. How many of its peers were not OK.
std::size_t PrintRow(std::size_t rank, std::size_t ranks,
                     const std::string& row) {
  const std::string fail = "FAIL";
  std::vector<std::string> cells(ranks, fail);
  cells[rank] = std::string(1, '-');
  std::size_t failed = ranks - 1;
  for (absl::string_view line : absl::StrSplit(row, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    std::uint64_t owner = 0;
    if (!absl::SimpleAtoi(words.first, &owner) || owner >= ranks) continue;
    cells[owner] = std::string(words.second.substr(0, 12));
    if (absl::StartsWith(words.second, "OK ")) {
      --failed;
    } else {
      Print(absl::StrCat("rank ", rank, " reading rank ", line));
      cells[owner] = fail;
    }
  }
  std::string text = absl::StrFormat("rank %3d reads", rank);
  for (const std::string& cell : cells)
    absl::StrAppendFormat(&text, "  %-10s", cell);
  Print(text);
  return failed;
}

absl::Status Launch(const Driver& driver, absl::Time deadline) {
  // The launcher only looks; it makes no context and no memory.
  absl::StatusOr<std::vector<vmm::Device>> devices = vmm::Device::All(driver);
  if (!devices.ok()) return devices.status();
  const std::uint64_t count =
      absl::GetFlag(FLAGS_processes).value_or(devices->size());
  const std::uint64_t size = absl::GetFlag(FLAGS_size).count;
  if (devices->empty() || count == 0 || count > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("--processes=", count, " on ", devices->size(),
                     " GPUs: expected 1 to 1024 on at least one"));
  }
  Print(absl::StrCat(
      count, " processes on ", devices->size(), " GPUs",
      absl::GetFlag(FLAGS_isolate) ? ", each sees only its own" : ""));

  absl::StatusOr<Listener> listener = Listener::Bind({}, {});
  if (!listener.ok()) return listener.status();
  absl::StatusOr<std::vector<Launched>> all =
      StartAll(*devices, count, *listener);
  if (!all.ok()) return all.status();
  absl::Status handed = HandRoundTickets(*all, *listener, deadline);
  if (!handed.ok()) return handed;

  std::string head = "    GB/s from  ";
  for (std::uint64_t rank = 0; rank < count; ++rank) {
    absl::StrAppendFormat(&head, "  rank %-5d", rank);
  }
  Print(head);
  std::size_t failed = 0;
  // A rank that fails takes others with it, which only see it hang up: all are
  // heard, for the first to be heard need not be the cause.
  std::vector<std::string> errors;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    absl::StatusOr<std::string> row =
        Expect(*(*all)[rank].channel, kResult, deadline);
    if (row.ok()) {
      failed += PrintRow(rank, all->size(), *row);
    } else {
      errors.push_back(
          absl::StrCat("rank ", rank, ": ", row.status().message()));
    }
  }
  if (!errors.empty()) {
    return absl::AbortedError(absl::StrJoin(errors, "; "));
  }
  for (Launched& rank : *all) {
    absl::Status told = Say(*rank.channel, {kAllDone, ""}, deadline);
    if (!told.ok()) return told;
  }
  for (Launched& rank : *all) {
    absl::Status ended = rank.process.Wait(deadline);
    if (!ended.ok()) return ended;
  }
  if (failed != 0) {
    return absl::DataLossError(
        absl::StrCat(failed, " buffers did not read as their owner wrote"));
  }
  Print(absl::StrCat("OK: ", count, " processes read each other's ",
                     examples::BytesText(size),
                     " and found what the owner wrote"));
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  examples::ParseCommandLine(argc, argv);
  const absl::Time deadline = examples::Deadline();
  absl::StatusOr<Driver> driver = examples::LoadDriver();
  if (!driver.ok()) return driver.status();
  if (!absl::GetFlag(FLAGS_launcher).empty()) {
    return StartRank(*driver, deadline);
  }
  Print(absl::StrCat("driver: ", driver->Describe()));
  return Launch(*driver, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ExitStatus("one_process_per_gpu", Run(argc, argv));
}
