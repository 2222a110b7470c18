// Replays what real programs asked of an allocator, on vmmshare's pool and on
// the driver's own stream-ordered pool.
//
//   bench_trace TRACE ...             on the installed NVIDIA driver
//   bench_trace --driver=host TRACE   on the host-memory driver
//   --replays=5                       times each, after one to warm up
//
// One row a trace and an allocator: nanoseconds a call as mean of all calls,
// p50 and p99 of single ones (a clock is read around each, in runs of their
// own); the most that was live and the most that the allocator held, in MiB,
// and their ratio; driver calls of the allocator's own in a hundred calls. Or
// why it could not serve; the exit status is 1 where vmmshare's could not.
//
// Each block is written on its stream, up to 64 KiB of it, so that the streams
// have work behind which memory waits. PyTorch's own allocator on the same
// traces: traces/replay_torch.py.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/allocators.h"
#include "bench/driver.h"
#include "bench/driver_wrapper.h"
#include "bench/must.h"
#include "bench/report.h"
#include "bench/trace.h"
#include "platform/base/status_macros.h"
#include "vmm/vmm.h"

namespace {

using bench::Allocator;
using bench::Must;
using bench::Trace;
using bench::TraceEvent;
using vmm::platform::Driver;

constexpr std::uint64_t kWritten = std::uint64_t{64} << 10;

struct CountCall {
  CountCall() { ++calls; }
  static inline std::uint64_t calls = 0;
};

struct Options {
  std::string driver = "system";
  int replays = 5;
  std::vector<std::string> traces;
};

// A device with its context current, and streams. The allocators' calls go
// through a driver that counts, these through one that does not.
class Machine {
 public:
  Machine(const Driver& driver, std::uint32_t streams)
      : driver_(driver), streams_(streams) {
    for (CUstream& stream : streams_) {
      Check(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
            "cuStreamCreate()");
    }
  }
  ~Machine() {
    for (CUstream stream : streams_) {
      Check(driver_->cuStreamDestroy(stream), "cuStreamDestroy()");
    }
  }
  CUstream stream(std::uint32_t at) const { return streams_[at]; }
  void Write(CUdeviceptr block, std::uint64_t size, CUstream stream) const {
    Check(driver_->cuMemsetD8Async(block, 1, std::min(size, kWritten), stream),
          "cuMemsetD8Async()");
  }
  void Synchronize() const {
    Check(driver_->cuCtxSynchronize(), "cuCtxSynchronize()");
  }

 private:
  void Check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) Must(driver_.Error(result, call));
  }
  const Driver driver_;
  std::vector<CUstream> streams_;
};

struct Result {
  std::uint64_t reserved = 0;  // Bytes, at the most.
  std::uint64_t driver_calls = 0;
  std::vector<double> each;  // Nanoseconds a call.
  double mean = 0;           // Of these.
};

double Nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

// One replay, up to the first allocation that fails. `around` is called with
// each allocator call to make.
template <typename Around>
absl::Status Replay(const Trace& trace, const Machine& machine,
                    Allocator& allocator, const Around& around) {
  std::vector<CUdeviceptr> blocks(trace.allocations);
  absl::Status status;
  for (const TraceEvent& event : trace.events) {
    const CUstream stream = machine.stream(event.stream);
    CUdeviceptr& block = blocks[event.allocation];
    if (!event.allocates) {
      around([&] { Must(allocator.Free(std::exchange(block, 0), stream)); });
      continue;
    }
    absl::StatusOr<CUdeviceptr> made = absl::UnknownError("");
    around([&] { made = allocator.Allocate(event.size, stream); });
    status = made.status();
    if (!status.ok()) break;
    block = *made;
    machine.Write(block, event.size, stream);
  }
  machine.Synchronize();
  for (CUdeviceptr block : blocks) {
    if (block != 0) Must(allocator.Free(block, machine.stream(0)));
  }
  machine.Synchronize();
  return status;
}

// A kind of allocator: what it is called, and how one is made.
struct Kind {
  const char* name;
  absl::StatusOr<std::unique_ptr<Allocator>> (*make)(const vmm::Device&);
};

