#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/many.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"
#include "platform/base/status_macros.h"

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

// The target that the calls of the pool must meet.
Target ReportCalls(Bench& bench, const Link& link,
                   const std::vector<const Route*>& routes,
                   Subscriber subscriber, ManyByRoute& samples) {
  Table table;
  table.title = absl::StrCat("Calls on the path of the k-th share, ",
                             NameOf(subscriber), " subscriber, ", link.place());
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
        {absl::StrCat("kth_calls/", route->name, "/", link.key(), "/",
                      NameOf(subscriber)),
         {0},
         0,
         exporter.pieces,
         {{"driver_calls",
           static_cast<double>(exporter.driver_calls + importer.driver_calls)},
          {"shares_with_system_call",
           static_cast<double>(exporter.with_system_call +
                               importer.with_system_call)},
          {"system_calls_watched", watched ? 1 : 0}}});
    if (route != &routes::kPool) continue;
    none.measured = both;
    if (!watched) none.remark = "driver calls alone: see the note";
  }
  if (!table.rows.empty() && table.rows.front()[3] == "-") {
    table.notes.emplace_back(
        "system calls are not counted: that takes Linux on x86-64 with "
        "PR_SET_SYSCALL_USER_DISPATCH");
  }
  bench.results.tables.push_back(table);
  return none;
}

void AddMetrics(Bench& bench, const Route& route, const Link& link,
                Subscriber subscriber, const ManySamples& of) {
  const std::string prefix = absl::StrCat("kth/", route.name, "/", link.key(),
                                          "/", NameOf(subscriber));
  const double blocks = static_cast<double>(of.blocks);
  const auto add = [&](const char* name, const std::vector<double>& ns,
                       double cpu_ns, std::uint64_t operations) {
    bench.results.metrics.push_back({absl::StrCat(prefix, "/", name),
                                     ns,
                                     cpu_ns,
                                     operations,
                                     {{"blocks", blocks}}});
  };
  add("cpu", of.both, Median(of.both), of.blocks);
  add("exporter_cpu", of.exporter, Median(of.exporter), of.blocks);
  add("importer_cpu", of.importer, Median(of.importer), of.blocks);
  add("export", of.exports, Median(of.exporter), kLot);
  add("import", of.imports, Median(of.importer), kLot);
  add("close", of.close, -1, of.blocks);
  // Each number is of one block here.
  bench.results.metrics.push_back({prefix + "/export_alone", of.export_alone});
  bench.results.metrics.push_back({prefix + "/import_alone", of.import_alone});
}

// What a subscriber of the pool gets over `than`. When a subscriber comes makes
// no difference to legacy's calls: all their repetitions count, for equal ones
// differ by a quarter on machines with neighbours.
std::optional<double> Faster(const ManyByRoute& of, const ManyByRoute& other,
                             const Route& than) {
  const ManySamples* const pool = Find(of, routes::kPool);
  std::vector<double> legacy;
  for (const ManyByRoute* samples : {&of, &other}) {
    const ManySamples* const found = Find(*samples, than);
    if (found == nullptr) return std::nullopt;
    legacy.insert(legacy.end(), found->both.begin(), found->both.end());
  }
  if (pool == nullptr) return std::nullopt;
  return Median(legacy) / Median(pool->both);
}

// Each is what the worse of both subscribers gets.
void AddTargets(Bench& bench, const Link& link, const ManyByRoute& early,
                const ManyByRoute& late) {
  const auto faster_than = [&](const Target& target, const Route& than) {
    bench.results.targets.push_back(
        WorseOf(target, Faster(early, late, than), Faster(late, early, than)));
  };
  Target ratio;
  ratio.name =
      absl::StrCat("k-th share, pool over legacy, CPU time, ", link.place());
  // Legacy's open costs a peer what it costs the same GPU, but for the first one
  // of a pair of GPUs.
  ratio.floor = link.key() == "peer" ? 250 : 200;
  ratio.aim = 300;
  ratio.unit = "x";
  ratio.remark = "get and open of a block of its own for each buffer";
  faster_than(ratio, routes::kLegacyIpcOwnBlock);
  ratio.name += ", packed";
  ratio.remark = "buffers that share blocks of the driver's";
  ratio.applies = false;
  faster_than(ratio, routes::kLegacyIpc);
  Target wait;
  wait.name =
      absl::StrCat("one import from a pool, timed alone, p50, ", link.place());
  wait.floor = 1000;
  wait.aim = 200;
  wait.at_least = false;
  wait.unit = " ns";
  const auto import = [](const ManyByRoute& of) -> std::optional<double> {
    const ManySamples* const pool = Find(of, routes::kPool);
    if (pool == nullptr || pool->import_alone.empty()) return std::nullopt;
    return Median(pool->import_alone);
  };
  bench.results.targets.push_back(WorseOf(wait, import(early), import(late)));
}

