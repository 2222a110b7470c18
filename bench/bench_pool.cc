// What a block of a pool costs, and what sharing it costs: without the GPU's
// part, for there is none.
//
//   bench_pool                        on the installed NVIDIA driver
//   bench_pool --driver=host          on the host-memory driver
//   bench_pool --streams=N            tables instead: 1 to N streams, beside
//                                     the driver's own pool, and a long run
//
// allocate_free/SIZE/threads:N  one block, allocated and freed
// burst/SIZE                    1,000 blocks, then all of them freed
// export                        from an address to the 56 bytes of its ticket
// import                        from the 56 bytes to an address, in the same
//                               process by a connection of its own
// share                         both, of 10,000 blocks in turn: none is in the
//                               processor's nearest cache
#include <benchmark/benchmark.h>
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/driver.h"
#include "bench/must.h"
#include "bench/pool_streams.h"
#include "vmm/vmm.h"

namespace {

using bench::Must;
using vmm::platform::Driver;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// A pool, and a subscription to it by the same process.
struct Ends {
  std::unique_ptr<vmm::Pool> pool;
  std::unique_ptr<vmm::Endpoint> endpoint;
  std::optional<vmm::Share> publication;
  std::unique_ptr<vmm::ImportedPool> imported;
};

void AllocateFree(benchmark::State& state, vmm::Pool& pool) {
  const auto size = static_cast<std::uint64_t>(state.range(0));
  for (auto _ : state) {
    const absl::StatusOr<CUdeviceptr> block = pool.Allocate(size, nullptr);
    benchmark::DoNotOptimize(block);
    if (!block.ok() || !pool.Free(*block, nullptr).ok()) {
      state.SkipWithError("the pool failed");
      return;
    }
  }
}

void Burst(benchmark::State& state, vmm::Pool& pool) {
  const auto size = static_cast<std::uint64_t>(state.range(0));
  std::vector<CUdeviceptr> blocks(1000);
  for (auto _ : state) {
    for (CUdeviceptr& block : blocks)
      block = Must(pool.Allocate(size, nullptr));
    for (CUdeviceptr block : blocks) Must(pool.Free(block, nullptr));
  }
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(blocks.size()));
}

void Export(benchmark::State& state, Ends& ends) {
  const CUdeviceptr block = Must(ends.pool->Allocate(65536, nullptr));
  for (auto _ : state) {
    benchmark::DoNotOptimize(vmm::EncodePoolTicket(*ends.pool->Export(block)));
  }
  Must(ends.pool->Free(block, nullptr));
}

void Import(benchmark::State& state, Ends& ends) {
  const CUdeviceptr block = Must(ends.pool->Allocate(65536, nullptr));
  const vmm::PoolTicketBytes bytes =
      vmm::EncodePoolTicket(Must(ends.pool->Export(block)));
  const absl::Time deadline = Soon();
  for (auto _ : state) {
    const absl::StatusOr<vmm::ImportedBlock> imported =
        ends.imported->Import(*vmm::DecodePoolTicket(bytes), deadline);
    benchmark::DoNotOptimize(imported->address());
  }
  Must(ends.pool->Free(block, nullptr));
}

void Share(benchmark::State& state, Ends& ends) {
  constexpr std::size_t kBlocks = 10000;
  const absl::Time deadline = Soon();
  std::vector<vmm::ImportedBlock> imported;
  imported.reserve(kBlocks);
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<CUdeviceptr> blocks;
    blocks.reserve(kBlocks);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(Must(ends.pool->Allocate(65536, nullptr)));
    }
    state.ResumeTiming();
    for (CUdeviceptr block : blocks) {
      const vmm::PoolTicketBytes bytes =
          vmm::EncodePoolTicket(*ends.pool->Export(block));
      imported.push_back(
          *ends.imported->Import(*vmm::DecodePoolTicket(bytes), deadline));
    }
    state.PauseTiming();
    imported.clear();
    for (CUdeviceptr block : blocks) Must(ends.pool->Free(block, nullptr));
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(kBlocks));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::string choice = "system";
  int streams = 0;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--streams=")) {
      streams = std::atoi(std::string(word).c_str());
      continue;
    }
    if (!absl::ConsumePrefix(&word, "--driver=")) {
      std::fprintf(stderr,
                   "%s: expected --driver=host|system|PATH or --streams=N\n",
                   argv[i]);
      return 2;
    }
    choice = std::string(word);
  }
  const Driver driver = Must(bench::LoadDriver(choice));
  const vmm::Device device = Must(vmm::Device::ByOrdinal(driver, 0));
  const vmm::PrimaryContext context = Must(vmm::PrimaryContext::Retain(device));
  const vmm::CurrentContext current = Must(context.MakeCurrent());
  std::printf("%s\n%s\n%s", driver.Describe().c_str(),
              device.Describe().c_str(),
              driver.is_host_memory() ? "not a GPU figure\n" : "");
  if (streams > 0) {
    const bool ok = vmm::bench::PrintStreamTable(device, streams) &&
                    vmm::bench::PrintLongRun(device, 10'000'000);
    return ok ? 0 : 1;
  }
  Ends ends;
  ends.pool = Must(vmm::Pool::Create(device, {}));
  ends.endpoint = Must(vmm::Endpoint::Start({}));
  ends.publication = Must(ends.endpoint->Serve(*ends.pool));
  ends.imported = Must(vmm::ImportedPool::Subscribe(
      driver, ends.publication->ticket(), {}, Soon()));
  for (std::int64_t size : {512, 65536, 1 << 20, 8 << 20}) {
    for (int threads : {1, 2, 4, 8, 16}) {
      benchmark::RegisterBenchmark(
          "allocate_free",
          [&ends](benchmark::State& state) { AllocateFree(state, *ends.pool); })
          ->Arg(size)
          ->Threads(threads)
          ->UseRealTime();
    }
  }
  for (std::int64_t size : {512, 65536}) {
    benchmark::RegisterBenchmark("burst", [&ends](benchmark::State& state) {
      Burst(state, *ends.pool);
    })->Arg(size);
  }
  benchmark::RegisterBenchmark(
      "export", [&ends](benchmark::State& state) { Export(state, ends); });
  benchmark::RegisterBenchmark(
      "import", [&ends](benchmark::State& state) { Import(state, ends); });
  benchmark::RegisterBenchmark(
      "share", [&ends](benchmark::State& state) { Share(state, ends); });
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
