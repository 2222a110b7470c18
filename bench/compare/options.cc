#include "bench/compare/options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "bench/compare/route.h"
#include "bench/compare/scenarios.h"
#include "docs/examples/bytes.h"
#include "platform/base/status_macros.h"

using examples::Bytes;
using Names = std::vector<std::string>;

ABSL_FLAG(Names, scenario, {}, "only these scenarios");
ABSL_FLAG(Names, routes, {}, "only these routes");
ABSL_FLAG(std::string, driver, "system", "host, system, or a driver's path");
ABSL_FLAG(int, device, 0, "the owner's device");
ABSL_FLAG(std::optional<int>, peer, std::nullopt, "also import on this device");
ABSL_FLAG(int, iterations, 0, "repetitions; 0: each scenario's own number");
ABSL_FLAG(std::uint64_t, blocks, 0, "blocks of scenario kth; 0: 10,000");
ABSL_FLAG(std::optional<Bytes>, max_size, std::nullopt,
          "largest block of alloc, first, copy");
ABSL_FLAG(std::optional<Bytes>, max_bytes, std::nullopt,
          "payload of scenario tensors");
ABSL_FLAG(double, budget, 3, "seconds of one route in kth or tensors");
ABSL_FLAG(std::string, json, "", "the file that all figures go to");
ABSL_FLAG(std::string, markdown, "", "the file that the tables go to");
ABSL_FLAG(std::string, plots, "", "the folder of the plots it shows");
ABSL_FLAG(bool, enforce, false, "fail when a floor is missed");
ABSL_FLAG(bool, quick, false, "a moment of each scenario");
ABSL_FLAG(bool, corrupt, false, "spoil a byte of each shared block");
ABSL_FLAG(double, slow_import, 0, "ns added to each import of the pool's");
ABSL_FLAG(double, slow_connect, 0, "ns added to each connection to it");
// A child's.
ABSL_FLAG(std::string, role, "", "importer or owner");
ABSL_FLAG(std::string, connect, "", "where it connects to");
ABSL_FLAG(std::string, linger, "", "where it says that it still lives");
ABSL_FLAG(int, at, 0, "the importer's device");
ABSL_FLAG(std::string, route, "", "the owner's route");

namespace bench::compare {
namespace {

absl::Status Check(const Options& options) {
  for (const std::string& scenario : options.scenarios) {
    if (FindScenario(scenario) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--scenario=", scenario, ": --help lists what may be given"));
    }
  }
  for (const std::string& route : options.routes) {
    if (FindRoute(route) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--routes=", route, ": --help lists what may be given"));
    }
  }
  const std::pair<const char*, double> numbers[] = {
      {"device", options.device},
      {"peer", absl::GetFlag(FLAGS_peer).value_or(0)},
      {"iterations", options.iterations},
      {"slow_import", options.slow_import_ns},
      {"slow_connect", options.slow_connect_ns}};
  for (const auto& [name, value] : numbers) {
    if (value >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, "=", value, ": expected 0 or more"));
  }
  if (options.budget_s > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--budget=", options.budget_s, ": expected more than 0 seconds"));
}

}  // namespace

bool IsWanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() ||
         std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<Options> ParseOptions(int argc, char** argv) {
  Options options;
  // Abseil's own ends the program with an error.
  options.help = std::any_of(argv, argv + argc, [](absl::string_view word) {
    return word == "--help";
  });
  if (options.help) return options;
  if (const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
      words.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        words[1], ": not understood; --help lists what may be given"));
  }
  options.scenarios = absl::GetFlag(FLAGS_scenario);
  options.routes = absl::GetFlag(FLAGS_routes);
  options.driver = absl::GetFlag(FLAGS_driver);
  options.device = absl::GetFlag(FLAGS_device);
  options.peer = absl::GetFlag(FLAGS_peer).value_or(-1);
  options.iterations = absl::GetFlag(FLAGS_iterations);
  options.blocks = absl::GetFlag(FLAGS_blocks);
  options.max_size = absl::GetFlag(FLAGS_max_size).value_or(Bytes()).count;
  options.max_bytes = absl::GetFlag(FLAGS_max_bytes).value_or(Bytes()).count;
  options.budget_s = absl::GetFlag(FLAGS_budget);
  options.json = absl::GetFlag(FLAGS_json);
  options.markdown = absl::GetFlag(FLAGS_markdown);
  options.plots = absl::GetFlag(FLAGS_plots);
  options.enforce = absl::GetFlag(FLAGS_enforce);
  options.quick = absl::GetFlag(FLAGS_quick);
  options.corrupt = absl::GetFlag(FLAGS_corrupt);
  options.slow_import_ns = absl::GetFlag(FLAGS_slow_import);
  options.slow_connect_ns = absl::GetFlag(FLAGS_slow_connect);
  options.role = absl::GetFlag(FLAGS_role);
  options.connect = absl::GetFlag(FLAGS_connect);
  options.linger = absl::GetFlag(FLAGS_linger);
  options.at = absl::GetFlag(FLAGS_at);
  options.route = absl::GetFlag(FLAGS_route);
  RETURN_IF_ERROR(Check(options));
  return options;
}

std::string HelpText() {
  std::string text =
      R"(vmmshare-bench compares the ways of sharing GPU memory between two processes.

  --driver=host|system|PATH  the host-memory driver, the installed one (default), or a file
  --device=N                 the owner's device (0)
  --peer=M                   also import on this device; it needs peer access
  --scenario=NAME[,NAME]     only these; see below
  --routes=NAME[,NAME]       only these: legacy, legacy-2MiB, legacy-cached, legacy-arena,
                             pool-ipc, bare, dedicated, pool, pool-1GiB
  --quick                    a moment of each scenario: for a smoke test, not for figures
  --iterations=N             repetitions, in place of each scenario's own number
  --blocks=N                 blocks of scenario kth (10000)
  --max_size=BYTES           largest block of alloc, first, copy (4G; host-memory driver 64M)
  --max_bytes=BYTES          payload of scenario tensors; sizes are scaled down to it
  --budget=SECONDS           what sharing by one route may take in kth or tensors (3): one that
                             would take longer shares fewer blocks, and the table says so; one
                             that has spent it is not repeated
  --json=FILE                all figures, in Google Benchmark's format, and what bench/plot.py draws
  --markdown=FILE            header, tables and targets in Markdown
  --plots=DIR                the folder of the plots that the Markdown shows
  --enforce                  prints the targets; exit status 1 when a floor is missed
                             (not on the host-memory driver)
  --corrupt                  spoils one byte of each shared block: the run must then fail
  --slow_import=NS           makes each import from vmmshare's pool slower by that, and
  --slow_connect=NS          each connection to it: --enforce must then fail

BYTES may end in K, M or G.

One process owns the memory, another (this program started again) imports it. Routes take turns
within each repetition, and the order rotates. Every block is filled by its owner and checked by
the importer; a difference ends the run with exit status 1.

Scenarios:
)";
  for (const Scenario& scenario : Scenarios()) {
    absl::StrAppend(&text, "\n", scenario.name, ": ", scenario.title, "\n",
                    scenario.timed, "\n");
  }
  return text;
}

}  // namespace bench::compare
