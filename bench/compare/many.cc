#include "bench/compare/many.h"

#include <algorithm>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "bench/compare/connection.h"

namespace bench::compare {
namespace {

// Blocks that are shared before the measured ones, to see how long it takes
// and to have everything warm.
constexpr std::size_t kPilot = 128;

// `count` of `all`, or all if there are fewer.
template <typename Container>
auto EvenlyPicked(const Container& all, std::size_t count) {
  count = std::min(count, all.size());
  std::vector<std::remove_cv_t<typename Container::value_type>> picked;
  picked.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    picked.push_back(all[all.size() * i / count]);
  }
  return picked;
}

// Shares some of `items`, which must be closed, to count what that calls.
absl::Status CountCalls(Connection& connection, const std::vector<Item>& items,
                        ManySamples* samples) {
  absl::StatusOr<Shared> shared =
      connection.Share(EvenlyPicked(items, kPilot), {.count_calls = true});
  if (!shared.ok()) return shared.status();
  samples->exporter_calls = shared->calls;
  samples->importer_calls = shared->importer.calls;
  return connection.CloseAll().status();
}

// Closes and frees whatever happened before.
absl::Status TearDown(Connection& connection, const std::vector<Item>& items,
                      ManySamples* samples) {
  absl::StatusOr<Answer> closed = connection.CloseAll();
  absl::Status status = closed.status();
  if (closed.ok()) {
    samples->close.push_back(closed->wall_ns /
                             static_cast<double>(items.size()));
    status = CountCalls(connection, items, samples);
  }
  status.Update(connection.Free(items).status());
  status.Update(connection.Shut());
  return status;
}

// How many of `sizes` fit into the budget.
absl::Status Pilot(Bench& bench, Connection& connection,
                   absl::Span<const std::uint64_t> sizes, bool touch,
                   ManySamples* samples) {
  absl::StatusOr<std::vector<Item>> items =
      connection.Create(EvenlyPicked(sizes, kPilot), 999);
  if (!items.ok()) return items.status();
  const std::int64_t start = NowNs();
  absl::Status status = connection.Share(*items, {.touch = touch}).status();
  status.Update(connection.CloseAll().status());
  const double a_block =
      static_cast<double>(NowNs() - start) / static_cast<double>(items->size());
  status.Update(connection.Free(*items).status());
  if (samples->blocks != 0) return status;
  const double fit = bench.options.budget_s * 1e9 / a_block;
  samples->blocks = sizes.size();
  if (fit < static_cast<double>(sizes.size())) {
    samples->blocks = std::max(items->size(), static_cast<std::size_t>(fit));
  }
  return status;
}

absl::Status Measure(Connection& connection, const std::vector<Item>& items,
                     bool touch, ManySamples* samples) {
  absl::StatusOr<Shared> shared = connection.Share(items, {.touch = touch});
  if (!shared.ok()) return shared.status();
  if (absl::Status right = connection.Verify(); !right.ok()) return right;
  const auto count = static_cast<double>(items.size());
  const double exporter = shared->exporter.process_ns / count;
  const double importer = shared->importer.process_ns / count;
  samples->exporter.push_back(exporter);
  samples->importer.push_back(importer);
  samples->both.push_back(exporter + importer);
  samples->exports.insert(samples->exports.end(), shared->exports.begin(),
                          shared->exports.end());
  samples->imports.insert(samples->imports.end(), shared->importer.lots.begin(),
                          shared->importer.lots.end());
  samples->readable.push_back(shared->total_ns);
  samples->touch.push_back(shared->importer.touch_ns);
  return absl::OkStatus();
}

absl::Status One(Bench& bench, Link& link, const Route& route,
                 absl::Span<const std::uint64_t> sizes, std::uint64_t seed,
                 bool touch, ManySamples* samples) {
  absl::StatusOr<Connection> connection =
      Connection::Open(bench.gpu, route, link, bench.options.corrupt);
  if (!connection.ok()) return connection.status();
  absl::StatusOr<std::uint64_t> before = bench.gpu.FreeBytes();
  if (!before.ok()) return before.status();
  // Every time: it warms everything up, too.
  if (absl::Status tried = Pilot(bench, *connection, sizes, touch, samples);
      !tried.ok()) {
    return tried;
  }
  double create_ns = 0;
  absl::StatusOr<std::vector<Item>> items = connection->Create(
      EvenlyPicked(sizes, samples->blocks), seed, &create_ns);
  if (absl::IsResourceExhausted(items.status())) {
    samples->left_out = std::string(items.status().message());
    return connection->Shut();
  }
  if (!items.ok()) return items.status();
  absl::StatusOr<std::uint64_t> after = bench.gpu.FreeBytes();
  if (!after.ok()) return after.status();
  samples->taken = *before > *after ? *before - *after : 0;
  samples->create.push_back(create_ns);
  std::set<std::uint64_t> driver_blocks;
  samples->payload = 0;
  for (const Item& item : *items) {
    samples->payload += item.block.size;
    driver_blocks.insert(item.block.address >> 21);
  }
  samples->driver_blocks = driver_blocks.size();

  absl::Status status = Measure(*connection, *items, touch, samples);
  absl::Status ended = TearDown(*connection, *items, samples);
  if (absl::IsResourceExhausted(status)) {
    samples->left_out = std::string(status.message());
    return ended;
  }
  return status.ok() ? ended : status;
}

}  // namespace

absl::Status ShareMany(Bench& bench, Link& link,
                       const std::vector<const Route*>& routes,
                       absl::Span<const std::uint64_t> sizes, bool touch,
                       int iterations, const std::string& what,
                       ManyByRoute* samples) {
  for (int i = 0; i < iterations; ++i) {
    for (const Route* route : Rotated(routes, i)) {
      ManySamples& of = (*samples)[route];
      if (!of.left_out.empty() || of.spent_ns > bench.options.budget_s * 1e9) {
        continue;
      }
      const std::int64_t start = NowNs();
      bench.progress.Step(absl::StrCat(what, ", ", link.place(), ": ",
                                       route->label, ", ", i + 1, " of ",
                                       iterations));
      absl::Status done = One(bench, link, *route, sizes,
                              static_cast<std::uint64_t>(i), touch, &of);
      of.spent_ns += static_cast<double>(NowNs() - start);
      if (!done.ok()) {
        return absl::Status(done.code(),
                            absl::StrCat(route->label, ": ", done.message()));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace bench::compare
