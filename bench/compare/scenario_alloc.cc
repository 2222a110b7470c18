#include <algorithm>
#include <condition_variable>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/compare/bench.h"
#include "bench/compare/route.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// Blocks that a batch holds at once, where they fit.
constexpr std::uint64_t kLive = 16;

struct Allocator {
  std::string name;
  std::string label;
  std::unique_ptr<Owner> owner;  // Only its Create(), Free() and Trim().
};

// The name of cuMemAllocAsync, which has no route: its pool is not shared.
constexpr char kAsyncAllocator[] = "async";

// cuMemAllocAsync from the device's default pool.
class AsyncOwner : public Owner {
 public:
  AsyncOwner(Gpu& gpu, CUmemoryPool pool) : Owner(gpu), pool_(pool) {}

  absl::StatusOr<Block> Create(std::uint64_t size, CUstream stream) override {
    Block block{0, size, 0};
    RETURN_IF_ERROR(
        gpu_.Call(&Cu::cuMemAllocAsync, &block.address, size, stream));
    return block;
  }
  absl::Status Free(const Block& block, CUstream stream) override {
    return gpu_.Call(&Cu::cuMemFreeAsync, block.address, stream);
  }
  absl::Status Export(const Block& /*block*/, Outgoing* /*out*/) override {
    return absl::UnimplementedError("the default pool is not shared");
  }
  absl::Status Trim() override {
    return gpu_.Call(&Cu::cuMemPoolTrimTo, pool_, 0);
  }

 private:
  CUmemoryPool pool_;
};

