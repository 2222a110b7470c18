#include "tests/job/rank_process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "fabric/exchange.h"
#include "fabric/job_matrix.h"
#include "fabric/nvml.h"
#include "platform/os/machine.h"
#include "tests/support/must.h"
#include "tests/support/nodes.h"
#include "tests/support/test_driver.h"
#include "vmm/job/handshake.h"
#include "vmm/job/symmetric.h"
#include "vmm/memory/device.h"
#include "vmm/share/transfer.h"
#include "vmm/sync/fence_array.h"

namespace vmm::testing {
namespace {

namespace fs = std::filesystem;

// Whole or not at all.
void WriteFile(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  {
    std::ofstream file(part, std::ios::binary);
    file << text;
    if (!file.flush().good()) platform::Die("cannot write " + part);
  }
  fs::rename(part, path);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns once `path` exists; false when it does not by `deadline`.
bool AwaitFile(const std::string& path, Deadline deadline) {
  while (!fs::exists(path)) {
    if (deadline.Passed()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

void EndHere(const RankTask& task) {
  if (!task.only_stop) KillThisProcess();
  ::raise(SIGSTOP);
}

fabric::Handle RandomHandle() {
  fabric::Handle handle;
  Must(platform::FillRandom(absl::MakeSpan(handle.bytes)));
  return handle;
}

// Of memory that is freed again.
fabric::Handle StaleHandle() {
  const Device device = Must(Device::ByOrdinal(TestDriver(), 0));
  const Allocation memory = Must(Allocation::Create(
      device,
      {.size = 1, .sharing = SharePolicy::Require(HandleKind::kFabric)}));
  return Must(MakeFabricTicket(memory.shareable())).handles[0];
}

class FileExchange final : public fabric::Exchange {
 public:
  explicit FileExchange(const RankTask& task) : task_(task) {}

  const std::string& job() const override { return job_; }
  int rank() const override { return task_.rank; }
  int size() const override { return task_.ranks; }

  absl::Status Put(const std::string& key, absl::Span<const std::uint8_t> value,
                   Deadline) override {
    Step();
    fabric::Bytes bytes(value.begin(), value.end());
    Damage(key, bytes);
    WriteFile(Path(task_.rank, key), {bytes.begin(), bytes.end()});
    puts_.push_back(absl::Now());
    Step();
    return absl::OkStatus();
  }
  absl::Status Fence(Deadline deadline) override {
    Step();
    const std::string fence = absl::StrCat("fence.", fences_++);
    WriteFile(Path(task_.rank, fence), "");
    Step();
    for (int rank = 0; rank < task_.ranks; ++rank) {
      if (!AwaitFile(Path(rank, fence), deadline)) {
        return absl::DeadlineExceededError("a rank is not there");
      }
    }
    Step();
    return absl::OkStatus();
  }
  absl::StatusOr<fabric::Bytes> Get(int rank, const std::string& key,
                                    Deadline deadline) override {
    Step();
    const std::string path = Path(rank, key);
    if (!AwaitFile(path, deadline)) return absl::NotFoundError("no file");
    const std::string bytes = ReadFile(path);
    return fabric::Bytes(bytes.begin(), bytes.end());
  }

  const std::vector<absl::Time>& puts() const { return puts_; }

 private:
  std::string Path(int rank, const std::string& key) const {
    return absl::StrCat(task_.folder, "/", rank, ".", key);
  }
  void Step() {
    if (steps_++ == task_.kill_at_step) EndHere(task_);
  }
  void Damage(const std::string& key, fabric::Bytes& bytes) const {
    if (task_.fault == "version") bytes[4] ^= 2;
    if (!absl::StrContains(task_.fault, "handle") ||
        !absl::StrContains(key, "card")) {
      return;
    }
    fabric::JobCard card = Must(fabric::DecodeCard(bytes));
    for (fabric::JobOffer& offer : card.offers) {
      if (offer.kind != CU_MEM_HANDLE_TYPE_FABRIC) continue;
      FabricTicket ticket = Must(DecodeFabricTicket(
          fabric::Bytes(offer.ticket.begin(), offer.ticket.end())));
      ticket.handles[0] =
          task_.fault == "stale-handle" ? StaleHandle() : RandomHandle();
      const fabric::Bytes encoded = EncodeFabricTicket(ticket);
      offer.ticket.assign(encoded.begin(), encoded.end());
    }
    bytes = fabric::EncodeCard(card);
  }

  const RankTask& task_;
  std::vector<absl::Time> puts_;
  const std::string job_ = "files";
  int fences_ = 0;
  int steps_ = 0;
};

std::string CellText(const fabric::JobMatrix& matrix, int importer, int owner) {
  if (const auto chosen = matrix.Chosen(importer, owner)) {
    return std::string(fabric::KindName(*chosen));
  }
  const auto tries = matrix.Tries(importer, owner);
  if (!tries.ok()) return "?";
  return absl::StrJoin(*tries, ",",
                       [](std::string* out, const fabric::JobTry& one) {
                         absl::StrAppend(out, one.refusal.finding.id);
                       });
}

void Report(const RankTask& task, absl::Time deadline,
            const std::vector<absl::Time>& puts, const absl::Status& status,
            const fabric::JobMatrix* matrix) {
  const auto line = [](const absl::Status& of) {
    return absl::StrReplaceAll(of.message(), {{"\n", " "}});
  };
  std::string text =
      absl::StrCat(absl::ToInt64Microseconds(absl::Now() - deadline), " ",
                   absl::ToUnixMicros(deadline - task.time), " ", puts.size());
  for (absl::Time put : puts) {
    absl::StrAppend(&text, " ", absl::ToUnixMicros(put));
  }
  absl::StrAppend(&text, "\n", absl::StatusCodeToString(status.code()), "\n",
                  line(status), "\n");
  for (int i = 0; matrix != nullptr && i < task.ranks; ++i) {
    for (int j = 0; j < task.ranks; ++j) {
      if (i == j) continue;
      absl::StrAppend(&text, i, " ", j, " ", CellText(*matrix, i, j), " ",
                      line(matrix->WhyNot(i, j)), "\n");
    }
  }
  WriteFile(absl::StrCat(task.folder, "/", task.rank, ".report"), text);
}

// Writes into the right neighbour's memory, and reads what the left one wrote.
absl::Status UseNeighbours(const job::SymmetricMemory& memory,
                           const Device& device, fabric::Exchange& exchange) {
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  const int ranks = memory.ranks();
  const std::uint32_t mine = 100 + static_cast<std::uint32_t>(memory.rank());
  EXPECT_EQ(device.driver()->cuMemcpyHtoD(
                memory.address((memory.rank() + 1) % ranks), &mine, 4),
            CUDA_SUCCESS);
  EXPECT_EQ(device.driver()->cuCtxSynchronize(), CUDA_SUCCESS);
  absl::Status met = Gather(exchange, "written", {}, Late()).status;
  if (!met.ok()) return met;
  std::uint32_t read = 0;
  EXPECT_EQ(
      device.driver()->cuMemcpyDtoH(&read, memory.address(memory.rank()), 4),
      CUDA_SUCCESS);
  met = Gather(exchange, "read", {}, Late()).status;
  const int left = (memory.rank() + ranks - 1) % ranks;
  if (read != 100u + static_cast<std::uint32_t>(left)) {
    return absl::DataLossError(absl::StrCat("read ", read));
  }
  return met;
}

// Writes into the right neighbour's memory and reads what the left one wrote,
// many times, ordered by fences alone: each has one in its own memory for
// "there is something new", and one for "the right one has read".
absl::Status UseFences(const job::SymmetricMemory& memory, const Device& device,
                       fabric::Exchange& exchange) {
  constexpr std::uint32_t kRounds = 100;
  const platform::Driver& driver = device.driver();
  const int me = memory.rank();
  const int right = (me + 1) % memory.ranks();
  const int left = (me + memory.ranks() - 1) % memory.ranks();
  const auto array_of = [&](int rank) {
    return Must(FenceArray::Over(device, memory.address(rank) + kFenceBytes,
                                 2 * kFenceBytes));
  };
  const std::unique_ptr<FenceArray> mine = array_of(me);
  Must(mine->Clear(Late()));
  absl::Status met = Gather(exchange, "cleared", {}, Late()).status;
  if (!met.ok()) return met;
  const std::unique_ptr<FenceArray> rights = array_of(right);
  const std::unique_ptr<FenceArray> lefts = array_of(left);
  Fence there_is_new = Must(mine->At(0));
  Fence was_read = Must(mine->At(1));
  Fence for_right = Must(rights->At(0));
  Fence for_left = Must(lefts->At(1));

  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  CUstream stream = nullptr;
  void* pinned = nullptr;
  EXPECT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemHostAlloc(&pinned, kRounds * 4, 0), CUDA_SUCCESS);
  auto* const seen = static_cast<std::uint32_t*>(pinned);
  const auto value_of = [](int rank, std::uint32_t round) {
    return 1000 * static_cast<std::uint32_t>(rank + 1) + round;
  };
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    Must(was_read.Wait(stream, round - 1));
    EXPECT_EQ(driver->cuMemsetD32Async(memory.address(right),
                                       value_of(me, round), 1, stream),
              CUDA_SUCCESS);
    Must(for_right.Signal(stream, round));
    Must(there_is_new.Wait(stream, round));
    EXPECT_EQ(driver->cuMemcpyDtoHAsync(seen + round - 1, memory.address(me), 4,
                                        stream),
              CUDA_SUCCESS);
    Must(for_left.Signal(stream, round));
  }
  absl::Status all = was_read.WaitOnHost(kRounds, Late());
  if (all.ok()) all = there_is_new.WaitOnHost(kRounds, Late());
  EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  for (std::uint32_t round = 1; all.ok() && round <= kRounds; ++round) {
    if (seen[round - 1] == value_of(left, round)) continue;
    all = absl::DataLossError(
        absl::StrCat("round ", round, " read ", seen[round - 1]));
  }
  // The host's words cross as well.
  if (all.ok()) all = for_right.SignalFromHost(kRounds + 1);
  if (all.ok()) all = there_is_new.WaitOnHost(kRounds + 1, Late());
  if (all.ok()) all = for_right.Abandon();
  if (all.ok() &&
      !absl::IsAborted(there_is_new.WaitOnHost(kRounds + 2, Late()))) {
    all = absl::InternalError("the left one's word did not come");
  }
  EXPECT_EQ(driver->cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamDestroy(stream), CUDA_SUCCESS);
  met = Gather(exchange, "ordered", {}, Late()).status;
  return all.ok() ? met : all;
}

// The streams of all ranks meet again and again, and what each wrote to its right
// neighbour before is there after: no host is in between.
absl::Status UseMeetings(const job::SymmetricMemory& memory,
                         const Device& device, fabric::Exchange& exchange,
                         FenceMechanism mechanism) {
  constexpr std::uint32_t kRounds = 60;
  const platform::Driver& driver = device.driver();
  const int me = memory.rank();
  const int ranks = memory.ranks();
  const int right = (me + 1) % ranks;
  const int left = (me + ranks - 1) % ranks;
  const auto array_of = [&](int rank) {
    return Must(FenceArray::Over(device, memory.address(rank) + 4 * kFenceBytes,
                                 ranks * kFenceBytes, mechanism));
  };
  const std::unique_ptr<FenceArray> mine = array_of(me);
  Must(mine->Clear(Late()));
  const std::string name =
      absl::StrCat("meeting.", static_cast<int>(mechanism));
  absl::Status met =
      Gather(exchange, absl::StrCat(name, ".0"), {}, Late()).status;
  if (!met.ok()) return met;
  std::vector<Fence> fences_of_others;
  std::vector<Fence> my_fences;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    fences_of_others.push_back(
        Must(array_of(rank)->At(static_cast<std::uint64_t>(me))));
    my_fences.push_back(Must(mine->At(static_cast<std::uint64_t>(rank))));
  }
  std::vector<Fence*> signals;
  for (Fence& fence : fences_of_others) signals.push_back(&fence);
  std::vector<Fence*> waits;
  for (Fence& fence : my_fences) waits.push_back(&fence);
  const PrimaryContext context = Must(PrimaryContext::Retain(device));
  const CurrentContext current = Must(context.MakeCurrent());
  CUstream stream = nullptr;
  void* pinned = nullptr;
  EXPECT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  EXPECT_EQ(driver->cuMemHostAlloc(&pinned, kRounds * 4, 0), CUDA_SUCCESS);
  auto* const seen = static_cast<std::uint32_t*>(pinned);
  const auto value_of = [](int rank, std::uint32_t round) {
    return 5000 * static_cast<std::uint32_t>(rank + 1) + round;
  };
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    EXPECT_EQ(driver->cuMemsetD32Async(memory.address(right),
                                       value_of(me, round), 1, stream),
              CUDA_SUCCESS);
    Must(Fence::Meet(stream, signals, waits, 2 * round - 1));
    EXPECT_EQ(driver->cuMemcpyDtoHAsync(seen + round - 1, memory.address(me), 4,
                                        stream),
              CUDA_SUCCESS);
    Must(Fence::Meet(stream, signals, waits, 2 * round));
  }
  if (mechanism == FenceMechanism::kKernels) {
    // All add to one counter of rank 0's, and wait for its sum.
    const std::unique_ptr<FenceArray> first = array_of(0);
    Fence sum = Must(first->At(0));
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      Must(sum.Add(stream, 1));
      Must(sum.Wait(stream, round * static_cast<std::uint64_t>(ranks)));
    }
  }
  EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
  absl::Status all;
  for (std::uint32_t round = 1; all.ok() && round <= kRounds; ++round) {
    if (seen[round - 1] == value_of(left, round)) continue;
    all = absl::DataLossError(
        absl::StrCat(name, ", round ", round, ": read ", seen[round - 1]));
  }
  EXPECT_EQ(driver->cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamDestroy(stream), CUDA_SUCCESS);
  met = Gather(exchange, absl::StrCat(name, ".1"), {}, Late()).status;
  return all.ok() ? met : all;
}

std::vector<std::string> ToWords(const RankTask& task) {
  return {task.folder,
          absl::StrCat(task.rank),
          absl::StrCat(task.ranks),
          absl::FormatDuration(task.time),
          task.symmetric ? "symmetric" : "handshake",
          task.node,
          task.root,
          task.obey_permissions ? "obey" : "",
          absl::StrCat(task.kill_at_step),
          absl::FormatDuration(task.kill_after),
          task.fault,
          absl::StrCat(task.beside),
          task.only_stop ? "stop" : ""};
}

RankTask FromWords(const std::vector<std::string>& words) {
  RankTask task;
  task.folder = words[0];
  platform::Check(absl::SimpleAtoi(words[1], &task.rank) &&
                      absl::SimpleAtoi(words[2], &task.ranks) &&
                      absl::ParseDuration(words[3], &task.time) &&
                      absl::SimpleAtoi(words[8], &task.kill_at_step) &&
                      absl::ParseDuration(words[9], &task.kill_after) &&
                      absl::SimpleAtoi(words[11], &task.beside),
                  "a rank's command line");
  task.symmetric = words[4] == "symmetric";
  task.node = words[5];
  task.root = words[6];
  task.obey_permissions = !words[7].empty();
  task.fault = words[10];
  task.only_stop = !words[12].empty();
  return task;
}

void RunTask(const RankTask& task) {
  const absl::Time deadline = absl::Now() + task.time;
  const std::vector<Device> devices = Must(Device::All(TestDriver()));
  const Device& device =
      devices[static_cast<std::size_t>(task.rank) % devices.size()];
  job::JobOptions options;
  options.root = task.root;
  if (OnHostMemoryDriver() && task.fault != "no-nvml") {
    options.nvml = HostDriverPath();
  }
  FileExchange exchange(task);
  if (!task.symmetric) {
    const job::HandshakeResult met =
        job::Handshake(device, exchange, {.job = options}, deadline);
    Report(task, deadline, exchange.puts(), met.status, &met.matrix.details());
    return;
  }
  job::SymmetricOptions how;
  how.size = task.fault == "size" ? 4096 : 1000;
  how.job = options;
  absl::StatusOr<job::SymmetricMemory> memory =
      job::SymmetricMemory::Create(device, exchange, how, deadline);
  absl::Status status = memory.status();
  if (memory.ok()) status = UseNeighbours(*memory, device, exchange);
  if (status.ok()) status = UseFences(*memory, device, exchange);
  for (const FenceMechanism mechanism :
       {FenceMechanism::kStreamMemoryOperations, FenceMechanism::kKernels}) {
    if (!status.ok()) break;
    status = UseMeetings(*memory, device, exchange, mechanism);
  }
  Report(task, deadline, exchange.puts(), status, nullptr);
}

int RunRank(const std::vector<std::string>& words) {
  const RankTask task = FromWords(words);
  if (!task.node.empty()) Must(EnterNode(task.node));
  if (task.obey_permissions) ObeyPermissionBits();
  std::optional<Child> beside;
  if (task.beside >= 0) {
    RankTask other = task;
    other.rank = std::exchange(other.beside, -1);
    other.node.clear();
    beside.emplace(StartRank(other));
  }
  if (task.kill_after != absl::InfiniteDuration()) {
    std::thread([&task] {
      absl::SleepFor(task.kill_after);
      EndHere(task);
    }).detach();
  }
  RunTask(task);
  if (beside.has_value()) {
    EXPECT_EQ(beside->Wait(), 0);
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kRunRank = RegisterChild("job-rank", &RunRank);

}  // namespace

Child StartRank(const RankTask& task,
                const std::map<std::string, std::string>& env) {
  return Child::Start("job-rank", ToWords(task), env);
}

RankReport ReadReport(const RankTask& task) {
  RankReport report;
  std::ifstream file(absl::StrCat(task.folder, "/", task.rank, ".report"));
  std::int64_t microseconds = 0;
  if (!(file >> microseconds)) return report;
  report.there = true;
  report.after_deadline = absl::Microseconds(microseconds);
  std::size_t puts = 0;
  file >> microseconds >> puts;
  report.began = absl::FromUnixMicros(microseconds);
  for (std::size_t i = 0; i < puts && file >> microseconds; ++i) {
    report.puts.push_back(absl::FromUnixMicros(microseconds));
  }
  file >> report.code >> std::ws;
  if (report.code != "OK") std::getline(file, report.message);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::pair<int, int> pair;
    std::string cell;
    std::string why;
    if (!(words >> pair.first >> pair.second >> cell)) continue;
    std::getline(words, why);
    report.cells[pair] = cell;
    report.why[pair] = why;
  }
  return report;
}

}  // namespace vmm::testing
