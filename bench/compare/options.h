// The command line of vmmshare-bench.
#ifndef VMMSHARE_BENCH_COMPARE_OPTIONS_H_
#define VMMSHARE_BENCH_COMPARE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bench::compare {

struct Options {
  std::vector<std::string> scenarios;  // Empty: all.
  std::vector<std::string> routes;     // Empty: all.
  std::string driver = "system";
  int device = 0;
  int peer = -1;                // -1: none.
  int iterations = 0;           // 0: each scenario's own.
  std::uint64_t blocks = 0;     // Of `kth`; 0: 10,000.
  std::uint64_t max_size = 0;   // 0: 4 GiB, on the host-memory driver 64 MiB.
  std::uint64_t max_bytes = 0;  // Of `tensors`; 0: the model's own size, on
                                // the host-memory driver 512 MiB.
  double budget_s = 3;          // Of one route in `kth` and `tensors`.
  std::string json;             // A file; empty: none.
  std::string markdown;         // A file; empty: none.
  std::string plots;            // The folder of its plots; empty: none.
  bool enforce = false;
  bool quick = false;
  bool corrupt = false;
  double slow_import_ns = 0;   // What is added to the pool's imports, each,
  double slow_connect_ns = 0;  // and to a connection to it.
  bool help = false;

  // A child's: which one it is ("importer", "owner"), where it connects to,
  // where it says that it still lives, and its route.
  std::string role;
  std::string connect;
  std::string linger;
  int at = 0;  // The importer's device.
  std::string route;
};

// Whether `names` of scenarios or routes have this one; none means all.
bool IsWanted(const std::vector<std::string>& names, const std::string& name);

// INVALID_ARGUMENT for a word that is not understood.
absl::StatusOr<Options> ParseOptions(int argc, char** argv);

// The text of --help, scenarios included.
std::string HelpText();

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_OPTIONS_H_
