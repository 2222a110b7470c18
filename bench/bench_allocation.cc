// What vmmshare costs over the bare driver calls: create, export, import,
// release.
//
//   bench_allocation                        on the installed NVIDIA driver
//   bench_allocation --driver=host          on the host-memory driver: figures
//                                           of that, not of a GPU
//   --device=N --iterations=1000 --max_size=4G
//   --enforce      exit status 1 if a step is more than 5 % over, and noise,
//                  or if no life was measured
//   --benchmark_*  Google Benchmark's own
//
// life/SIZE: each iteration does all steps once by vmmshare and twice by bare
// calls, in every order in turn; its time is vmmshare's. The table at the end
// compares step by step, and the two bare ones with each other: that is noise.
// part/*: what vmmshare does besides calling the driver.
#include <benchmark/benchmark.h>
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "bench/allocation_lives.h"
#include "bench/driver.h"
#include "bench/report.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/memory_handle.h"
#include "platform/os/machine.h"
#include "vmm/memory/internal/exporter.h"
#include "vmm/vmm.h"

namespace {

using bench::Comparison;
using bench::StepTimes;
using vmm::platform::Driver;

struct Options {
  std::string driver = "system";
  int device = 0;
  int iterations = 1000;
  std::uint64_t max_size = std::uint64_t{4} << 30;
  bool enforce = false;
};

absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    bool understood = true;
    if (absl::ConsumePrefix(&word, "--driver=")) {
      options.driver = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--device=")) {
      understood = absl::SimpleAtoi(word, &options.device);
    } else if (absl::ConsumePrefix(&word, "--iterations=")) {
      understood =
          absl::SimpleAtoi(word, &options.iterations) && options.iterations > 0;
    } else if (absl::ConsumePrefix(&word, "--max_size=")) {
      const int shift = absl::ConsumeSuffix(&word, "G")   ? 30
                        : absl::ConsumeSuffix(&word, "M") ? 20
                                                          : 0;
      understood = absl::SimpleAtoi(word, &options.max_size);
      options.max_size <<= shift;
    } else {
      options.enforce = word == "--enforce";
      understood = options.enforce;
    }
    if (!understood) {
      return absl::InvalidArgumentError(
          absl::StrCat(argv[i],
                       ": expected --driver=host|system|PATH, "
                       "--device=N, --iterations=N, --max_size=N[M|G] "
                       "or --enforce"));
    }
  }
  return options;
}

// The comparisons of one size: all steps together, then each.
std::vector<Comparison> Rows(std::uint64_t size) {
  std::vector<Comparison> rows(1 + bench::kSteps);
  rows[0].name = absl::StrFormat("%-14s %9s", "all", bench::SizeText(size));
  for (std::size_t i = 0; i < bench::kSteps; ++i) {
    rows[1 + i].name =
        absl::StrFormat("%-14s %9s", bench::NameOf(static_cast<bench::Step>(i)),
                        bench::SizeText(size));
  }
  return rows;
}

double Sum(const StepTimes& times) {
  return std::accumulate(times.begin(), times.end(), 0.0);
}

// Who does a life: vmmshare, the bare calls, and these once more.
enum Arm { kVmmshare, kBare, kBareAgain, kArms };

