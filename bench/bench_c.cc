// What the C interface costs over the C++ one: the same calls on a pool of
// each, in turns, in one process.
//
//   bench_c [--driver=host|PATH] [--enforce]
//
// With --enforce it exits with 1 when a call costs 50 ns more in C. The
// installed NVIDIA driver unless --driver says otherwise; the two make the same
// calls of it, if any.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/driver.h"
#include "bench/must.h"
#include "bench/report.h"
#include "vmm/c/vmmshare.h"
#include "vmm/vmm.h"

namespace {

using bench::Must;
using Clock = std::chrono::steady_clock;

constexpr double kMostNanoseconds = 50;
constexpr std::uint64_t kBlockBytes = 65536;
constexpr int kRounds = 400;
constexpr int kCallsARound = 500;
constexpr std::int64_t kSecond = 1'000'000'000;

void Succeed(vmmshare_status status, vmmshare_error* error) {
  if (status == VMMSHARE_OK) return;
  std::fprintf(stderr, "error: %s\n", vmmshare_error_message(error));
  std::exit(1);
}

// A pool and its importer, in C++.
struct Cpp {
  explicit Cpp(const vmm::Device& device, const vmm::platform::Driver& driver)
      : pool(Must(vmm::Pool::Create(device, {}))),
        endpoint(Must(vmm::Endpoint::Start({}))),
        share(Must(endpoint->Serve(*pool))),
        imported(Must(vmm::ImportedPool::Subscribe(
            driver, share.ticket(), {}, absl::Now() + absl::Seconds(30)))),
        block(Must(pool->Allocate(kBlockBytes, nullptr))),
        bytes(vmm::EncodePoolTicket(Must(pool->Export(block)))) {}

  void AllocateAndFree() {
    Must(pool->Free(Must(pool->Allocate(kBlockBytes, nullptr)), nullptr));
  }
  void Export() { bytes = vmm::EncodePoolTicket(Must(pool->Export(block))); }
  void Import() {
    Must(imported->Import(*vmm::DecodePoolTicket(bytes),
                          absl::Now() + absl::Seconds(1)));
  }

  std::unique_ptr<vmm::Pool> pool;
  std::unique_ptr<vmm::Endpoint> endpoint;
  vmm::Share share;
  std::unique_ptr<vmm::ImportedPool> imported;
  CUdeviceptr block;
  vmm::PoolTicketBytes bytes;
};

// The same by the C interface.
struct C {
  explicit C(const std::string& path) {
    vmmshare_error* error = nullptr;
    Succeed(path.empty() ? vmmshare_driver_load_system(&driver, &error)
                         : vmmshare_driver_load(path.c_str(), &driver, &error),
            error);
    Succeed(vmmshare_device_open(driver, 0, &device, &error), error);
    Succeed(vmmshare_pool_create(device, nullptr, &pool, &error), error);
    Succeed(vmmshare_server_start(nullptr, &server, &error), error);
    Succeed(vmmshare_server_share_pool(server, pool, &share, &error), error);
    Succeed(
        vmmshare_imported_pool_open(driver, vmmshare_share_text(share), nullptr,
                                    30 * kSecond, &imported, &error),
        error);
    Succeed(
        vmmshare_pool_allocate(pool, kBlockBytes, 0, nullptr, &block, &error),
        error);
    Export();
  }
  ~C() {
    vmmshare_imported_pool_close(imported);
    vmmshare_share_close(share);
    vmmshare_server_close(server);
    vmmshare_pool_close(pool);
    vmmshare_device_close(device);
    vmmshare_driver_close(driver);
  }
  C(const C&) = delete;
  C& operator=(const C&) = delete;

