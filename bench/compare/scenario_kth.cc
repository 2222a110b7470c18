
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/many.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"

namespace bench::compare {
namespace {

constexpr std::uint64_t kSize = 64 << 10;

// Calls a share, or "-" for nothing counted.
std::string Each(std::uint64_t calls, std::uint64_t shares) {
  return shares == 0 ? "-"
                     : absl::StrFormat("%.2f", static_cast<double>(calls) /
                                                   static_cast<double>(shares));
}

std::string OutOf(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? "-" : absl::StrCat(part, " of ", all);
}

void ReportCalls(Bench& bench, const Link& link,
                 const std::vector<const Route*>& routes,
                 ManyByRoute& samples) {
  Table table;
  table.title =
      absl::StrCat("Calls on the path of the k-th share, ", link.place());
  table.header = {"route", "driver calls: export", "import",
                  "with a system call: export", "import"};
  table.notes = {
      "driver calls a share; then, of shares watched, those in which the "
      "thread made at least one system call"};
  Target none;
  none.name =
      absl::StrCat("driver and system calls of pool shares, ", link.place());
  none.at_least = false;
  for (const Route* route : routes) {
    const CallCounts& exporter = samples[route].exporter_calls;
    const CallCounts& importer = samples[route].importer_calls;
    if (exporter.pieces == 0) continue;
    table.rows.push_back({route->label,
                          Each(exporter.driver_calls, exporter.pieces),
                          Each(importer.driver_calls, importer.pieces),
                          OutOf(exporter.with_system_call, exporter.watched),
                          OutOf(importer.with_system_call, importer.watched)});
    const bool watched = exporter.watched != 0 && importer.watched != 0;
    const auto both = static_cast<double>(
        exporter.driver_calls + importer.driver_calls +
        exporter.with_system_call + importer.with_system_call);
    bench.results.metrics.push_back(
        {absl::StrCat("kth_calls/", route->name, "/", link.key()),
         {0},
         0,
         exporter.pieces,
         {{"driver_calls",
           static_cast<double>(exporter.driver_calls + importer.driver_calls)},
          {"shares_with_system_call",
           static_cast<double>(exporter.with_system_call +
                               importer.with_system_call)},
          {"system_calls_watched", watched ? 1 : 0}}});
    if (route->name != routes::kPool.name) continue;
    none.measured = both;
    if (!watched) none.remark = "driver calls alone: see the note";
  }
  if (!table.rows.empty() && table.rows.front()[3] == "-") {
    table.notes.emplace_back(
        "system calls are not counted: that takes Linux on x86-64 with "
        "PR_SET_SYSCALL_USER_DISPATCH");
  }
  bench.results.tables.push_back(table);
  bench.results.targets.push_back(none);
}

void AddMetrics(Bench& bench, const Route& route, const Link& link,
                const ManySamples& of) {
  const std::string prefix = absl::StrCat("kth/", route.name, "/", link.key());
  const double blocks = static_cast<double>(of.blocks);
  const auto add = [&](const char* name, const std::vector<double>& ns,
                       double cpu_ns) {
    bench.results.metrics.push_back({absl::StrCat(prefix, "/", name),
                                     ns,
                                     cpu_ns,
                                     of.blocks,
                                     {{"blocks", blocks}}});
  };
  add("cpu", of.both, Median(of.both));
  add("exporter_cpu", of.exporter, Median(of.exporter));
  add("importer_cpu", of.importer, Median(of.importer));
  add("export", of.exports, Median(of.exporter));
  add("import", of.imports, Median(of.importer));
  add("close", of.close, -1);
}

// `full` is legacy with a full open for each block, `packed` legacy with
// blocks that share the driver's.
void AddTargets(Bench& bench, const Link& link, const ManySamples* full,
                const ManySamples* packed, const ManySamples* pool) {
  const bool peer = link.key() == "peer";
  Target ratio;
  ratio.name =
      absl::StrCat("k-th share, pool over legacy, CPU time, ", link.place());
  ratio.floor = peer ? 1000 : 100;
  ratio.aim = peer ? 4000 : 300;
  ratio.unit = "x";
  ratio.remark = "get and open of a block of its own for each buffer";
  Target to_packed = ratio;
  to_packed.name += ", packed";
  to_packed.remark = "buffers that share blocks of the driver's";
  to_packed.applies = false;
  Target wait;
  wait.name =
      absl::StrCat("consumer's wait for a share, pool, p50, ", link.place());
  wait.floor = 1000;
  wait.aim = 200;
  wait.at_least = false;
  wait.unit = " ns";
  if (pool != nullptr) {
    wait.measured = Median(pool->imports);
    const auto faster = [&](const ManySamples* than) {
      return than == nullptr
                 ? std::nullopt
                 : std::optional(Median(than->both) / Median(pool->both));
    };
    ratio.measured = faster(full);
    to_packed.measured = faster(packed);
  }
  for (const Target& target : {ratio, to_packed, wait}) {
    bench.results.targets.push_back(target);
  }
}

void Report(Bench& bench, const Link& link,
            const std::vector<const Route*>& routes, ManyByRoute& samples) {
  Table table;
  table.header = {"route",      "blocks",     "exporter CPU", "importer CPU",
                  "CPU, both",  "to legacy",  "to own 2 MiB", "export p50",
                  "export p99", "import p50", "import p99",   "close"};
  Chart chart;
  chart.file = absl::StrCat("kth_", link.key());
  chart.title = absl::StrCat("The k-th share of 64 KiB, ", link.place());
  chart.y_label = "CPU time a block, exporter and importer, no transport";
  const ManySamples* legacy = nullptr;
  const ManySamples* own_block = nullptr;
  const ManySamples* pool = nullptr;
  for (const Route* route : routes) {
    const ManySamples& of = samples[route];
    if (of.both.empty()) {
      table.notes.push_back(
          absl::StrCat(route->label, ": not available: ", of.left_out));
      continue;
    }
    if (route->name == routes::kLegacyIpc.name) legacy = &of;
    if (route->name == routes::kLegacyIpcOwnBlock.name) own_block = &of;
    if (route->name == routes::kPool.name) pool = &of;
  }
  for (const Route* route : routes) {
    const ManySamples& of = samples[route];
    if (of.both.empty()) continue;
    const double both = Median(of.both);
    const auto ratio = [&](const ManySamples* to) {
      return to == nullptr ? "-" : RatioText(Median(to->both) / both);
    };
    table.rows.push_back(
        {route->label, absl::StrCat(of.blocks), TimeText(Median(of.exporter)),
         TimeText(Median(of.importer)), TimeText(both), ratio(legacy),
         ratio(own_block), TimeTextOr(of.exports, 50),
         TimeTextOr(of.exports, 99), TimeTextOr(of.imports, 50),
         TimeTextOr(of.imports, 99), TimeTextOr(of.close, 50)});
    chart.bars.emplace_back(route->label, both);
    AddMetrics(bench, *route, link, of);
  }
  if (legacy != nullptr) {
    table.notes.push_back(absl::StrFormat(
        "legacy IPC: one cuMemAlloc of 64 KiB a block, each with a handle of "
        "its own; they lie in %d blocks of 2 MiB of the driver's, and only "
        "the first open in each is a full one. \"own 2 MiB each\" allocates 2 "
        "MiB a block, so that every open is.",
        legacy->driver_blocks));
  }
  table.notes.emplace_back(
      "p50 and p99: wall time a block, over lots of 16 blocks; CPU: of the "
      "whole process, median of the repetitions");
  table.title = absl::StrCat("The k-th share of 64 KiB, ", link.place());
  bench.results.tables.push_back(table);
  bench.results.charts.push_back(chart);
  AddTargets(bench, link, own_block, legacy, pool);
  ReportCalls(bench, link, routes, samples);
}

absl::Status Run(Bench& bench) {
  const std::uint64_t blocks = bench.options.blocks != 0 ? bench.options.blocks
                               : bench.options.quick     ? 300
                                                         : 10'000;
  const std::vector<std::uint64_t> sizes(blocks, kSize);
  for (const std::unique_ptr<Link>& link : bench.links) {
    const std::vector<const Route*> routes = bench.RoutesFor(*link, true);
    ManyByRoute samples;
    absl::Status shared = ShareMany(bench, *link, routes, sizes, false,
                                    bench.Iterations(3), "kth", &samples);
    if (!shared.ok()) return shared;
    Report(bench, *link, routes, samples);
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kKth = {
    "kth", "the k-th share: 10,000 blocks of 64 KiB",
    "  Timed: exporting each block (down to the bytes that travel) and "
    "importing it from these\n"
    "  bytes; CPU time of both processes, all threads, and wall time by lots "
    "of 16 blocks. close:\n"
    "  wall time of giving a block back at the importer. Not timed: "
    "allocating, filling, transport,\n"
    "  checking the contents, and 128 blocks shared before, so that everything "
    "is warm.\n"
    "  Counted, with another 128 blocks: calls into the driver and into the "
    "system.",
    &Run};

}  // namespace bench::compare
