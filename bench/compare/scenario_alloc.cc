#include <algorithm>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/allocators.h"
#include "bench/compare/bench.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"

namespace bench::compare {
namespace {

constexpr std::uint64_t kLive = 16;  // Blocks that a batch holds at once.

struct Job {
  Owner* owner = nullptr;
  std::uint64_t size = 0;
  std::uint64_t live = 0;
  std::int64_t duration_ns = 0;
};

struct Samples {
  std::vector<double> pair_ns;     // Of each batch.
  std::vector<double> per_second;  // Pairs of all threads, of each turn.
};

struct ThreadResult {
  absl::Status status;
  std::vector<double> pair_ns;
  std::uint64_t pairs = 0;
  std::int64_t started = 0;
  std::int64_t ended = 0;
};

absl::Status OneBatch(const Job& job, CUstream stream,
                      std::vector<Block>* blocks) {
  for (std::uint64_t i = 0; i < job.live; ++i) {
    absl::StatusOr<Block> block = job.owner->Create(job.size, stream);
    if (!block.ok()) return block.status();
    (*blocks)[i] = *block;
  }
  for (std::uint64_t i = 0; i < job.live; ++i) {
    absl::Status freed = job.owner->Free((*blocks)[i], stream);
    if (!freed.ok()) return freed;
  }
  return absl::OkStatus();
}

// Where threads wait until all have come. (libstdc++'s std::latch can lose the
// wake where the system has no futex, as on Windows: its waiter looks at the
// value before it takes the lock.)
class StartingLine {
 public:
  explicit StartingLine(int threads) : missing_(threads) {}

