#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/connection.h"
#include "bench/compare/scenarios.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

struct Samples {
  std::array<std::vector<double>, kSteps> steps;
  std::vector<double> total;
  // Without setup and touch, which are the same calls for both.
  std::vector<double> calls;
  std::vector<double> next_create;
  std::vector<double> next_share;
};
using ByRoute = std::map<const Route*, Samples>;

absl::Status One(Bench& bench, const Route& route, Link& link,
                 std::uint64_t size, std::uint64_t seed, Samples* samples) {
  ASSIGN_OR_RETURN(
      Connection connection,
      Connection::Open(bench.gpu, route, link, bench.options.corrupt));
  double create_ns = 0;
  ASSIGN_OR_RETURN(std::vector<Item> items,
                   connection.Create({size}, seed, &create_ns));
  ASSIGN_OR_RETURN(Shared shared, connection.Share(items, {.with_steps = true,
                                                           .touch = true}));
  RETURN_IF_ERROR(connection.Verify());

  // Another block, now that everything is set up.
  double next_create_ns = 0;
  ASSIGN_OR_RETURN(std::vector<Item> next,
                   connection.Create({size}, seed + 1, &next_create_ns));
  ASSIGN_OR_RETURN(Shared next_shared, connection.Share(next, {}));
  RETURN_IF_ERROR(connection.Verify());

  ASSIGN_OR_RETURN(Answer closed, connection.CloseAll());
  ASSIGN_OR_RETURN(double freed, connection.Free(items));
  RETURN_IF_ERROR(connection.Free(next).status());
  RETURN_IF_ERROR(connection.Shut());

  Steps steps = shared.importer.steps;
  steps[Step::kSetup] = connection.setup_ns();
  steps[Step::kCreate] = create_ns;
  steps[Step::kExport] = shared.exporter.wall_ns;
  steps[Step::kTransport] = shared.importer.transport_ns;
  // Of two blocks of one size.
  steps[Step::kClose] = closed.wall_ns / 2;
  steps[Step::kFree] = freed;
  for (std::size_t i = 0; i < kSteps; ++i) {
    const double ns = steps[static_cast<Step>(i)];
    if (ns >= 0) samples->steps[i].push_back(ns);
  }
  const double sum = steps.Sum();
  samples->total.push_back(sum);
  samples->calls.push_back(sum - steps[Step::kSetup] - steps[Step::kTouch]);
  samples->next_create.push_back(next_create_ns);
  samples->next_share.push_back(next_shared.exporter.wall_ns +
                                next_shared.importer.wall_ns);
  return absl::OkStatus();
}

// In every second turn bare calls and vmmshare have changed places, and all else
// is where it was: what a call takes depends on what the route before has left
// with the driver, so each must come after the same ones as often as the other.
std::vector<const Route*> InTurn(const std::vector<const Route*>& routes,
                                 int turn) {
  std::vector<const Route*> order = Rotated(routes, turn / 2 * 2);
  const auto bare = std::find(order.begin(), order.end(), &routes::kBareCalls);
  const auto dedicated =
      std::find(order.begin(), order.end(), &routes::kDedicated);
  if (turn % 2 == 1 && bare != order.end() && dedicated != order.end()) {
    std::iter_swap(bare, dedicated);
  }
  return order;
}

// The logarithm of what `of` takes over `than`, of turns beside each other: the
// mean of all but a tenth at either end. Creating and freeing take one of two
// times, by what the driver was left with: a median then is of one of them.
double LogRatio(const Samples& of, const Samples& than) {
  std::vector<double> logs;
  for (std::size_t i = 0; i < std::min(of.calls.size(), than.calls.size());
       ++i) {
    logs.push_back(std::log(of.calls[i] / than.calls[i]));
  }
  std::sort(logs.begin(), logs.end());
  const std::size_t cut = logs.size() / 10;
  double sum = 0;
  for (std::size_t i = cut; i < logs.size() - cut; ++i) sum += logs[i];
  return sum / static_cast<double>(logs.size() - 2 * cut);
}

