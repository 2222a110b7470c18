#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/compare/alloc_turn.h"
#include "bench/compare/bench.h"
#include "bench/compare/route.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// Blocks that a batch holds at once, where they fit.
constexpr std::uint64_t kLive = 16;

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

// The median, over the slices, of how many times as long `a` took as `b` right
// beside it.
double PairedRatio(const AllocSamples& a, const AllocSamples& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.slice_p50.size(), b.slice_p50.size());
       ++i) {
    ratios.push_back(a.slice_p50[i] / b.slice_p50[i]);
  }
  return Median(ratios);
}

// By size and number of threads.
using Key = std::pair<std::uint64_t, int>;
using ByAllocator = std::map<std::string, std::map<Key, AllocSamples>>;

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
        const AllocSamples& of = samples[allocator.name][{size, count}];
        if (of.pair_ns.empty()) continue;
        const AllocSamples& legacy =
            samples[routes::kLegacyIpc.name][{size, count}];
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
      const AllocJob job{allocators, size,
                         std::clamp<std::uint64_t>(fits, 1, kLive), slices,
                         slice_ns};
      std::vector<AllocSamples*> into;
      into.reserve(allocators.size());
      for (const Allocator& allocator : allocators) {
        into.push_back(&samples[allocator.name][{size, count}]);
        into.back()->live = job.live;
      }
      RETURN_IF_ERROR(TakeTurn(bench.gpu, job, count, into));
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