  void ArriveAndWait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) all_here_.notify_all();
    all_here_.wait(lock, [this] { return missing_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int missing_;
};

void Allocate(const Gpu& gpu, const Job& job, StartingLine& ready,
              ThreadResult* result) {
  absl::StatusOr<vmm::CurrentContext> current = gpu.MakeCurrent();
  CUstream stream = nullptr;
  result->status = current.status();
  if (result->status.ok()) {
    result->status =
        gpu.Error(gpu.cu().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                  "cuStreamCreate()");
  }
  std::vector<Block> blocks(job.live);
  result->pair_ns.reserve(64 << 10);
  if (result->status.ok()) result->status = OneBatch(job, stream, &blocks);
  ready.ArriveAndWait();
  result->started = NowNs();
  std::int64_t now = result->started;
  while (result->status.ok() && now < result->started + job.duration_ns) {
    result->status = OneBatch(job, stream, &blocks);
    const std::int64_t then = NowNs();
    result->pair_ns.push_back(static_cast<double>(then - now) /
                              static_cast<double>(job.live));
    result->pairs += job.live;
    now = then;
  }
  result->ended = now;
  if (stream != nullptr) {
    result->status.Update(job.owner->Leave(stream));
    result->status.Update(
        gpu.Error(gpu.cu().cuStreamSynchronize(stream), "cuStreamSynchronize"));
    result->status.Update(
        gpu.Error(gpu.cu().cuStreamDestroy(stream), "cuStreamDestroy()"));
  }
}

absl::Status Turn(Bench& bench, const Job& job, int threads, Samples* samples) {
  std::vector<ThreadResult> results(static_cast<std::size_t>(threads));
  StartingLine ready(threads);
  {
    std::vector<std::thread> running;
    running.reserve(results.size());
    for (ThreadResult& result : results) {
      running.emplace_back([&] { Allocate(bench.gpu, job, ready, &result); });
    }
    for (std::thread& thread : running) thread.join();
  }
  std::int64_t started = std::numeric_limits<std::int64_t>::max();
  std::int64_t ended = 0;
  std::uint64_t pairs = 0;
  for (const ThreadResult& result : results) {
    if (!result.status.ok()) return result.status;
    started = std::min(started, result.started);
    ended = std::max(ended, result.ended);
    pairs += result.pairs;
    samples->pair_ns.insert(samples->pair_ns.end(), result.pair_ns.begin(),
                            result.pair_ns.end());
  }
  samples->per_second.push_back(static_cast<double>(pairs) /
                                static_cast<double>(ended - started) * 1e9);
  return absl::OkStatus();
}

// By size and number of threads.
using Key = std::pair<std::uint64_t, int>;
using ByAllocator = std::map<std::string, std::map<Key, Samples>>;

void AddTargets(Bench& bench, ByAllocator& samples) {
  Target faster;
  faster.name = "pool allocate+free over cuMemAllocAsync+cuMemFreeAsync";
  faster.floor = 10;
  faster.aim = 20;
  faster.unit = "x";
  Target scaling;
  scaling.name = "pool allocate+free, throughput of 8 threads over 1";
  scaling.floor = scaling.aim = 4;
  scaling.unit = "x";
  std::vector<double> gains;
  for (const auto& [key, of_pool] : samples[routes::kPool.name]) {
    const auto& [size, threads] = key;
    if (threads == 8) {
      gains.push_back(
          Median(of_pool.per_second) /
          Median(samples[routes::kPool.name][{size, 1}].per_second));
    }
    const auto async = samples[kAsyncAllocator].find(key);
    if (threads != 1 || async == samples[kAsyncAllocator].end()) continue;
    const double ratio =
        Median(async->second.pair_ns) / Median(of_pool.pair_ns);
    if (!faster.measured.has_value() || ratio < *faster.measured) {
      faster.measured = ratio;
      faster.remark =
          absl::StrCat("the worst size, ", SizeName(size), ", one thread, p50");
    }
  }
  if (!gains.empty()) {
    scaling.measured = Median(gains);
    scaling.remark = "median over the sizes";
  }
  if (std::thread::hardware_concurrency() < 8) {
    scaling.applies = false;
    scaling.measured.reset();
    scaling.remark = "fewer than 8 cores";
  }
  bench.results.targets.push_back(faster);
  bench.results.targets.push_back(scaling);
}

void Report(Bench& bench, const std::vector<Allocator>& allocators,
            const std::vector<std::uint64_t>& sizes,
            const std::vector<int>& threads, ByAllocator& samples) {
  for (const int count : threads) {
    Table table;
    table.title = absl::StrFormat("Allocate and free, %d thread%s", count,
                                  count == 1 ? "" : "s");
    table.header = {"allocator", "size",      "p50",
                    "p99",       "to legacy", "million pairs a second"};
    table.notes = {
        "p50 and p99 of a pair (allocate and free), over batches of 16; the "
        "rate is that of all threads together"};
    Chart chart;
    chart.file = absl::StrCat("alloc_", count);
    chart.title = table.title;
    chart.x_label = "size";
    chart.x_is_bytes = true;
    chart.y_label = "allocate and free, p50";
    for (const Allocator& allocator : allocators) {
      chart.series.push_back({allocator.label});
      for (const std::uint64_t size : sizes) {
        const Samples& of = samples[allocator.name][{size, count}];
        if (of.pair_ns.empty()) continue;
        const Samples& legacy = samples[routes::kLegacyIpc.name][{size, count}];
        table.rows.push_back(
            {allocator.label, SizeName(size), TimeTextOr(of.pair_ns, 50),
             TimeTextOr(of.pair_ns, 99),
             RatioText(Median(legacy.pair_ns) / Median(of.pair_ns)),
             absl::StrFormat("%.3f", Median(of.per_second) / 1e6)});
        chart.series.back().points.emplace_back(static_cast<double>(size),
                                                Median(of.pair_ns));
        bench.results.metrics.push_back(
            {absl::StrCat("alloc/", allocator.name, "/", SizeName(size),
                          "/threads:", count),
             of.pair_ns,
             -1,
             kLive,
             {{"pairs_per_second", Median(of.per_second)}}});
      }
    }
    bench.results.tables.push_back(table);
    bench.results.charts.push_back(chart);
  }
  AddTargets(bench, samples);
}

absl::Status Run(Bench& bench) {
  absl::StatusOr<std::vector<Allocator>> allocators = MakeAllocators(bench);
  if (!allocators.ok()) return allocators.status();
  std::vector<std::uint64_t> sizes;
  for (const std::uint64_t kib : {4, 32, 256, 2048, 16384, 65536}) {
    if (kib << 10 <= bench.MaxSize()) sizes.push_back(kib << 10);
  }
  std::vector<int> threads = {1, 2, 4, 8};
  std::int64_t duration_ns = 50'000'000;
  if (bench.options.quick) {
    threads = {1, 2};
    duration_ns = 1'000'000;
  }
  ByAllocator samples;
  const int turns = bench.Iterations(3);
  for (const std::uint64_t size : sizes) {
    absl::StatusOr<std::uint64_t> free = bench.gpu.FreeBytes();
    if (!free.ok()) return free.status();
    for (const int count : threads) {
      bench.progress.Step(
          absl::StrFormat("alloc: %s, %d threads", SizeName(size), count));
      const std::uint64_t fits =
          *free / 8 / size / static_cast<std::uint64_t>(count);
      for (int i = 0; i < turns; ++i) {
        for (const std::size_t j :
             Rotated(std::vector<std::size_t>{0, 1, 2}, i)) {
          if (j >= allocators->size()) continue;
          const Allocator& allocator = (*allocators)[j];
          const Job job{allocator.owner.get(), size,
                        std::clamp<std::uint64_t>(fits, 1, kLive), duration_ns};
          absl::Status done =
              Turn(bench, job, count, &samples[allocator.name][{size, count}]);
          if (!done.ok()) {
            return absl::Status(done.code(), absl::StrCat(allocator.label, ": ",
                                                          done.message()));
          }
        }
      }
    }
    // What one size left in a pool is no use to the next.
    for (const Allocator& allocator : *allocators) {
      if (absl::Status s = allocator.owner->Trim(); !s.ok()) return s;
    }
  }
  Report(bench, *allocators, sizes, threads, samples);
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kAlloc = {
    "alloc", "allocate and free, by size and number of threads",
    "  Timed: batches of 16 allocations and then 16 frees, with the memory "
    "warm: cuMemAlloc,\n"
    "  cuMemAllocAsync (the device's default pool, which keeps everything) and "
    "vmmshare's pool, each\n"
    "  thread with a stream of its own. A pair is a batch's time by 16. Fewer "
    "than 16 at once where\n"
    "  they would not fit. Not timed: the first batch, growing pools. Nothing "
    "is shared here.",
    &Run};

}  // namespace bench::compare
