#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/connection.h"
#include "bench/compare/scenarios.h"
#include "bench/report.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

constexpr std::uint32_t kTimes = 4;  // Copies behind a number.

// A route with a block of its own, or local memory (`route` null).
struct Source {
  const Route* route = nullptr;
  std::vector<Item> items;
  std::vector<double> ns;  // Of one copy.

  std::string label() const {
    return route == nullptr ? "local" : route->label;
  }
  std::string key() const { return route == nullptr ? "local" : route->name; }
};

double Rate(std::uint64_t size, double ns) {
  return static_cast<double>(size) / ns;  // Bytes a ns are GB/s.
}

absl::Status Copy(Link& link, std::uint64_t size, Source* source) {
  CopyRequest request;
  request.local = source->route == nullptr ? 1 : 0;
  if (source->route != nullptr) {
    request.route = IndexOf(*source->route);
  }
  request.size = size;
  request.times = kTimes;
  Writer writer;
  writer.Put(request);
  ASSIGN_OR_RETURN(Answer answer, link.Ask(kCopy, writer));
  source->ns.push_back(answer.wall_ns / kTimes);
  return absl::OkStatus();
}

void Report(Bench& bench, const Link& link, std::uint64_t size,
            const std::vector<Source>& sources) {
  Table table;
  table.title = absl::StrFormat("Copies of %s to local memory, %s",
                                BytesText(size), link.place());
  table.header = {"from", "GB/s p50", "GB/s p99", "to local", "to legacy"};
  table.notes = {
      "the importer copies, and checks what it copied; p99: the "
      "rate that 99 % of the copies reach"};
  Chart chart;
  chart.file = absl::StrCat("copy_", link.key());
  chart.title = absl::StrCat("Copies from imported memory, ", link.place());
  chart.y_label = "GB/s";
  chart.y_is_time = false;
  chart.logarithmic = false;
  double local = 0;
  double legacy = 0;
  std::optional<double> worst;
  for (const Source& source : sources) {
    const double rate = Rate(size, Median(source.ns));
    if (source.route == nullptr) local = rate;
    if (source.route == &routes::kLegacyIpc) legacy = rate;
    const double base = link.key() == "peer" ? legacy : local;
    const bool ours =
        source.route == &routes::kDedicated || source.route == &routes::kPool;
    if (ours && base > 0) worst = std::min(worst.value_or(1e9), rate / base);
    table.rows.push_back(
        {source.label(), absl::StrFormat("%.1f", rate),
         absl::StrFormat("%.1f", Rate(size, Percentile(source.ns, 99))),
         absl::StrFormat("%.3f", rate / local),
         legacy > 0 ? absl::StrFormat("%.3f", rate / legacy) : "-"});
    chart.bars.emplace_back(source.label(), rate);
    bench.results.metrics.push_back(
        {absl::StrCat("copy/", source.key(), "/", link.key()),
         source.ns,
         -1,
         kTimes,
         {{"bytes_per_second", rate * 1e9}}});
  }
  bench.results.tables.push_back(table);
  bench.results.charts.push_back(chart);
  Target target;
  target.name = absl::StrCat("copies from imported memory over ",
                             link.key() == "peer" ? "legacy" : "local", ", ",
                             link.place());
  target.floor = target.aim = 0.99;
  target.measured = worst;
  target.remark = "the slower one of vmmshare's routes";
  bench.results.targets.push_back(target);
}

// Shares a block by `route`, filled by `seed`.
absl::StatusOr<Connection> Prepare(Bench& bench, Link& link, const Route& route,
                                   std::uint64_t size, std::uint64_t seed,
                                   Source* source) {
  ASSIGN_OR_RETURN(
      Connection connection,
      Connection::Open(bench.gpu, route, link, bench.options.corrupt));
  ASSIGN_OR_RETURN(std::vector<Item> items, connection.Create({size}, seed));
  absl::Status shared = connection.Share(items, {}).status();
  if (shared.ok()) shared = connection.Verify();
  if (!shared.ok()) return shared;
  *source = {&route, std::move(items), {}};
  return connection;
}

// Copies from all of them in turn, the first time to warm up.
absl::Status TakeTurns(Bench& bench, Link& link, std::uint64_t size,
                       std::vector<Source>& sources) {
  const int iterations = bench.Iterations(50);
  for (int i = -1; i < iterations; ++i) {
    bench.progress.Detail(absl::StrCat(i + 1, " of ", iterations));
    for (std::size_t j = 0; j < sources.size(); ++j) {
      RETURN_IF_ERROR(bench.GoOn());
      Source& source =
          sources[(j + static_cast<std::size_t>(i + 1)) % sources.size()];
      RETURN_IF_ERROR(Copy(link, size, &source));
      if (i < 0) source.ns.clear();
    }
  }
  return absl::OkStatus();
}

absl::Status Place(Bench& bench, Link& link, std::uint64_t size) {
  std::vector<Source> sources(1);
  std::vector<Connection> connections;
  for (const Route* route : bench.RoutesFor(link, RouteSet::kOneBlock)) {
    Source source;
    absl::StatusOr<Connection> connection =
        Prepare(bench, link, *route, size, sources.size(), &source);
    RETURN_IF_ERROR(vmm::platform::Annotate(connection.status(), route->label));
    connections.push_back(*std::move(connection));
    sources.push_back(std::move(source));
  }
  absl::Status status = TakeTurns(bench, link, size, sources);
  if (status.ok()) Report(bench, link, size, sources);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    status = connections[i].End(sources[i + 1].items, status);
  }
  return status;
}

absl::Status Run(Bench& bench) {
  for (const std::unique_ptr<Link>& link : bench.links) {
    ASSIGN_OR_RETURN(std::uint64_t free, bench.gpu.FreeBytes());
    std::uint64_t size =
        std::min({bench.MaxSize(), std::uint64_t{1} << 30, free / 12});
    size = std::max<std::uint64_t>(size >> 21, 1) << 21;
    bench.progress.Step(
        absl::StrCat("copy: ", BytesText(size), ", ", link->place()));
    RETURN_IF_ERROR(Place(bench, *link, size));
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kCopy = {
    "copy", "bandwidth of copies: local, from imported memory, over NVLink",
    R"(  Timed: four copies (cuMemcpyDtoDAsync) by the importer, from imported memory to its own, and
  the wait for them; one way, bytes copied by time. Sources take turns. Not timed: sharing,
  and the check of what was copied.)",
    &Run};

}  // namespace bench::compare