  void AllocateAndFree() {
    vmmshare_error* error = nullptr;
    std::uint64_t address = 0;
    Succeed(
        vmmshare_pool_allocate(pool, kBlockBytes, 0, nullptr, &address, &error),
        error);
    Succeed(vmmshare_pool_free(pool, address, nullptr, &error), error);
  }
  void Export() {
    vmmshare_error* error = nullptr;
    Succeed(vmmshare_pool_tickets(pool, &block, 1, bytes, &error), error);
  }
  void Import() {
    vmmshare_error* error = nullptr;
    vmmshare_block* taken = nullptr;
    Succeed(vmmshare_imported_pool_import(imported, bytes, 1, kSecond, &taken,
                                          &error),
            error);
    vmmshare_block_close(taken);
  }

  vmmshare_driver* driver = nullptr;
  vmmshare_device* device = nullptr;
  vmmshare_pool* pool = nullptr;
  vmmshare_server* server = nullptr;
  vmmshare_share* share = nullptr;
  vmmshare_imported_pool* imported = nullptr;
  std::uint64_t block = 0;
  std::uint8_t bytes[VMMSHARE_BLOCK_TICKET_BYTES] = {};
};

double NanosecondsOf(const std::function<void()>& call) {
  const auto start = Clock::now();
  for (int i = 0; i < kCallsARound; ++i) call();
  return std::chrono::duration<double, std::nano>(Clock::now() - start)
             .count() /
         kCallsARound;
}

// What one call costs more in C: of `calls` calls that each turn makes.
double PrintRow(const char* name, int calls, const std::function<void()>& cpp,
                const std::function<void()>& c) {
  std::vector<double> in_cpp, in_c;
  for (int i = 0; i < kRounds; ++i) {
    in_cpp.push_back(NanosecondsOf(cpp) / calls);
    in_c.push_back(NanosecondsOf(c) / calls);
  }
  const double more =
      bench::Percentile(in_c, 50) - bench::Percentile(in_cpp, 50);
  absl::PrintF("%-22s %8.1f %8.1f %8.1f %10.1f %8.1f\n", name,
               bench::Percentile(in_cpp, 50), bench::Percentile(in_c, 50), more,
               bench::Percentile(in_cpp, 99), bench::Percentile(in_c, 99));
  return more;
}

}  // namespace

int main(int argc, char** argv) {
  std::string choice = "system";
  bool enforce = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (word == "--enforce") {
      enforce = true;
    } else if (absl::ConsumePrefix(&word, "--driver=")) {
      choice = std::string(word);
    } else {
      std::fprintf(stderr,
                   "%s: expected --driver=host|system|PATH or --enforce\n",
                   argv[i]);
      return 2;
    }
  }
  const vmm::platform::Driver driver = Must(bench::LoadDriver(choice));
  if (choice == "host") choice = bench::HostDriverPath();
  const vmm::Device device = Must(vmm::Device::ByOrdinal(driver, 0));
  const vmm::PrimaryContext context = Must(vmm::PrimaryContext::Retain(device));
  const vmm::CurrentContext current = Must(context.MakeCurrent());
  absl::PrintF("%s\n%s%-22s %8s %8s %8s %10s %8s\n", driver.Describe(),
               driver.is_host_memory() ? "not a GPU figure\n" : "", "ns a call",
               "C++ p50", "C p50", "more", "C++ p99", "C p99");
  Cpp cpp(device, driver);
  C c(choice == "system" ? "" : choice);
  double most = 0;
  most = std::max(most, PrintRow(
                            "allocate, free", 2, [&] { cpp.AllocateAndFree(); },
                            [&] { c.AllocateAndFree(); }));
  most = std::max(most, PrintRow(
                            "export a ticket", 1, [&] { cpp.Export(); },
                            [&] { c.Export(); }));
  most = std::max(most, PrintRow(
                            "import, give back", 2, [&] { cpp.Import(); },
                            [&] { c.Import(); }));
  absl::PrintF("at most %.0f ns more: %s\n", kMostNanoseconds,
               most <= kMostNanoseconds ? "yes" : "NO");
  return enforce && most > kMostNanoseconds ? 1 : 0;
}
