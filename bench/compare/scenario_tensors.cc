#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/many.h"
#include "bench/compare/scenarios.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

constexpr std::uint64_t kHidden = 2048;
constexpr std::uint64_t kExperts = 64;
constexpr std::uint64_t kExpertWidth = 768;
constexpr std::uint64_t kHeads = 4096;    // Query heads times their width.
constexpr std::uint64_t kKeyHeads = 512;  // Key and value heads likewise.
constexpr std::uint64_t kHeadWidth = 128;
constexpr std::uint64_t kWords = 151'936;  // Of the vocabulary.

// An 8-bit matrix and its scales.
void AddMatrix(std::uint64_t rows, std::uint64_t columns,
               std::vector<std::uint64_t>* sizes) {
  constexpr std::uint64_t kScaled = 128;
  sizes->push_back(rows * columns);
  sizes->push_back((rows / kScaled) * (columns / kScaled) * 4);
}

void AddLayer(std::vector<std::uint64_t>* sizes) {
  constexpr std::uint64_t kHalf = 2;  // Bytes of a 16-bit number.
  for (std::uint64_t i = 0; i < kExperts; ++i) {
    AddMatrix(kHidden, kExpertWidth, sizes);  // Gate.
    AddMatrix(kHidden, kExpertWidth, sizes);  // Up.
    AddMatrix(kExpertWidth, kHidden, sizes);  // Down.
  }
  AddMatrix(kHidden, kHeads, sizes);
  AddMatrix(kHidden, kKeyHeads, sizes);
  AddMatrix(kHidden, kKeyHeads, sizes);
  AddMatrix(kHeads, kHidden, sizes);
  sizes->push_back(kHidden * kHalf);     // Norm before attention,
  sizes->push_back(kHidden * kHalf);     // and after it.
  sizes->push_back(kHeadWidth * kHalf);  // Norms of query and key.
  sizes->push_back(kHeadWidth * kHalf);
  sizes->push_back(kHeads * kHalf);  // Biases of query and key.
  sizes->push_back(kKeyHeads * kHalf);
  sizes->push_back(kHidden * kExperts * kHalf);  // Router,
  sizes->push_back(kExperts * kHalf);            // and its bias.
}

// A mixture-of-experts transformer in 8-bit floating point with a scale for
// each block of 128 x 128: hidden 2,048, 64 experts of 768 a layer, 400 tensors
// a layer, and embedding, final norm and head in 16 bits. Of 50 layers that is
// 20,003 tensors and 16.2 GiB: half of them matrices of 1.5 MiB, nearly half of
// them scales of 384 bytes.
//
// Every size is scaled down by the same factor when all together exceed
// `max_bytes` (0: no limit), and rounded up to 256 bytes.
std::vector<std::uint64_t> TensorSizes(int layers, std::uint64_t max_bytes) {
  std::vector<std::uint64_t> sizes;
  sizes.push_back(kWords * kHidden * 2);
  for (int i = 0; i < layers; ++i) AddLayer(&sizes);
  sizes.push_back(kHidden * 2);
  sizes.push_back(kWords * kHidden * 2);
  const std::uint64_t total =
      std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  const double scale =
      max_bytes == 0 || total <= max_bytes
          ? 1
          : static_cast<double>(max_bytes) / static_cast<double>(total);
  for (std::uint64_t& size : sizes) {
    size = static_cast<std::uint64_t>(static_cast<double>(size) * scale);
    size = std::max<std::uint64_t>(256, (size + 255) / 256 * 256);
  }
  return sizes;
}

// In words.
std::string DescribeTensors(const std::vector<std::uint64_t>& sizes) {
  std::vector<std::uint64_t> sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  const std::uint64_t total =
      std::accumulate(sorted.begin(), sorted.end(), std::uint64_t{0});
  const auto under = [&](std::uint64_t bound) {
    return std::lower_bound(sorted.begin(), sorted.end(), bound) -
           sorted.begin();
  };
  return absl::StrFormat(
      "%d tensors of a mixture-of-experts transformer in 8 bits (64 experts a "
      "layer, a scale for each 128 x 128), %s in all: %d under 4 KiB, %d of 4 "
      "KiB to 1 MiB, %d larger; median %s, largest %s",
      sizes.size(), BytesText(total), under(4096), under(1 << 20) - under(4096),
      static_cast<std::ptrdiff_t>(sizes.size()) - under(1 << 20),
      BytesText(sorted[sorted.size() / 2]), BytesText(sorted.back()));
}

