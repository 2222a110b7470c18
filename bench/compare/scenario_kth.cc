
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/many.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"

namespace bench::compare {
namespace {

constexpr std::uint64_t kSize = 64 << 10;
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

void AddTargets(Bench& bench, const Link& link, const ManySamples* legacy,
                const ManySamples* pool) {
  const bool peer = link.key() == "peer";
  Target ratio;
  ratio.name =
      absl::StrCat("k-th share, pool over legacy, CPU time, ", link.place());
  ratio.floor = peer ? 1000 : 100;
  ratio.aim = peer ? 4000 : 300;
  ratio.unit = "x";
  Target wait;
  wait.name =
      absl::StrCat("consumer's wait for a share, pool, p50, ", link.place());
  wait.floor = 1000;
  wait.aim = 200;
  wait.at_least = false;
  wait.unit = " ns";
  if (pool != nullptr && !pool->both.empty()) {
    wait.measured = Median(pool->imports);
    if (legacy != nullptr && !legacy->both.empty()) {
      ratio.measured = Median(legacy->both) / Median(pool->both);
    }
  } else {
    ratio.remark = wait.remark = "no figures of the pool";
  }
  bench.results.targets.push_back(ratio);
  bench.results.targets.push_back(wait);
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
  AddTargets(bench, link, legacy, pool);
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
    "is warm.",
    &Run};

}  // namespace bench::compare
