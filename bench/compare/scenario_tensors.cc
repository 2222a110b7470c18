#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/many.h"
#include "bench/compare/scenarios.h"
#include "bench/compare/tensors.h"

namespace bench::compare {
namespace {

// `ns` of a route, scaled to all tensors where it shared only some of them.
std::vector<double> ForAll(std::vector<double> ns, const ManySamples& of,
                           std::size_t tensors) {
  for (double& sample : ns) {
    sample *= static_cast<double>(tensors) / static_cast<double>(of.blocks);
  }
  return ns;
}

std::vector<double> Readable(const ManySamples& of, std::size_t tensors) {
  return ForAll(of.readable, of, tensors);
}

void AddTargets(Bench& bench, const Link& link, std::size_t tensors,
                const ManySamples* legacy, const ManySamples* pool) {
  Target ratio;
  ratio.name =
      absl::StrCat("the model's tensors, pool over legacy, ", link.place());
  ratio.floor = ratio.aim = 100;
  ratio.unit = "x";
  ratio.remark =
      "from the first export until the importer has read a word of each";
  Target waste;
  waste.name = absl::StrCat("waste of the model in the pool, ", link.place());
  waste.floor = waste.aim = 5;
  waste.at_least = false;
  waste.unit = " %";
  waste.remark = "over the payload, rounded up to a segment of 1 GiB";
  if (pool != nullptr && !pool->readable.empty()) {
    if (legacy != nullptr && !legacy->readable.empty()) {
      ratio.measured =
          Median(Readable(*legacy, tensors)) / Median(Readable(*pool, tensors));
    }
    constexpr double kSegment = 1 << 30;
    const double allowed =
        std::ceil(static_cast<double>(pool->payload) / kSegment) * kSegment;
    waste.measured =
        std::max(0.0, 100 * (static_cast<double>(pool->taken) / allowed - 1));
  } else {
    ratio.remark = waste.remark = "no figures of the pool";
  }
  bench.results.targets.push_back(ratio);
  bench.results.targets.push_back(waste);
}

void Report(Bench& bench, const Link& link,
            const std::vector<std::uint64_t>& sizes,
            const std::vector<const Route*>& routes, ManyByRoute& samples) {
  Table table;
  table.title = absl::StrCat(
      "A model's tensors, from allocated here to "
      "readable there, ",
      link.place());
  table.header = {"route",     "shared",      "readable p50", "worst",
                  "to legacy", "touch",       "create",       "close a tensor",
                  "GPU bytes", "over payload"};
  table.notes.push_back(DescribeTensors(sizes));
  Chart chart;
  chart.file = absl::StrCat("tensors_", link.key());
  chart.title = absl::StrCat("Sharing a model of ", sizes.size(), " tensors, ",
                             link.place());
  chart.y_label = "from allocated here to readable there";
  const ManySamples* legacy = nullptr;
  const ManySamples* pool = nullptr;
  for (const Route* route : routes) {
    const ManySamples& of = samples[route];
    if (of.readable.empty()) {
      table.notes.push_back(
          absl::StrCat(route->label, ": not available: ", of.left_out));
      continue;
    }
    if (route->name == routes::kLegacyIpc.name) legacy = &of;
    if (route->name == routes::kPool.name) pool = &of;
    const std::vector<double> all = Readable(of, sizes.size());
    const std::vector<double> create = ForAll(of.create, of, sizes.size());
    table.rows.push_back(
        {route->label, absl::StrCat(of.blocks), TimeTextOr(all, 50),
         TimeTextOr(all, 100),
         legacy == nullptr
             ? "-"
             : RatioText(Median(Readable(*legacy, sizes.size())) / Median(all)),
         TimeTextOr(of.touch, 50), TimeTextOr(create, 50),
         TimeTextOr(of.close, 50), BytesText(static_cast<double>(of.taken)),
         absl::StrFormat("%.1f %%", 100 * (static_cast<double>(of.taken) /
                                               static_cast<double>(of.payload) -
                                           1))});
    if (of.blocks < sizes.size()) {
      table.notes.push_back(absl::StrCat(
          route->label, ": shared ", of.blocks,
          " tensors, evenly picked, and its times are scaled to all of them: "
          "sharing all would take longer than --budget allows"));
    }
    chart.bars.emplace_back(route->label, Median(all));
    const std::string prefix =
        absl::StrCat("tensors/", route->name, "/", link.key());
    const std::map<std::string, double> counters = {
        {"tensors_shared", static_cast<double>(of.blocks)},
        {"gpu_bytes", static_cast<double>(of.taken)},
        {"payload_bytes", static_cast<double>(of.payload)}};
    bench.results.metrics.push_back(
        {prefix + "/readable", all, -1, 1, counters});
    bench.results.metrics.push_back({prefix + "/create", create});
  }
  table.notes.emplace_back(
      "touch: within readable; the importer reads a word of every tensor, in "
      "one launch on a GPU");
  bench.results.tables.push_back(table);
  bench.results.charts.push_back(chart);
  AddTargets(bench, link, sizes.size(), legacy, pool);
}

absl::Status Run(Bench& bench) {
  const std::uint64_t max_bytes =
      bench.options.max_bytes != 0 ? bench.options.max_bytes
      : bench.options.quick        ? std::uint64_t{32} << 20
      : bench.on_gpu()             ? 0
                                   : std::uint64_t{512} << 20;
  // Each allocation takes a descriptor of the host-memory driver's.
  const int layers = bench.options.quick ? 1 : bench.on_gpu() ? 50 : 10;
  const std::vector<std::uint64_t> sizes = TensorSizes(layers, max_bytes);
  for (const std::unique_ptr<Link>& link : bench.links) {
    const std::vector<const Route*> routes = bench.RoutesFor(*link, false);
    ManyByRoute samples;
    absl::Status shared = ShareMany(bench, *link, routes, sizes, true,
                                    bench.Iterations(3), "tensors", &samples);
    if (!shared.ok()) return shared;
    Report(bench, *link, sizes, routes, samples);
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kTensors = {
    "tensors", "a model of 20,000 tensors, one handle or ticket a tensor",
    "  Timed: from the first export, with all tensors allocated and filled by "
    "the owner, until the\n"
    "  importer has read a word of each of them; transport included, in "
    "batches that are the same\n"
    "  for all routes, and imported while the next are exported. Not timed: "
    "allocating (create, in\n"
    "  a column of its own), filling, checking the contents (of each tensor "
    "all, or 48 KiB),\n"
    "  closing, making and introducing pools, 128 tensors shared before.",
    &Run};

}  // namespace bench::compare