// One subscriber on one link, by every route.
struct Turns {
  Subscriber subscriber;
  std::size_t tensors = 0;
  ManyByRoute samples = {};

  // `ns` of a route, scaled to all tensors where it shared only some of them.
  std::vector<double> ForAll(std::vector<double> ns,
                             const ManySamples& of) const {
    for (double& sample : ns) {
      sample *= static_cast<double>(tensors) / static_cast<double>(of.blocks);
    }
    return ns;
  }
  // Until the importer has read a word of each: an early subscriber from the
  // first export on, a late one from connecting on.
  std::vector<double> Readable(const ManySamples& of) const {
    return ForAll(subscriber == Subscriber::kLate ? of.whole : of.readable, of);
  }
  // How many times as long `a` takes as `b`.
  std::optional<double> Ratio(const Route& a, const Route& b) const {
    const ManySamples* const of_a = Find(samples, a);
    const ManySamples* const of_b = Find(samples, b);
    if (of_a == nullptr || of_b == nullptr) return std::nullopt;
    return Median(Readable(*of_a)) / Median(Readable(*of_b));
  }
};

void AddTargets(Bench& bench, const Link& link, const Turns& early,
                const Turns& late) {
  Target ratio;
  ratio.name =
      absl::StrCat("the model's tensors, pool over legacy, ", link.place());
  // What a late subscriber gets: legacy opens the same handles for it, while
  // the pool's segments have to be handed over and mapped first.
  ratio.floor = link.key() == "peer" ? 15 : 30;
  ratio.aim = 100;
  ratio.unit = "x";
  ratio.remark = "a handle each; until the importer has read a word of each";
  bench.results.targets.push_back(
      WorseOf(ratio, early.Ratio(routes::kLegacyIpc, routes::kPool),
              late.Ratio(routes::kLegacyIpc, routes::kPool)));

  // Of the late one alone: to an early one sharing is a few lookups either way.
  Target arena;
  arena.name = absl::StrCat(
      "the model's tensors, late, pool's time over a legacy arena's, ",
      link.place());
  // One open of legacy maps a piece; a segment takes five calls.
  arena.floor = link.key() == "peer" ? 2.5 : 3.5;
  arena.aim = 1;
  arena.at_least = false;
  arena.remark = "from connecting until the importer has read a word of each";
  arena.measured = late.Ratio(routes::kPool, routes::kLegacyIpcArena);
  bench.results.targets.push_back(arena);
  // Of equally large pieces.
  arena.name = absl::StrCat(
      "the same, the pool's segments as large as the arena's pieces, ",
      link.place());
  arena.floor = 2.5;
  arena.measured = late.Ratio(routes::kPoolOfGib, routes::kLegacyIpcArena);
  bench.results.targets.push_back(arena);

  Target waste;
  waste.name = absl::StrCat("waste of the model in the pool, ", link.place());
  waste.floor = waste.aim = 5;
  waste.at_least = false;
  waste.unit = " %";
  waste.remark = "over the payload, rounded up to a segment of 1 GiB";
  const auto of = [](const Turns& run) -> std::optional<double> {
    const ManySamples* const pool = Find(run.samples, routes::kPool);
    if (pool == nullptr) return std::nullopt;
    constexpr double kSegment = 1 << 30;
    const double allowed =
        std::ceil(static_cast<double>(pool->payload) / kSegment) * kSegment;
    return std::max(0.0,
                    100 * (static_cast<double>(pool->taken) / allowed - 1));
  };
  bench.results.targets.push_back(WorseOf(waste, of(early), of(late)));
}

void AddMetrics(Bench& bench, const Link& link, const Route& route,
                const Turns& run, const ManySamples& of) {
  const std::string prefix = absl::StrCat(
      "tensors/", route.name, "/", link.key(), "/", NameOf(run.subscriber));
  const std::map<std::string, double> counters = {
      {"tensors_shared", static_cast<double>(of.blocks)},
      {"gpu_bytes", static_cast<double>(of.taken)},
      {"payload_bytes", static_cast<double>(of.payload)}};
  const double cpu = Median(run.ForAll(of.whole_owner_cpu, of)) +
                     Median(run.ForAll(of.whole_importer_cpu, of));
  bench.results.metrics.push_back(
      {prefix + "/readable", run.Readable(of), cpu, 1, counters});
  bench.results.metrics.push_back(
      {prefix + "/create", run.ForAll(of.create, of)});
  bench.results.metrics.push_back({prefix + "/connect", of.connect});
}

