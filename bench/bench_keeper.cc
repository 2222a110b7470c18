// Attaching to kept weights: how long until the first byte can be used, and how
// much of that is the keeper's and the library's own, outside the driver.
//
//   bench_keeper                              16 GiB in 8 chunks, or what is
//                                             half of the free memory; 64 MiB
//                                             without a GPU
//   bench_keeper --size=4G --chunk=0          in one chunk
//   bench_keeper --address=/run/x/keeper      a keeper that runs already
//   bench_keeper --driver=host                without a GPU: no GPU figure
//
// A round connects, attaches and copies one byte to the host. Without --address
// the keeper is a thread of this process, behind the same socket and with the
// same code as `vmmshare keep`. "driver" is the time in driver calls of the
// attaching thread, "own" the rest: connect, request, handles, checks.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/driver.h"
#include "bench/driver_wrapper.h"
#include "bench/must.h"
#include "bench/report.h"
#include "platform/base/status_macros.h"
#include "platform/cuda/driver.h"
#include "platform/ipc/channel_address.h"
#include "platform/os/process.h"
#include "platform/os/termination.h"
#include "vmm/keeper/internal/server.h"
#include "vmm/keeper/keeper.h"
#include "vmm/vmm.h"

namespace {

using bench::Must;
using vmm::platform::Driver;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string driver = "system";
  std::string address;
  std::optional<std::uint64_t> size;   // Of the weights.
  std::optional<std::uint64_t> chunk;  // At most; 0: one chunk.
  std::uint64_t rounds = 200;
};

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start)
      .count();
}

// --- A driver that takes the time of its calls ------------------------------

thread_local double in_driver = 0;  // Microseconds.

class TimeCall {
 public:
  ~TimeCall() { in_driver += MicrosecondsSince(start_); }

 private:
  const Clock::time_point start_ = Clock::now();
};

// ----------------------------------------------------------------------------

void Row(const char* what, const std::vector<double>& samples) {
  std::printf("%-10s %14.1f %14.1f\n", what, bench::Percentile(samples, 50),
              bench::Percentile(samples, 99));
}

constexpr std::uint8_t kMark = 0x5a;  // The first byte of the weights.

// Puts weights, of which nothing is left here afterwards.
absl::Status Put(const Options& options, const Driver& driver,
                 const vmm::Device& device, const std::string& name,
                 std::uint64_t size) {
  const std::uint64_t chunk =
      options.chunk.value_or(std::max<std::uint64_t>(size / 8, 2 << 20));
  ASSIGN_OR_RETURN(
      const vmm::Allocation weights,
      vmm::Allocation::Create(device, {.size = size, .max_chunk_size = chunk}));
  RETURN_IF_ERROR(driver.Error(driver->cuMemsetD8(weights.address(), kMark, 1),
                               "cuMemsetD8()"));
  RETURN_IF_ERROR(
      driver.Error(driver->cuCtxSynchronize(), "cuCtxSynchronize()"));
  // Not before there is something to put: a keeper does not wait long for a
  // first request.
  ASSIGN_OR_RETURN(
      vmm::KeeperClient owner,
      vmm::KeeperClient::Connect({.address = options.address}, Soon()));
  RETURN_IF_ERROR(owner.Put(name, weights.shareable(), Soon()));
  return owner.Seal(name, Soon());
}

// What a large GPU has, or half of what is free; in 8 chunks of 2 MiB or more.
std::uint64_t UsualSize(const Driver& driver) {
  std::size_t free = 0;
  std::size_t total = 0;
  Must(driver.Error(driver->cuMemGetInfo(&free, &total), "cuMemGetInfo()"));
  constexpr std::uint64_t kUnit = std::uint64_t{8} * (2 << 20);
  const std::uint64_t most =
      driver.is_host_memory() ? 64ull << 20 : 16ull << 30;
  return std::clamp<std::uint64_t>(free / 2 / kUnit * kUnit, kUnit, most);
}

// Microseconds of each round, but for the first: what the driver does only
// once.
struct Samples {
  std::vector<double> total;
  std::vector<double> spent;
  std::vector<double> own;
  std::vector<double> connect;
  std::size_t chunks = 0;
};