absl::StatusOr<std::unique_ptr<Owner>> MakeAsync(Gpu& gpu) {
  RETURN_IF_ERROR(
      (gpu.Need<&Cu::cuMemAllocAsync, &Cu::cuMemFreeAsync,
                &Cu::cuDeviceGetDefaultMemPool, &Cu::cuMemPoolSetAttribute,
                &Cu::cuMemPoolTrimTo>()));
  CUmemoryPool pool = nullptr;
  RETURN_IF_ERROR(gpu.Call(&Cu::cuDeviceGetDefaultMemPool, &pool,
                           gpu.device().cuda_device()));
  cuuint64_t keep_all = std::numeric_limits<cuuint64_t>::max();
  RETURN_IF_ERROR(gpu.Call(&Cu::cuMemPoolSetAttribute, pool,
                           CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
  return std::make_unique<AsyncOwner>(gpu, pool);
}

// cuMemAlloc, cuMemAllocAsync and vmmshare's pool, those that there are; why
// others are not is in `missing`.
std::vector<Allocator> MakeAllocators(Bench& bench,
                                      std::vector<std::string>* missing) {
  std::vector<Allocator> allocators;
  const auto add = [&](const std::string& name, const std::string& label,
                       absl::StatusOr<std::unique_ptr<Owner>> owner) {
    if (owner.ok()) {
      allocators.push_back({name, label, *std::move(owner)});
      return;
    }
    missing->push_back(absl::StrCat(
        label, ": not available: ", std::string(owner.status().message())));
  };
  add(routes::kLegacyIpc.name, "cuMemAlloc", routes::kLegacyIpc.own(bench.gpu));
  add(kAsyncAllocator, "cuMemAllocAsync", MakeAsync(bench.gpu));
  add(routes::kPool.name, routes::kPool.label, routes::kPool.own(bench.gpu));
  return allocators;
}

// One size, by every allocator.
struct Job {
  const std::vector<Allocator>& allocators;
  std::uint64_t size = 0;
  std::uint64_t live = 0;
  int slices = 0;  // Of each allocator; they take turns.
  std::int64_t slice_ns = 0;
};

struct Samples {
  std::uint64_t live = 0;          // Pairs of a batch.
  std::vector<double> pair_ns;     // Of each batch.
  std::vector<double> per_second;  // Pairs of all threads, of each slice.
  std::vector<double> slice_p50;   // Of a pair, of each slice.
};

// What a thread did with one allocator in one slice.
struct Slice {
  std::vector<double> pair_ns;
  std::uint64_t pairs = 0;
  std::int64_t started = 0;
  std::int64_t ended = 0;
};

struct ThreadResult {
  absl::Status status;
  std::vector<std::vector<Slice>> slices;  // By slice and allocator.
};

absl::Status OneBatch(Owner& owner, std::uint64_t size, CUstream stream,
                      std::vector<Block>* blocks) {
  for (Block& block : *blocks) {
    ASSIGN_OR_RETURN(block, owner.Create(size, stream));
  }
  for (const Block& block : *blocks) {
    RETURN_IF_ERROR(owner.Free(block, stream));
  }
  return absl::OkStatus();
}

// One batch that is not timed, then as many as there is time for.
absl::Status OneSlice(Owner& owner, const Job& job, CUstream stream,
                      std::vector<Block>* blocks, Slice* slice) {
  RETURN_IF_ERROR(OneBatch(owner, job.size, stream, blocks));
  slice->started = NowNs();
  slice->ended = slice->started;
  do {
    RETURN_IF_ERROR(OneBatch(owner, job.size, stream, blocks));
    const std::int64_t now = NowNs();
    slice->pair_ns.push_back(static_cast<double>(now - slice->ended) /
                             static_cast<double>(job.live));
    slice->pairs += job.live;
    slice->ended = now;
  } while (slice->ended < slice->started + job.slice_ns);
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

// The lines are one for each slice of each allocator, in their order.
void Allocate(const Gpu& gpu, const Job& job,
              const std::vector<std::unique_ptr<StartingLine>>& lines,
              ThreadResult* result) {
  absl::StatusOr<vmm::CurrentContext> current = gpu.MakeCurrent();
  CUstream stream = nullptr;
  result->status = current.status();
  if (result->status.ok()) {
    result->status =
        gpu.Call(&Cu::cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  }
  std::vector<Block> blocks(job.live);
  const std::size_t count = job.allocators.size();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    // Whoever goes first has the machine as the last one left it.
    const std::size_t which = (i + i / count) % count;
    // Also after a failure: the others wait here.
    lines[i]->ArriveAndWait();
    if (!result->status.ok()) continue;
    const Allocator& allocator = job.allocators[which];
    result->status =
        vmm::platform::Annotate(OneSlice(*allocator.owner, job, stream, &blocks,
                                         &result->slices[i / count][which]),
                                allocator.label);
  }
  if (stream == nullptr) return;
  for (const Allocator& allocator : job.allocators) {
    result->status.Update(allocator.owner->Leave(stream));
  }
  result->status.Update(gpu.Call(&Cu::cuStreamSynchronize, stream));
  result->status.Update(gpu.Call(&Cu::cuStreamDestroy, stream));
}

// All slices of all allocators, by the same threads: on a machine whose cores
// are at times half as fast, both sides of a ratio then are.
absl::Status Turn(Bench& bench, const Job& job, int threads,
                  const std::vector<Samples*>& samples) {
  const std::size_t count = job.allocators.size();
  std::vector<ThreadResult> results(static_cast<std::size_t>(threads));
  std::vector<std::unique_ptr<StartingLine>> lines(
      static_cast<std::size_t>(job.slices) * count);
  for (auto& line : lines) line = std::make_unique<StartingLine>(threads);
  {
    std::vector<std::thread> running;
    running.reserve(results.size());
    for (ThreadResult& result : results) {
      result.slices.assign(static_cast<std::size_t>(job.slices),
                           std::vector<Slice>(count));
      running.emplace_back([&] { Allocate(bench.gpu, job, lines, &result); });
    }
    for (std::thread& thread : running) thread.join();
  }
  for (const ThreadResult& result : results) RETURN_IF_ERROR(result.status);
  for (std::size_t slice = 0; slice < static_cast<std::size_t>(job.slices);
       ++slice) {
    for (std::size_t which = 0; which < count; ++which) {
      std::int64_t started = std::numeric_limits<std::int64_t>::max();
      std::int64_t ended = 0;
      std::uint64_t pairs = 0;
      std::vector<double> pair_ns;
      for (const ThreadResult& result : results) {
        const Slice& of = result.slices[slice][which];
        started = std::min(started, of.started);
        ended = std::max(ended, of.ended);
        pairs += of.pairs;
        pair_ns.insert(pair_ns.end(), of.pair_ns.begin(), of.pair_ns.end());
      }
      Samples& into = *samples[which];
      into.pair_ns.insert(into.pair_ns.end(), pair_ns.begin(), pair_ns.end());
      into.slice_p50.push_back(Median(pair_ns));
      into.per_second.push_back(static_cast<double>(pairs) /
                                static_cast<double>(ended - started) * 1e9);
    }
  }
  return absl::OkStatus();
}

// The median, over the slices, of how many times as long `a` took as `b` right
// beside it.
double PairedRatio(const Samples& a, const Samples& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.slice_p50.size(), b.slice_p50.size());
       ++i) {
    ratios.push_back(a.slice_p50[i] / b.slice_p50[i]);
  }
  return Median(ratios);
}

// By size and number of threads.
using Key = std::pair<std::uint64_t, int>;
using ByAllocator = std::map<std::string, std::map<Key, Samples>>;

void AddTargets(Bench& bench, const std::vector<std::string>& missing,
                ByAllocator& samples) {
  Target faster;
  faster.name = "pool allocate+free over cuMemAllocAsync+cuMemFreeAsync";
  faster.floor = 10;
  faster.aim = 20;
  faster.unit = "x";
  faster.remark = absl::StrJoin(missing, "; ");
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
    const double ratio = PairedRatio(async->second, of_pool);
    if (!faster.measured.has_value() || ratio < *faster.measured) {
      faster.measured = ratio;
      faster.remark =
          absl::StrCat("the worst size, ", SizeName(size),
                       ", one thread, median of slices beside each other");
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
            const std::vector<std::string>& missing,
            const std::vector<std::uint64_t>& sizes,
            const std::vector<int>& threads, ByAllocator& samples) {
  for (const int count : threads) {
    Table table;
    table.title = absl::StrFormat("Allocate and free, %d thread%s", count,
                                  count == 1 ? "" : "s");
    table.header = {"allocator", "size",      "p50",
                    "p99",       "to legacy", "million pairs a second"};
    table.notes = {
        "p50 and p99 of a pair (allocate and free), over batches of 16, or of "
        "what fits; the rate is that of all threads together"};
    table.notes.insert(table.notes.end(), missing.begin(), missing.end());
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
             of.live,
             {{"pairs_per_second", Median(of.per_second)},
              {"live", static_cast<double>(of.live)}}});
      }
    }
    bench.results.tables.push_back(table);
    bench.results.charts.push_back(chart);
  }
  AddTargets(bench, missing, samples);
}