void Report(Bench& bench, const Link& link,
            const std::vector<std::uint64_t>& sizes,
            const std::vector<const Route*>& routes, Turns& run) {
  const bool late = run.subscriber == Subscriber::kLate;
  const char* const timed =
      late ? "from connecting to readable, with all tensors there before"
           : "from the first export to readable, connected before there were "
             "tensors";
  Table table;
  table.title = absl::StrCat("A model's tensors, ", NameOf(run.subscriber),
                             " subscriber: ", timed, ", ", link.place());
  table.header = {"route",      "shared",      "readable p50", "worst",
                  "to legacy",  "to arena",    "connect",      "touch",
                  "CPU, owner", "importer",    "create",       "close a tensor",
                  "GPU bytes",  "over payload"};
  table.notes.push_back(DescribeTensors(sizes));
  Chart chart;
  chart.file =
      absl::StrCat("tensors_", NameOf(run.subscriber), "_", link.key());
  chart.title =
      absl::StrCat("Sharing a model of ", sizes.size(), " tensors, ",
                   NameOf(run.subscriber), " subscriber, ", link.place());
  chart.y_label = late ? "from connecting to readable"
                       : "from the first export to readable";
  for (const Route* route : routes) {
    const ManySamples& of = run.samples[route];
    if (of.readable.empty()) {
      table.notes.push_back(
          absl::StrCat(route->label, ": not available: ", of.left_out));
      continue;
    }
    const std::vector<double> all = run.Readable(of);
    const auto faster_than = [&](const Route& than) {
      const std::optional<double> ratio = run.Ratio(than, *route);
      return ratio.has_value() ? RatioText(*ratio) : "-";
    };
    table.rows.push_back(
        {route->label, absl::StrCat(of.blocks), TimeTextOr(all, 50),
         TimeTextOr(all, 100), faster_than(routes::kLegacyIpc),
         faster_than(routes::kLegacyIpcArena), TimeTextOr(of.connect, 50),
         TimeTextOr(of.touch, 50),
         TimeTextOr(run.ForAll(of.whole_owner_cpu, of), 50),
         TimeTextOr(run.ForAll(of.whole_importer_cpu, of), 50),
         TimeTextOr(run.ForAll(of.create, of), 50), TimeTextOr(of.close, 50),
         BytesText(of.taken),
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
    AddMetrics(bench, link, *route, run, of);
  }
  table.notes.emplace_back(
      "touch: within readable; the importer reads a word of every tensor, in "
      "one launch on a GPU");
  table.notes.emplace_back(
      "CPU: of each process with all its threads, from before connecting until "
      "all is readable, less the owner's own allocating and filling; connect: "
      "wall time until the importer is welcome");
  bench.results.tables.push_back(table);
  bench.results.charts.push_back(chart);
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
    const std::vector<const Route*> routes =
        bench.RoutesFor(*link, RouteSet::kTensors);
    std::vector<Turns> runs;
    for (const Subscriber subscriber : kSubscribers) {
      Turns& run = runs.emplace_back(Turns{subscriber, sizes.size()});
      RETURN_IF_ERROR(ShareMany(bench, *link, routes, sizes,
                                {.what = "tensors",
                                 .subscriber = subscriber,
                                 .iterations = bench.Iterations(3),
                                 .touch = true},
                                &run.samples));
      Report(bench, *link, sizes, routes, run);
    }
    AddTargets(bench, *link, runs[0], runs[1]);
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kTensors = {
    "tensors", "a model of 20,000 tensors, one handle or ticket a tensor",
    R"(  Two subscribers. Timed for the early one, which has connected before there were tensors: from
  the first export, with all tensors allocated and filled by the owner, until the importer has
  read a word of each of them. For the late one, which comes when all are there: from connecting
  on, so with everything that a route hands over and maps for it. Transport included, in batches
  that are the same for all routes, and imported while the next are exported. CPU of both
  processes, for both subscribers from connecting on, what happens in the background included.
  Not timed: allocating (create, in a column of its own), filling, checking the contents (of each
  tensor all, or 48 KiB), closing, making pools, 128 tensors shared before over another
  connection.)",
    &Run};

}  // namespace bench::compare
