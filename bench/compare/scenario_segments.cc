#include <optional>

#include "absl/strings/str_cat.h"
#include "bench/compare/bench.h"
#include "bench/compare/many.h"
#include "bench/compare/scenarios.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

constexpr std::size_t kBuffers = 16;

std::optional<double> Late(ManyByRoute& samples, const Route& route) {
  const ManySamples* const of = Find(samples, route);
  return of == nullptr ? std::nullopt : std::optional(Median(of->whole));
}

void Report(Bench& bench, const Link& link, std::uint64_t size,
            const std::vector<const Route*>& routes, ManyByRoute& samples) {
  Table table;
  table.title = absl::StrCat(kBuffers, " buffers of ", BytesText(size),
                             ", late subscriber: from connecting to readable, ",
                             link.place());
  table.header = {"route",   "readable p50", "worst",   "to arena",
                  "connect", "CPU, owner",   "importer"};
  const std::optional<double> arena = Late(samples, routes::kLegacyIpcArena);
  for (const Route* route : routes) {
    const ManySamples& of = samples[route];
    if (of.whole.empty()) {
      table.notes.push_back(
          absl::StrCat(route->label, ": not available: ", of.left_out));
      continue;
    }
    table.rows.push_back(
        {route->label, TimeTextOr(of.whole, 50), TimeTextOr(of.whole, 100),
         arena ? RatioText(*arena / Median(of.whole)) : "-",
         TimeTextOr(of.connect, 50), TimeTextOr(of.whole_owner_cpu, 50),
         TimeTextOr(of.whole_importer_cpu, 50)});
    bench.results.metrics.push_back(
        {absl::StrCat("segments/", route->name, "/", link.key(), "/readable"),
         of.whole});
  }
  table.notes.emplace_back(
      "legacy IPC opens one allocation a buffer by every way, and so does the "
      "pool: its segments are the buffers");
  bench.results.tables.push_back(table);
  Target target;
  target.name = absl::StrCat(
      kBuffers, " buffers, late, pool's time over a legacy arena's, ",
      link.place());
  target.floor = 2;
  target.aim = 1;
  target.at_least = false;
  target.remark = "from connecting until the importer has read a word of each";
  const std::optional<double> pool = Late(samples, routes::kPool);
  if (pool && arena) target.measured = *pool / *arena;
  bench.results.targets.push_back(target);
}

absl::Status Run(Bench& bench) {
  const std::uint64_t size = bench.options.quick ? std::uint64_t{2} << 20
                             : bench.on_gpu()    ? std::uint64_t{1} << 30
                                                 : std::uint64_t{32} << 20;
  const std::vector<std::uint64_t> sizes(kBuffers, size);
  for (const std::unique_ptr<Link>& link : bench.links) {
    const std::vector<const Route*> routes =
        bench.RoutesFor(*link, RouteSet::kTensors);
    ManyByRoute samples;
    RETURN_IF_ERROR(ShareMany(bench, *link, routes, sizes,
                              {.what = "segments",
                               .subscriber = Subscriber::kLate,
                               .iterations = bench.Iterations(7),
                               .touch = true},
                              &samples));
    Report(bench, *link, size, routes, samples);
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kSegments = {
    "segments", "16 buffers of 1 GiB, which lie there when a subscriber comes",
    R"(  Timed: from connecting until the importer has read a word of each, so what a route hands over and
  maps for a subscriber that comes late, and hardly anything else. Not timed: allocating, filling,
  checking, closing, making pools, the same buffers shared before over another connection.)",
    &Run};

}  // namespace bench::compare
