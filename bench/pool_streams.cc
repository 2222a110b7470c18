#include "bench/pool_streams.h"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/allocators.h"
#include "platform/cuda/driver.h"

namespace vmm::bench {
namespace {

constexpr double kMiB = 1 << 20;
// What rounds over all streams may take together: the driver's pool needs 0.1 s
// for one over 1,024.
constexpr std::chrono::seconds kInTurn(2);

class Streams {
 public:
  Streams(const platform::Driver& driver, int count)
      : driver_(driver), streams_(static_cast<std::size_t>(count)) {
    for (CUstream& stream : streams_) {
      if (driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) !=
          CUDA_SUCCESS) {
        std::printf("a stream cannot be made\n");
      }
    }
  }
  ~Streams() {
    for (CUstream stream : streams_) {
      driver_->cuStreamSynchronize(stream);
      driver_->cuStreamDestroy(stream);
    }
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  CUstream operator[](std::size_t i) const { return streams_[i]; }
  std::size_t size() const { return streams_.size(); }

 private:
  platform::Driver driver_;
  std::vector<CUstream> streams_;
};

using ::bench::Allocator;

// 0 when there is none; it says why.
CUdeviceptr AllocateOrSay(Allocator& pool, std::uint64_t size,
                          CUstream stream) {
  const absl::StatusOr<CUdeviceptr> block = pool.Allocate(size, stream);
  if (block.ok()) return *block;
  std::printf("%s\n", block.status().ToString().c_str());
  return 0;
}

double Nanoseconds(std::chrono::steady_clock::duration took, double count) {
  return std::chrono::duration<double, std::nano>(took).count() / count;
}

struct Measured {
  double peak = 0;      // MiB.
  double reserved = 0;  // MiB.
  double growing = 0;   // Nanoseconds an operation of the first ones.
  double each = 0;      // Nanoseconds one of as many after these.
  bool ok = true;
};

// Random blocks on all streams, of which each has about as many.
class RandomProgram {
 public:
  RandomProgram(Allocator& pool, const Streams& streams)
      : pool_(pool),
        streams_(streams),
        live_(streams.size()),
        // No more than a small device holds.
        least_(std::max<std::size_t>(
            1, std::min<std::size_t>(50, 3200 / streams.size()))) {}
  ~RandomProgram() {
    for (std::size_t at = 0; at < streams_.size(); ++at) {
      for (const One& one : live_[at]) {
        pool_.Free(one.block, streams_[at]).IgnoreError();
      }
    }
  }
  RandomProgram(const RandomProgram&) = delete;
  RandomProgram& operator=(const RandomProgram&) = delete;

  // Nanoseconds an operation of so many.
  double Run(long operations) {
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < operations && ok_; ++i) {
      const std::size_t at = random_() % streams_.size();
      std::vector<One>& its = live_[at];
      if (its.size() < least_ ||
          (its.size() < 2 * least_ && random_() % 2 == 0)) {
        Allocate(at);
      } else {
        std::swap(its[random_() % its.size()], its.back());
        bytes_ -= its.back().size;
        if (!pool_.Free(its.back().block, streams_[at]).ok()) ok_ = false;
        its.pop_back();
      }
    }
    return Nanoseconds(std::chrono::steady_clock::now() - start,
                       static_cast<double>(operations));
  }
  std::uint64_t peak() const { return peak_; }  // Bytes.
  bool ok() const { return ok_; }

 private:
  struct One {
    CUdeviceptr block;
    std::uint64_t size;
  };

  void Allocate(std::size_t at) {
    // Each power of two as likely as another.
    const std::uint64_t size = (std::uint64_t{4096} << random_() % 8) +
                               random_() % (std::uint64_t{4096} << 7);
    const CUdeviceptr block = AllocateOrSay(pool_, size, streams_[at]);
    if (block == 0) {
      ok_ = false;
      return;
    }
    live_[at].push_back({block, size});
    bytes_ += size;
    peak_ = std::max(peak_, bytes_);
  }