void Report(Bench& bench, const Link& link,
            const std::vector<const Route*>& routes, Subscriber subscriber,
            ManyByRoute& samples) {
  Table table;
  table.header = {"route",
                  "blocks",
                  "exporter CPU",
                  "importer CPU",
                  "CPU, both",
                  "to legacy",
                  "to own 2 MiB",
                  "to cached",
                  "to arena",
                  "export of 16, each",
                  "import of 16, each",
                  "export alone p50",
                  "p99",
                  "import alone p50",
                  "p99",
                  "close",
                  "CPU from connecting, both"};
  table.title = absl::StrCat("The k-th share of 64 KiB, ", NameOf(subscriber),
                             " subscriber, ", link.place());
  Chart chart;
  chart.file = absl::StrCat("kth_", NameOf(subscriber), "_", link.key());
  chart.title = table.title;
  chart.y_label = "CPU time a block, exporter and importer, no transport";
  for (const Route* route : routes) {
    const ManySamples& of = samples[route];
    if (of.both.empty()) {
      table.notes.push_back(
          absl::StrCat(route->label, ": not available: ", of.left_out));
      continue;
    }
    const double both = Median(of.both);
    const auto ratio = [&](const Route& to) {
      const ManySamples* const other = Find(samples, to);
      return other == nullptr ? "-" : RatioText(Median(other->both) / both);
    };
    const double whole =
        (Median(of.whole_owner_cpu) + Median(of.whole_importer_cpu)) /
        static_cast<double>(of.blocks);
    table.rows.push_back(
        {route->label, absl::StrCat(of.blocks), TimeText(Median(of.exporter)),
         TimeText(Median(of.importer)), TimeText(both),
         ratio(routes::kLegacyIpc), ratio(routes::kLegacyIpcOwnBlock),
         ratio(routes::kLegacyIpcCached), ratio(routes::kLegacyIpcArena),
         TimeTextOr(of.exports, 50), TimeTextOr(of.imports, 50),
         TimeTextOr(of.export_alone, 50), TimeTextOr(of.export_alone, 99),
         TimeTextOr(of.import_alone, 50), TimeTextOr(of.import_alone, 99),
         TimeTextOr(of.close, 50), TimeText(whole)});
    chart.bars.emplace_back(route->label, both);
    AddMetrics(bench, *route, link, subscriber, of);
  }
  const ManySamples* const legacy = Find(samples, routes::kLegacyIpc);
  if (legacy != nullptr) {
    table.notes.push_back(absl::StrFormat(
        "legacy IPC, a handle each: one cuMemAlloc of 64 KiB a block; they lie "
        "in %d blocks of 2 MiB of the driver's, and only "
        "the first open in each is a full one. \"own 2 MiB each\" allocates 2 "
        "MiB a block, so that every open is. \"handles cached\" and \"arena\" "
        "open each allocation once and find a block by its offset, without a "
        "check and without a record of who uses it.",
        legacy->driver_blocks));
  }
  table.notes.emplace_back(
      "of 16, each: wall time, a 16th of what a lot of 16 took, p50; alone: "
      "wall time of one block by itself, between two reads of the clock; CPU: "
      "of the whole process, median of the repetitions, and from connecting: "
      "with all that connecting and the first 128 shares cost, less the "
      "owner's allocating and filling");
  bench.results.tables.push_back(table);
  bench.results.charts.push_back(chart);
}

absl::Status Run(Bench& bench) {
  const std::uint64_t blocks = bench.options.blocks != 0 ? bench.options.blocks
                               : bench.options.quick     ? 300
                                                         : 10'000;
  const std::vector<std::uint64_t> sizes(blocks, kSize);
  for (const std::unique_ptr<Link>& link : bench.links) {
    const std::vector<const Route*> routes =
        bench.RoutesFor(*link, RouteSet::kAll);
    ManyByRoute by_subscriber[std::size(kSubscribers)];
    for (const Subscriber subscriber : kSubscribers) {
      ManyByRoute& samples =
          by_subscriber[static_cast<std::size_t>(subscriber)];
      RETURN_IF_ERROR(ShareMany(bench, *link, routes, sizes,
                                {.what = "kth",
                                 .subscriber = subscriber,
                                 .iterations = bench.Iterations(5),
                                 .warm = true,
                                 .alone = true},
                                &samples));
      Report(bench, *link, routes, subscriber, samples);
    }
    AddTargets(bench, *link, by_subscriber[0], by_subscriber[1]);
    const Target early =
        ReportCalls(bench, *link, routes, Subscriber::kEarly, by_subscriber[0]);
    const Target late =
        ReportCalls(bench, *link, routes, Subscriber::kLate, by_subscriber[1]);
    bench.results.targets.push_back(WorseOf(early, late));
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kKth = {
    "kth", "the k-th share: 10,000 blocks of 64 KiB",
    R"(  Two subscribers: an early one, connected before there are blocks, and a late one, which comes
  when all are there. Timed: exporting each block (down to the bytes that travel) and importing
  it from these bytes; CPU time of both processes, all threads, and wall time by lots of 16
  blocks; then the wall time of each of 2,000 blocks by itself. close: wall time of giving a
  block back at the importer. Not timed: allocating, filling, transport, checking the contents,
  and connecting and 128 blocks shared before, so that everything is warm; a column has the CPU
  time of all that, and the scenario tensors its wall time.
  Counted, with another 128 blocks: calls into the driver and into the system.)",
    &Run};

}  // namespace bench::compare