// The first life that fails ends it, and is told in `failed`.
void Lives(benchmark::State& state, const vmm::Device& device,
           std::uint64_t size, std::vector<Comparison>& rows,
           absl::Status& failed) {
  rows = Rows(size);
  // Every order of the three in turn, so that none always follows another.
  std::array<Arm, kArms> order = {kVmmshare, kBare, kBareAgain};
  for (auto _ : state) {
    std::next_permutation(order.begin(), order.end());
    std::array<StepTimes, kArms> times;
    for (Arm arm : order) {
      absl::StatusOr<StepTimes> life =
          arm == kVmmshare ? bench::LifeByVmmshare(device, size)
                           : bench::LifeByBareCalls(device, size);
      if (!life.ok()) {
        failed.Update(life.status());
        state.SkipWithError(life.status().ToString().c_str());
        return;
      }
      times[arm] = *life;
    }
    rows[0].vmmshare.push_back(Sum(times[kVmmshare]));
    rows[0].bare.push_back(Sum(times[kBare]));
    rows[0].bare_again.push_back(Sum(times[kBareAgain]));
    for (std::size_t i = 0; i < bench::kSteps; ++i) {
      rows[1 + i].vmmshare.push_back(times[kVmmshare][i]);
      rows[1 + i].bare.push_back(times[kBare][i]);
      rows[1 + i].bare_again.push_back(times[kBareAgain][i]);
    }
    state.SetIterationTime(Sum(times[kVmmshare]) * 1e-6);
  }
  state.counters["bare_p50_us"] = bench::Percentile(rows[0].bare, 50);
  state.counters["vmm_p50_us"] = bench::Percentile(rows[0].vmmshare, 50);
  state.counters["ratio_p50"] = bench::Ratio(rows[0], 50);
  state.counters["ratio_p99"] = bench::Ratio(rows[0], 99);
  state.counters["noise_p50"] = bench::Noise(rows[0], 50);
  state.counters["noise_p99"] = bench::Noise(rows[0], 99);
}

// Registers `call` as part/`name`.
template <typename Call>
void RegisterPart(const std::string& name, const Call& call) {
  benchmark::RegisterBenchmark(absl::StrCat("part/", name).c_str(),
                               [call](benchmark::State& state) {
                                 for (auto _ : state) {
                                   benchmark::DoNotOptimize(call());
                                 }
                               });
}

