// What a rank of a job pays, by the number of ranks: for the handshake, for
// symmetric memory, and for the report of `vmmshare doctor --job`.
//
//   bench_job                          2 to 72 ranks
//   bench_job --ranks=72,144,576
//   bench_job --format=csv             for the plot
//
// All ranks are threads of this process, on the host-memory driver: the bytes
// and calls are those of a job, the times are this machine's, which runs all
// ranks on its cores; so a rank's own time is what its thread used of a core.
// Ranks reach each other by descriptors, or, where the host-memory driver is
// told of a fabric (VMMSHARE_HOST_FABRIC_ROOT), symmetric memory by fabric
// handles, as between the nodes of a job. Each rank then has a descriptor for
// each other one's memory in this process, and without a fabric a connection
// to each as well: where it may not have so many, symmetric memory is left out.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "bench/driver.h"
#include "bench/must.h"
#include "fabric/exchange.h"
#include "platform/cuda/driver.h"
#include "vmm/job/handshake.h"
#include "vmm/job/symmetric.h"
#include "vmm/vmm.h"

namespace {

using bench::Must;
using vmm::Deadline;
using vmm::Device;
using vmm::fabric::Bytes;
using vmm::platform::Driver;

constexpr absl::Duration kPatience = absl::Hours(1);
// A rank's own: its endpoint's, the memory it offers.
constexpr std::uint64_t kOtherDescriptors = 12;
// Of one rank's reaching another by descriptors: both ends of the connection,
// and what watches them. 20,000 are too few for 54 ranks, and enough for 48.
constexpr std::uint64_t kDescriptorsOfAPair = 8;

// What one rank has done so far.
struct Cost {
  std::uint64_t put = 0;  // Bytes.
  std::uint64_t got = 0;
  std::uint64_t calls = 0;
  double busy = 0;  // Seconds of a core.
};

// As many as this process may have: each rank listens, and has connections to
// others. Returns how many.
std::uint64_t AllowDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

double ResidentMiB() {
  long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  const long page = sysconf(_SC_PAGESIZE);  // 64 KiB on some ARM systems.
  return static_cast<double>(pages) * static_cast<double>(page) / (1 << 20);
}

// What a launcher's server does, in this process.
class Store {
 public:
  explicit Store(int ranks) : ranks_(ranks) {}

  vmm::fabric::ExchangeCallbacks Of(int rank, Cost& cost) {
    vmm::fabric::ExchangeCallbacks callbacks;
    callbacks.job = "bench";
    callbacks.rank = rank;
    callbacks.size = ranks_;
    callbacks.put = [this, rank, &cost](const std::string& key,
                                        absl::Span<const std::uint8_t> value,
                                        absl::Time) {
      ++cost.calls;
      cost.put += value.size();
      const absl::MutexLock lock(&mutex_);
      values_[key][rank] = Bytes(value.begin(), value.end());
      return absl::OkStatus();
    };
    callbacks.fence = [this, &cost](absl::Time deadline) -> absl::Status {
      ++cost.calls;
      const absl::MutexLock lock(&mutex_);
      const int round = arrived_++ / ranks_;
      came_.SignalAll();
      while (arrived_ < (round + 1) * ranks_) {
        if (came_.WaitWithDeadline(&mutex_, deadline)) {
          return absl::DeadlineExceededError("not all ranks came");
        }
      }
      return absl::OkStatus();
    };
    callbacks.get = [this, &cost](int of, const std::string& key,
                                  absl::Time) -> absl::StatusOr<Bytes> {
      ++cost.calls;
      const absl::MutexLock lock(&mutex_);
      const Bytes& value = values_[key][of];
      cost.got += value.size();
      return value;
    };
    return callbacks;
  }

 private:
  const int ranks_;
  absl::Mutex mutex_;
  absl::CondVar came_;
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::map<int, Bytes>> values_ ABSL_GUARDED_BY(mutex_);
};

struct Row {
  std::string step;
  int ranks;
  double wall;      // Milliseconds, of all ranks together.
  double resident;  // MiB a rank that came while all had it.
  Cost most;        // Of the rank that has most.
};

// Runs `step` on a thread for each rank, which returns when all have ended it.
// What `step` returns is kept until memory has been looked at.
Row Measure(const std::string& name, int ranks,
            const std::function<std::shared_ptr<void>(
                int rank, vmm::fabric::Exchange& exchange)>& step) {
  Store store(ranks);
  std::vector<Cost> costs(static_cast<std::size_t>(ranks));
  absl::Barrier* const done = new absl::Barrier(ranks + 1);
  absl::Barrier* const looked = new absl::Barrier(ranks + 1);
  const double before = ResidentMiB();
  const absl::Time began = absl::Now();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Cost& cost = costs[static_cast<std::size_t>(rank)];
      const double start = ThreadSeconds();
      vmm::fabric::CallbackExchange exchange(store.Of(rank, cost));
      const std::shared_ptr<void> kept = step(rank, exchange);
      cost.busy = ThreadSeconds() - start;
      if (done->Block()) delete done;
      if (looked->Block()) delete looked;
    });
  }
  if (done->Block()) delete done;
  Row row{name,
          ranks,
          absl::ToDoubleMilliseconds(absl::Now() - began),
          (ResidentMiB() - before) / ranks,
          {}};
  if (looked->Block()) delete looked;
  for (std::thread& thread : threads) thread.join();
  for (const Cost& cost : costs) {
    row.most.put = std::max(row.most.put, cost.put);
    row.most.got = std::max(row.most.got, cost.got);
    row.most.calls = std::max(row.most.calls, cost.calls);
    row.most.busy = std::max(row.most.busy, cost.busy);
  }
  return row;
}