// CANCELLED when somebody asked this process to end.
absl::Status Attach(const Options& options, const Driver& driver,
                    const std::string& name, std::uint64_t size,
                    Samples* samples) {
  for (std::uint64_t round = 0; round <= options.rounds; ++round) {
    if (vmm::platform::WaitForTermination(absl::Now()).ok()) {
      return absl::CancelledError(
          absl::StrCat("this process was asked to end, before round ", round,
                       " of ", options.rounds));
    }
    in_driver = 0;
    const Clock::time_point start = Clock::now();
    ASSIGN_OR_RETURN(
        vmm::KeeperClient client,
        vmm::KeeperClient::Connect({.address = options.address}, Soon()));
    const double connected = MicrosecondsSince(start);
    ASSIGN_OR_RETURN(
        const vmm::ImportedAllocation weights,
        client.Attach(name, driver, {.expected_size = size}, Soon()));
    std::uint8_t first = 0;
    RETURN_IF_ERROR(driver.Error(
        driver->cuMemcpyDtoH(&first, weights.address(), 1), "cuMemcpyDtoH()"));
    const double whole = MicrosecondsSince(start);
    if (first != kMark) {
      return absl::DataLossError("the kept weights have another first byte");
    }
    samples->chunks = weights.ticket().layout.count();
    if (round == 0) continue;
    samples->total.push_back(whole);
    samples->spent.push_back(in_driver);
    samples->own.push_back(whole - in_driver);
    samples->connect.push_back(connected);
  }
  return absl::OkStatus();
}

absl::Status Drop(const Options& options, const std::string& name) {
  ASSIGN_OR_RETURN(
      vmm::KeeperClient client,
      vmm::KeeperClient::Connect({.address = options.address}, Soon()));
  return client.Drop(name, Soon());
}

absl::Status Run(Options options) {
  // A keeper would keep the weights of a benchmark that is interrupted.
  vmm::platform::HoldTermination();
  const Driver real = Must(bench::LoadDriver(options.driver));
  const Driver driver =
      Must(bench::WrappedDriver<TimeCall>(real, "takes the time"));
  std::printf("%s\n", real.Describe().c_str());
  if (real.is_host_memory()) {
    std::printf("host-memory driver: not a GPU figure\n");
  }
  const vmm::Device device = Must(vmm::Device::ByOrdinal(driver, 0));
  const vmm::PrimaryContext context = Must(vmm::PrimaryContext::Retain(device));
  const vmm::CurrentContext current = Must(context.MakeCurrent());
  const std::uint64_t size = options.size.value_or(UsualSize(driver));

  std::unique_ptr<vmm::keeper::Server> server;
  if (options.address.empty()) {
    options.address = Must(vmm::platform::DefaultAddressOf(
        absl::StrCat("bench-keeper-", vmm::platform::CurrentProcessId())));
    server = Must(vmm::keeper::Server::Start(
        {.address = options.address},
        absl::NotFoundError("none in a benchmark"), {}));
  }
  const std::string name =
      absl::StrCat("bench-", vmm::platform::CurrentProcessId());
  Samples samples;
  absl::Status status = Put(options, driver, device, name, size);
  if (status.ok()) status = Attach(options, driver, name, size, &samples);
  // Whatever happened: a keeper that runs on would keep them. But not those of
  // somebody else.
  if (!absl::IsAlreadyExists(status)) status.Update(Drop(options, name));
  RETURN_IF_ERROR(status);
  std::printf("attach to %s kept in %zu chunks, %zu times, %s; microseconds\n",
              bench::SizeText(size).c_str(), samples.chunks,
              samples.total.size(),
              server != nullptr ? "keeper in this process"
                                : "keeper in its own process");
  std::printf("%-10s %14s %14s\n", "", "p50", "p99");
  Row("total", samples.total);
  Row("driver", samples.spent);
  Row("own", samples.own);
  Row("  connect", samples.connect);
  return absl::OkStatus();
}

// "16G".
std::optional<std::uint64_t> BytesOf(std::string_view text) {
  int shift = 0;
  constexpr std::string_view kUnits = "KMGT";
  if (!text.empty() && kUnits.find(text.back()) != kUnits.npos) {
    shift = 10 * static_cast<int>(kUnits.find(text.back()) + 1);
    text.remove_suffix(1);
  }
  std::uint64_t number = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number)) {
    return std::nullopt;
  }
  return number << shift;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    bool known = true;
    if (absl::ConsumePrefix(&word, "--driver=")) {
      options.driver = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--address=")) {
      options.address = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--size=")) {
      options.size = BytesOf({word.data(), word.size()});
      known = options.size.value_or(0) > 0;
    } else if (absl::ConsumePrefix(&word, "--chunk=")) {
      options.chunk = BytesOf({word.data(), word.size()});
      known = options.chunk.has_value();
    } else if (absl::ConsumePrefix(&word, "--rounds=")) {
      known = absl::SimpleAtoi(word, &options.rounds) && options.rounds > 0;
    } else {
      known = false;
    }
    if (!known) {
      std::fprintf(stderr,
                   "%s: expected --driver=host|system|PATH, --address=ADDRESS, "
                   "--size=BYTES, --chunk=BYTES or --rounds=N\n",
                   argv[i]);
      return 2;
    }
  }
  Must(Run(options));
  return 0;
}