  Allocator& pool_;
  const Streams& streams_;
  std::mt19937_64 random_{1};
  std::vector<std::vector<One>> live_;
  const std::size_t least_;
  std::uint64_t bytes_ = 0;
  std::uint64_t peak_ = 0;
  bool ok_ = true;
};

Measured RandomBlocks(Allocator& pool, const Streams& streams) {
  const long operations =
      std::max<long>(200'000, 400 * static_cast<long>(streams.size()));
  RandomProgram program(pool, streams);
  Measured measured;
  measured.growing = program.Run(operations);
  measured.each = program.Run(operations);
  measured.peak = static_cast<double>(program.peak()) / kMiB;
  measured.reserved = static_cast<double>(pool.Reserved()) / kMiB;
  measured.ok = program.ok();
  return measured;
}

Measured RoundRobin(Allocator& pool, const Streams& streams,
                    std::uint64_t size) {
  Measured measured;
  const long rounds =
      std::max<long>(2, 400'000 / static_cast<long>(streams.size()));
  const auto round = [&] {
    for (std::size_t at = 0; at < streams.size() && measured.ok; ++at) {
      const CUdeviceptr block = AllocateOrSay(pool, size, streams[at]);
      if (block == 0 || !pool.Free(block, streams[at]).ok()) {
        measured.ok = false;
      }
    }
  };
  round();
  const auto start = std::chrono::steady_clock::now();
  auto now = start;
  long made = 0;
  for (; made < rounds && measured.ok && now - start < kInTurn; ++made) {
    round();
    now = std::chrono::steady_clock::now();
  }
  measured.each =
      Nanoseconds(now - start, static_cast<double>(made) *
                                   static_cast<double>(streams.size()));
  measured.reserved = static_cast<double>(pool.Reserved()) / kMiB;
  return measured;
}

void PrintRow(const char* name, const Measured& measured) {
  std::printf("  %-18s %9.0f MiB", name, measured.reserved);
  if (measured.growing != 0) std::printf(" %9.0f ns", measured.growing);
  std::printf(" %9.0f ns", measured.each);
  if (!measured.ok) std::printf("  FAILED");
}

}  // namespace

bool PrintStreamTable(const Device& device, int most) {
  bool ok = true;
  std::printf(
      "streams  peak live    random blocks: reserved, an operation while the "
      "pool grows, and after; allocate and free 4 KiB in turn, and 64 KiB\n");
  for (int count = 1; count <= most; count *= count < 64 ? 4 : 2) {
    const Streams streams(device.driver(), count);
    for (const bool ours : {true, false}) {
      const auto make =
          ours ? &::bench::MakeVmmsharePool : &::bench::MakeDriverPool;
      absl::StatusOr<std::unique_ptr<Allocator>> pool = make(device);
      if (!pool.ok() && !ours) continue;  // It has none.
      const Measured blocks = RandomBlocks(**pool, streams);
      std::printf("%7d %7.0f MiB", count, blocks.peak);
      PrintRow(ours ? "vmmshare" : "cuMemAllocAsync", blocks);
      if (ours) ok = ok && blocks.ok;
      for (const std::uint64_t size : {4096, 65536}) {
        pool->reset();
        pool = make(device);
        if (!pool.ok()) {
          std::printf("%s", pool.status().ToString().c_str());
          ok = ok && !ours;
          break;
        }
        const Measured turns = RoundRobin(**pool, streams, size);
        PrintRow("in turn", turns);
        if (ours) ok = ok && turns.ok;
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return ok;
}

bool PrintLongRun(const Device& device, long operations) {
  const std::unique_ptr<Allocator> owned = *::bench::MakeVmmsharePool(device);
  Allocator& pool = *owned;
  std::mt19937_64 random(2);
  std::vector<CUdeviceptr> live(3000);
  for (CUdeviceptr& block : live) {
    block = AllocateOrSay(pool, 256 + random() % 65536, nullptr);
  }
  constexpr long kPart = 500'000;
  for (long done = 0; done < operations; done += kPart) {
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < kPart; ++i) {
      CUdeviceptr& block = live[random() % live.size()];
      if (!pool.Free(block, nullptr).ok()) return false;
      block = AllocateOrSay(pool, 256 + random() % 65536, nullptr);
      if (block == 0) return false;
    }
    std::printf("after %9ld operations: %6.0f ns for a free and an allocate\n",
                done + kPart,
                Nanoseconds(std::chrono::steady_clock::now() - start, kPart));
    std::fflush(stdout);
  }
  return true;
}

}  // namespace vmm::bench