// What the calls of a life are made of, apart from the driver's own time.
absl::Status RegisterParts(const vmm::Device& device,
                           const vmm::Allocation& memory,
                           const vmm::platform::OsHandle& exported) {
  ASSIGN_OR_RETURN(const vmm::Ticket ticket,
                   vmm::MakeTicket(memory.shareable(), bench::NativeKind()));
  const Driver& driver = device.driver();
  const vmm::Location here = vmm::Location::On(device);
  RegisterPart("ThisMachine", [] { return vmm::platform::ThisMachine(); });
  RegisterPart("NewMemoryId", [] { return vmm::NewMemoryId(); });
  RegisterPart("Device::All", [driver] { return vmm::Device::All(driver); });
  RegisterPart("Device::ByUuid", [driver, uuid = device.uuid()] {
    return vmm::Device::ByUuid(driver, uuid);
  });
  RegisterPart("Device::Probe (remembered)",
               [device] { return device.Probe(bench::NativeKind()); });
  RegisterPart("Location::Describe", [here] { return here.Describe(); });
  RegisterPart("Granularity", [driver, here] {
    return vmm::PhysicalMemory::Granularity(driver, here,
                                            {bench::NativeKind()});
  });
  RegisterPart("CheckReachable", [here] {
    return vmm::CheckReachable(here, {{here, vmm::Access::kRead}});
  });
  RegisterPart("CheckMemoryHandle", [&exported, size = memory.size(), driver] {
    return vmm::platform::CheckMemoryHandle(
        exported,
        driver.is_host_memory() ? vmm::platform::MemoryBacking::kHostMemory
                                : vmm::platform::MemoryBacking::kNvidiaDriver,
        size);
  });
  RegisterPart("MakeTicket", [&memory] {
    return vmm::MakeTicket(memory.shareable(), bench::NativeKind());
  });
  RegisterPart("CheckUsableHere", [driver, ticket] {
    return vmm::CheckUsableHere(ticket, driver);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> FreeBytes(const Driver& driver) {
  std::size_t free = 0;
  std::size_t total = 0;
  RETURN_IF_ERROR(
      driver.Error(driver->cuMemGetInfo(&free, &total), "cuMemGetInfo()"));
  return free;
}

absl::Status PrintHeader(const vmm::Device& device) {
  const Driver& driver = device.driver();
  ASSIGN_OR_RETURN(
      const std::uint64_t granularity,
      vmm::PhysicalMemory::Granularity(driver, vmm::Location::On(device),
                                       {bench::NativeKind()}));
  absl::PrintF("device:      %s\n", device.Describe());
  absl::PrintF("driver:      %s%s\n", driver.Describe(),
               driver.is_host_memory() ? " - not a GPU figure" : "");
  absl::PrintF("granularity: %d bytes\n", granularity);
  absl::PrintF("handle kind: %s\n", vmm::NameOf(bench::NativeKind()));
  absl::PrintF("build:       %s\n", VMMSHARE_BUILD_TYPE);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const Driver driver, bench::LoadDriver(options.driver));
  ASSIGN_OR_RETURN(const vmm::Device device,
                   vmm::Device::ByOrdinal(driver, options.device));
  RETURN_IF_ERROR(PrintHeader(device));

  // The calls need no context, but programs that share memory have one.
  ASSIGN_OR_RETURN(const vmm::PrimaryContext context,
                   vmm::PrimaryContext::Retain(device));
  ASSIGN_OR_RETURN(const vmm::CurrentContext current, context.MakeCurrent());
  ASSIGN_OR_RETURN(const std::uint64_t free, FreeBytes(driver));

  constexpr std::uint64_t kMiB = 1 << 20;
  const std::pair<const char*, std::uint64_t> sizes[] = {{"2MiB", 2 * kMiB},
                                                         {"32MiB", 32 * kMiB},
                                                         {"512MiB", 512 * kMiB},
                                                         {"4GiB", 4096 * kMiB}};
  std::vector<std::vector<Comparison>> rows(std::size(sizes));
  absl::Status failed;
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    const auto& [name, size] = sizes[i];
    if (size > options.max_size || size > free / 2) {
      absl::PrintF("left out:    %s (limit %s, free %s)\n", name,
                   bench::SizeText(options.max_size), bench::SizeText(free));
      continue;
    }
    benchmark::RegisterBenchmark(
        absl::StrCat("life/", name).c_str(),
        [&rows, &failed, &device, i, bytes = size](benchmark::State& state) {
          Lives(state, device, bytes, rows[i], failed);
        })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(options.iterations);
  }
  ASSIGN_OR_RETURN(const vmm::Allocation memory,
                   vmm::Allocation::Create(device, {.size = 2 * kMiB}));
  ASSIGN_OR_RETURN(const vmm::ExportedHandle exported,
                   vmm::Exporters().front().make(
                       driver, memory.shareable().memory()->handle(0)));
  RETURN_IF_ERROR(RegisterParts(device, memory,
                                std::get<vmm::platform::OsHandle>(exported)));

  benchmark::RunSpecifiedBenchmarks();

  std::vector<Comparison> all;
  std::size_t samples = 0;
  for (std::vector<Comparison>& of_size : rows) {
    for (Comparison& row : of_size) {
      samples += row.vmmshare.size();
      all.push_back(std::move(row));
    }
  }
  const std::size_t over = bench::PrintTable(all);
  // Google Benchmark tells it beside its figures alone.
  if (!failed.ok()) return failed;
  if (options.enforce && samples == 0) {
    return absl::FailedPreconditionError(
        "--enforce: no life/SIZE was measured; expected one at least. Is "
        "--max_size too small, or --benchmark_filter too narrow?");
  }
  if (options.enforce && over != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(over, " rows exceed the bare calls by more than 5 %"));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const absl::StatusOr<Options> options = Parse(argc, argv);
  const absl::Status status = options.ok() ? Run(*options) : options.status();
  benchmark::Shutdown();
  if (!status.ok()) {
    std::cerr << "bench_allocation: error: " << status << "\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