Device DeviceOf(const Driver& driver, int rank) {
  const std::vector<Device> all = Must(Device::All(driver));
  return all[static_cast<std::size_t>(rank) % all.size()];
}

void Print(const Row& row, bool csv) {
  if (csv) {
    std::printf("%s,%d,%.3f,%.3f,%.3f,%llu,%llu,%llu\n", row.step.c_str(),
                row.ranks, row.wall, row.most.busy * 1000, row.resident,
                static_cast<unsigned long long>(row.most.put),
                static_cast<unsigned long long>(row.most.got),
                static_cast<unsigned long long>(row.most.calls));
  } else {
    std::printf("%-10s %6d %10.1f %12.2f %10.2f %8llu %12llu %8llu\n",
                row.step.c_str(), row.ranks, row.wall, row.most.busy * 1000,
                row.resident, static_cast<unsigned long long>(row.most.put),
                static_cast<unsigned long long>(row.most.got),
                static_cast<unsigned long long>(row.most.calls));
  }
  std::fflush(stdout);
}

void Run(const Driver& driver, int ranks, std::uint64_t descriptors, bool csv) {
  Print(Measure("handshake", ranks,
                [&](int rank, vmm::fabric::Exchange& exchange) {
                  vmm::job::HandshakeResult met =
                      vmm::job::Handshake(DeviceOf(driver, rank), exchange, {},
                                          Deadline::In(kPatience));
                  Must(met.status);
                  Must(met.matrix.AllReach());
                  return std::make_shared<vmm::job::HandshakeResult>(
                      std::move(met));
                }),
        csv);
  const bool fabric = std::getenv("VMMSHARE_HOST_FABRIC_ROOT") != nullptr;
  const auto pairs =
      static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(ranks);
  if (pairs * (fabric ? 1 : kDescriptorsOfAPair) +
          kOtherDescriptors * static_cast<std::uint64_t>(ranks) >
      descriptors) {
    std::fprintf(stderr,
                 "no symmetric memory of %d ranks: this process may have %llu "
                 "descriptors\n",
                 ranks, static_cast<unsigned long long>(descriptors));
    return;
  }
  Print(Measure("symmetric", ranks,
                [&](int rank, vmm::fabric::Exchange& exchange) {
                  vmm::job::SymmetricOptions options;
                  options.size = 64 << 10;
                  if (fabric) {
                    options.sharing =
                        vmm::SharePolicy::AnyOf({vmm::HandleKind::kFabric});
                  }
                  return std::make_shared<vmm::job::SymmetricMemory>(
                      Must(vmm::job::SymmetricMemory::Create(
                          DeviceOf(driver, rank), exchange, options,
                          Deadline::In(kPatience))));
                }),
        csv);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes = {2, 4, 8, 16, 36, 72};
  bool csv = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--ranks=")) {
      sizes.clear();
      for (const absl::string_view one : absl::StrSplit(word, ',')) {
        int ranks = 0;
        if (!absl::SimpleAtoi(one, &ranks) || ranks < 1) {
          Must(absl::InvalidArgumentError("--ranks takes counts of ranks"));
        }
        sizes.push_back(ranks);
      }
    } else if (word == "--format=csv") {
      csv = true;
    } else if (!absl::StartsWith(word, "--driver=")) {
      // That is of no use here, and ./dev bench gives it to every program.
      std::fprintf(stderr, "usage: bench_job [--ranks=N,...] [--format=csv]\n");
      return 2;
    }
  }
  const std::uint64_t descriptors = AllowDescriptors();
  const Driver driver = Must(bench::LoadDriver("host"));
  if (csv) {
    std::printf("step,ranks,wall_ms,busy_ms,resident_mib,put,got,calls\n");
  } else {
    std::printf("%s: not a GPU figure\n%-10s %6s %10s %12s %10s %8s %12s %8s\n",
                driver.Describe().c_str(), "step", "ranks", "all ms",
                "a rank's ms", "MiB each", "put", "got", "calls");
  }
  for (const int ranks : sizes) Run(driver, ranks, descriptors, csv);
  return 0;
}