absl::Status Run(Bench& bench) {
  std::vector<std::string> missing;
  const std::vector<Allocator> allocators = MakeAllocators(bench, &missing);
  std::vector<std::uint64_t> sizes;
  for (const std::uint64_t kib : {4, 32, 256, 2048, 16384, 65536}) {
    if (kib << 10 <= bench.MaxSize()) sizes.push_back(kib << 10);
  }
  std::vector<int> threads = {1, 2, 4, 8};
  int slices = 10 * bench.Iterations(3);
  std::int64_t slice_ns = 5'000'000;
  if (bench.options.quick) {
    threads = {1, 2};
    slices = bench.Iterations(3);
    slice_ns = 1'000'000;
  }
  ByAllocator samples;
  for (const std::uint64_t size : sizes) {
    ASSIGN_OR_RETURN(std::uint64_t free, bench.gpu.FreeBytes());
    for (const int count : threads) {
      bench.progress.Step(
          absl::StrFormat("alloc: %s, %d threads", SizeName(size), count));
      RETURN_IF_ERROR(bench.GoOn());
      const std::uint64_t fits =
          free / 8 / size / static_cast<std::uint64_t>(count);
      const Job job{allocators, size, std::clamp<std::uint64_t>(fits, 1, kLive),
                    slices, slice_ns};
      std::vector<Samples*> into;
      into.reserve(allocators.size());
      for (const Allocator& allocator : allocators) {
        into.push_back(&samples[allocator.name][{size, count}]);
        into.back()->live = job.live;
      }
      RETURN_IF_ERROR(Turn(bench, job, count, into));
    }
    // What one size left in a pool is no use to the next.
    for (const Allocator& allocator : allocators) {
      RETURN_IF_ERROR(allocator.owner->Trim());
    }
  }
  Report(bench, allocators, missing, sizes, threads, samples);
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kAlloc = {
    "alloc", "allocate and free, by size and number of threads",
    R"(  Timed: batches of 16 allocations and then 16 frees, with the memory warm: cuMemAlloc,
  cuMemAllocAsync (the device's default pool, which keeps everything) and vmmshare's pool, each
  thread with a stream of its own. A pair is a batch's time by 16. Fewer than 16 at once where
  they would not fit. Not timed: the first batch, growing pools. Nothing is shared here.)",
    &Run};

}  // namespace bench::compare