absl::StatusOr<Result> Measure(const Kind& kind, const Trace& trace,
                               const Machine& machine,
                               const vmm::Device& device, int replays) {
  using Clock = std::chrono::steady_clock;
  ASSIGN_OR_RETURN(std::unique_ptr<Allocator> allocator, kind.make(device));
  Result result;
  const std::uint64_t before = CountCall::calls;
  RETURN_IF_ERROR(
      Replay(trace, machine, *allocator, [](const auto& call) { call(); }));
  result.driver_calls = CountCall::calls - before;
  for (int i = 0; i < replays; ++i) {
    RETURN_IF_ERROR(Replay(trace, machine, *allocator, [&](const auto& call) {
      const Clock::time_point start = Clock::now();
      call();
      result.each.push_back(Nanoseconds(Clock::now() - start));
    }));
  }
  // A new one, and apart, since looking may cost more than allocating.
  allocator.reset();
  ASSIGN_OR_RETURN(allocator, kind.make(device));
  RETURN_IF_ERROR(Replay(trace, machine, *allocator, [&](const auto& call) {
    call();
    result.reserved = std::max(result.reserved, allocator->Reserved());
  }));
  for (double each : result.each) result.mean += each;
  result.mean /=
      static_cast<double>(std::max<std::size_t>(result.each.size(), 1));
  return result;
}

// Returns whether the allocator served all of the trace.
bool PrintRow(const Kind& kind, const Trace& trace, const Machine& machine,
              const vmm::Device& device, int replays) {
  std::printf("| %s | %u | %s |", trace.program.c_str(), trace.streams,
              kind.name);
  const absl::StatusOr<Result> result =
      Measure(kind, trace, machine, device, replays);
  if (!result.ok()) {
    std::printf(" failed: %s |\n", result.status().ToString().c_str());
    std::fflush(stdout);
    return false;
  }
  const auto mib = [](std::uint64_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
  };
  std::printf(
      " %.0f | %.0f | %.0f | %.1f | %.1f | %.3f | %.1f |\n", result->mean,
      bench::Percentile(result->each, 50), bench::Percentile(result->each, 99),
      mib(trace.peak_live), mib(result->reserved),
      static_cast<double>(result->reserved) /
          static_cast<double>(std::max<std::uint64_t>(trace.peak_live, 1)),
      100.0 * static_cast<double>(result->driver_calls) /
          static_cast<double>(trace.events.size()));
  std::fflush(stdout);
  return true;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--driver=")) {
      options.driver = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--replays=")) {
      if (!absl::SimpleAtoi(word, &options.replays) || options.replays < 1) {
        Must(absl::InvalidArgumentError(
            absl::StrCat("--replays=", word, "; expected a number from 1 on")));
      }
    } else if (absl::StartsWith(word, "-")) {
      Must(absl::InvalidArgumentError(absl::StrCat(
          "unknown option ", word,
          "; usage: bench_trace [--driver=D] [--replays=N] TRACE ...")));
    } else {
      options.traces.emplace_back(word);
    }
  }
  if (options.traces.empty()) {
    Must(absl::InvalidArgumentError(
        "no trace is named; usage: bench_trace [--driver=D] [--replays=N] "
        "TRACE ..."));
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  std::vector<Trace> traces;
  traces.reserve(options.traces.size());
  for (const std::string& path : options.traces) {
    traces.push_back(Must(bench::ReadTrace(path)));
  }
  const Driver driver = Must(bench::LoadDriver(options.driver));
  const Driver counting =
      Must(bench::WrappedDriver<CountCall>(driver, "counts calls"));
  const vmm::Device device = Must(vmm::Device::ByOrdinal(counting, 0));
  const vmm::PrimaryContext context = Must(vmm::PrimaryContext::Retain(device));
  const vmm::CurrentContext current = Must(context.MakeCurrent());
  std::printf("%s\n%s%s\n\n", driver.Describe().c_str(),
              device.Describe().c_str(),
              driver.is_host_memory() ? ": not a GPU figure" : "");
  std::printf(
      "| program | streams | allocator | ns a call | p50 | p99 | live, MiB | "
      "reserved, MiB | ratio | driver calls in 100 |\n"
      "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
      "|\n");
  bool served = true;
  for (const Trace& trace : traces) {
    const Machine machine(driver, trace.streams);
    served &= PrintRow({"vmmshare pool", &bench::MakeVmmsharePool}, trace,
                       machine, device, options.replays);
    // What the driver's pool cannot serve is no fault of vmmshare's.
    PrintRow({"cuMemAllocAsync", &bench::MakeDriverPool}, trace, machine,
             device, options.replays);
  }
  return served ? 0 : 1;
}
