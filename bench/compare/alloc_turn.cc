#include "bench/compare/alloc_turn.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "bench/compare/clock.h"
#include "bench/compare/results.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

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
absl::Status OneSlice(Owner& owner, const AllocJob& job, CUstream stream,
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
void Allocate(const Gpu& gpu, const AllocJob& job,
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

}  // namespace

absl::Status TakeTurn(const Gpu& gpu, const AllocJob& job, int threads,
                      const std::vector<AllocSamples*>& samples) {
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
      running.emplace_back([&] { Allocate(gpu, job, lines, &result); });
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
      AllocSamples& into = *samples[which];
      into.pair_ns.insert(into.pair_ns.end(), pair_ns.begin(), pair_ns.end());
      into.slice_p50.push_back(Median(pair_ns));
      into.per_second.push_back(static_cast<double>(pairs) /
                                static_cast<double>(ended - started) * 1e9);
    }
  }
  return absl::OkStatus();
}

}  // namespace bench::compare