void Report(Bench& bench, const Link& link, std::uint64_t size,
            const std::vector<const Route*>& routes, ByRoute& samples) {
  Table table;
  table.title = absl::StrFormat("First share of %s, %s (p50)", BytesText(size),
                                link.place());
  table.header = {"route"};
  for (std::size_t i = 0; i < kSteps; ++i) {
    table.header.emplace_back(kStepNames[i]);
  }
  for (const char* column :
       {"total", "total p99", "to legacy", "next share", "to legacy"}) {
    table.header.emplace_back(column);
  }
  // Without samples its medians are 0, and no ratio is shown.
  const Samples& legacy = samples[&routes::kLegacyIpc];
  for (const Route* route : routes) {
    const Samples& of = samples[route];
    if (of.total.empty()) continue;
    std::vector<std::string> row = {route->label};
    const std::string prefix = absl::StrCat("first/", route->name, "/",
                                            SizeName(size), "/", link.key());
    for (std::size_t i = 0; i < kSteps; ++i) {
      row.push_back(TimeTextOr(of.steps[i], 50));
      bench.results.metrics.push_back(
          {absl::StrCat(prefix, "/", kStepNames[i]), of.steps[i]});
    }
    bench.results.metrics.push_back({prefix + "/total", of.total});
    bench.results.metrics.push_back({prefix + "/next_create", of.next_create});
    bench.results.metrics.push_back({prefix + "/next_share", of.next_share});
    row.push_back(TimeTextOr(of.total, 50));
    row.push_back(TimeTextOr(of.total, 99));
    row.push_back(RatioText(Median(legacy.total) / Median(of.total)));
    row.push_back(TimeTextOr(of.next_share, 50));
    row.push_back(RatioText(Median(legacy.next_share) / Median(of.next_share)));
    table.rows.push_back(row);
  }
  table.notes = {
      "to legacy: how many times faster than legacy IPC in this run; under 1 "
      "is slower",
      "total: all steps but transport; next share: export and import of a "
      "second block of the same size over the same connection"};
  bench.results.tables.push_back(table);
}

absl::Status Run(Bench& bench) {
  for (const std::unique_ptr<Link>& link : bench.links) {
    const std::vector<const Route*> routes =
        bench.RoutesFor(*link, RouteSet::kOneBlock);
    Chart chart;
    chart.file = absl::StrCat("first_", link->key());
    chart.title = absl::StrCat("First share of a block, ", link->place());
    chart.x_label = "size of the block";
    chart.y_label = "create, export, import, touch, close and free; p50";
    chart.x_is_bytes = true;
    for (const Route* route : routes) chart.series.push_back({route->label});
    double logs = 0;
    int sizes = 0;
    for (const std::uint64_t mib : {2, 8, 32, 128, 512, 1024, 4096}) {
      const std::uint64_t size = mib << 20;
      ASSIGN_OR_RETURN(std::uint64_t free, bench.gpu.FreeBytes());
      if (size > bench.MaxSize() || size > free / 4) continue;
      bench.progress.Step(
          absl::StrCat("first: ", BytesText(size), ", ", link->place()));
      ByRoute samples;
      const int iterations = bench.Iterations(mib > 128 ? 16 : 30);
      for (int i = 0; i < iterations; ++i) {
        bench.progress.Detail(absl::StrCat(i + 1, " of ", iterations));
        RETURN_IF_ERROR(bench.GoOn());
        for (const Route* route : InTurn(routes, i)) {
          RETURN_IF_ERROR(vmm::platform::Annotate(
              One(bench, *route, *link, size, 2 * static_cast<std::uint64_t>(i),
                  &samples[route]),
              route->label));
        }
      }
      Report(bench, *link, size, routes, samples);
      for (std::size_t i = 0; i < routes.size(); ++i) {
        chart.series[i].points.emplace_back(static_cast<double>(size),
                                            Median(samples[routes[i]].total));
      }
      const Samples& bare = samples[&routes::kBareCalls];
      const Samples& dedicated = samples[&routes::kDedicated];
      if (!bare.calls.empty() && !dedicated.calls.empty()) {
        logs += LogRatio(dedicated, bare);
        ++sizes;
      }
    }
    bench.results.charts.push_back(chart);
    Target target;
    target.name =
        absl::StrCat("first share, dedicated over bare calls, ", link->place());
    target.floor = 1.05;
    target.aim = 1.05;
    target.at_least = false;
    if (sizes != 0) target.measured = std::exp(logs / sizes);
    target.remark =
        "geometric mean over sizes and turns, but for a tenth at either end";
    bench.results.targets.push_back(target);
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kFirst = {
    "first", "the first share of a block, 2 MiB to 4 GiB, step by step",
    R"(  Timed apart: setup (making and introducing a pool, where there is one), create (with the
  owner's mapping and access), export, transport (from sending to having received), import,
  map and access (where they are calls of their own), touch (the importer reads 4 bytes),
  close (the importer's), free (the owner's; a pool keeps the memory). A new pool and a new
  connection between both halves for each block. Not timed: starting processes, contexts,
  filling, checking the contents. total leaves out transport.)",
    &Run};

}  // namespace bench::compare
