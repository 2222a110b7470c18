#include "bench/compare/options.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "bench/compare/scenarios.h"

namespace bench::compare {
namespace {

bool ParseBytes(absl::string_view text, std::uint64_t* bytes) {
  const int shift = absl::ConsumeSuffix(&text, "G")   ? 30
                    : absl::ConsumeSuffix(&text, "M") ? 20
                    : absl::ConsumeSuffix(&text, "K") ? 10
                                                      : 0;
  if (!absl::SimpleAtoi(text, bytes) || *bytes == 0 ||
      *bytes > (std::numeric_limits<std::uint64_t>::max() >> shift)) {
    return false;
  }
  *bytes <<= shift;
  return true;
}

bool ParseFlag(absl::string_view name, Options* options) {
  if (name == "enforce") return options->enforce = true;
  if (name == "quick") return options->quick = true;
  if (name == "corrupt") return options->corrupt = true;
  if (name == "help") return options->help = true;
  return false;
}

bool ParseValue(absl::string_view name, absl::string_view value,
                Options* options) {
  const std::string text(value);
  if (name == "scenario") {
    options->scenarios = absl::StrSplit(value, ',', absl::SkipEmpty());
    for (const std::string& scenario : options->scenarios) {
      if (FindScenario(scenario) == nullptr) return false;
    }
    return !options->scenarios.empty();
  }
  if (name == "routes") {
    options->routes = absl::StrSplit(value, ',', absl::SkipEmpty());
    return !options->routes.empty();
  }
  if (name == "driver") return !(options->driver = text).empty();
  if (name == "device") {
    return absl::SimpleAtoi(value, &options->device) && options->device >= 0;
  }
  if (name == "peer") {
    return absl::SimpleAtoi(value, &options->peer) && options->peer >= 0;
  }
  if (name == "iterations") {
    return absl::SimpleAtoi(value, &options->iterations) &&
           options->iterations > 0;
  }
  if (name == "blocks") {
    return absl::SimpleAtoi(value, &options->blocks) && options->blocks > 0;
  }
  if (name == "max_size") return ParseBytes(value, &options->max_size);
  if (name == "max_bytes") return ParseBytes(value, &options->max_bytes);
  if (name == "budget") {
    return absl::SimpleAtod(value, &options->budget_s) && options->budget_s > 0;
  }
  if (name == "slow_import") {
    return absl::SimpleAtod(value, &options->slow_import_ns) &&
           options->slow_import_ns >= 0;
  }
  if (name == "slow_connect") {
    return absl::SimpleAtod(value, &options->slow_connect_ns) &&
           options->slow_connect_ns >= 0;
  }
  if (name == "json") return !(options->json = text).empty();
  if (name == "plots") return !(options->plots = text).empty();
  if (name == "markdown") return !(options->markdown = text).empty();
  if (name == "role") return !(options->role = text).empty();
  if (name == "connect") return !(options->connect = text).empty();
  if (name == "linger") return !(options->linger = text).empty();
  if (name == "at") return absl::SimpleAtoi(value, &options->at);
  if (name == "route") return !(options->route = text).empty();
  return false;
}

}  // namespace

absl::StatusOr<Options> ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    const std::size_t equals = word.find('=');
    bool understood = absl::ConsumePrefix(&word, "--");
    if (understood && equals == absl::string_view::npos) {
      understood = ParseFlag(word, &options);
    } else if (understood) {
      understood = ParseValue(word.substr(0, equals - 2),
                              word.substr(equals - 1), &options);
    }
    if (!understood) {
      return absl::InvalidArgumentError(absl::StrCat(
          argv[i], ": not understood; --help lists what may be given"));
    }
  }
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
