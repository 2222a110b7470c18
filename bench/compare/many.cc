#include "bench/compare/many.h"

#include <algorithm>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "bench/compare/connection.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

// Blocks that are shared before the measured ones, to see how long it takes
// and to have everything warm.
constexpr std::size_t kPilot = 128;
// Blocks that are shared one by one.
constexpr std::size_t kAlone = 2000;

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

void Append(std::vector<double>& all, const std::vector<double>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// Shares some of `items`, which must be closed, to count what that calls.
absl::Status CountCalls(Connection& connection, const std::vector<Item>& items,
                        ManySamples* samples) {
  ASSIGN_OR_RETURN(Shared shared, connection.Share(EvenlyPicked(items, kPilot),
                                                   {.count_calls = true}));
  samples->exporter_calls = shared.calls;
  samples->importer_calls = shared.importer.calls;
  return connection.CloseAll().status();
}

// Shares and closes `items`, of which nothing is kept.
absl::Status ShareAndClose(Connection& connection,
                           const std::vector<Item>& items, bool touch) {
  absl::Status shared = connection.Share(items, {.touch = touch}).status();
  shared.Update(connection.CloseAll().status());
  return shared;
}

// Shares some blocks over a connection of their own, which warms up both
// processes and says how many of `sizes` fit into the budget.
absl::Status Pilot(Bench& bench, const Route& route, Link& link,
                   absl::Span<const std::uint64_t> sizes, bool touch,
                   ManySamples* samples) {
  ASSIGN_OR_RETURN(
      Connection connection,
      Connection::Open(bench.gpu, route, link, bench.options.corrupt));
  absl::StatusOr<std::vector<Item>> items =
      connection.Create(EvenlyPicked(sizes, kPilot), 999);
  if (!items.ok()) return connection.End({}, items.status());
  // Twice: the first shares of a connection pay for it, and say nothing of the
  // others.
  absl::Status status = ShareAndClose(connection, *items, touch);
  const std::int64_t start = NowNs();
  if (status.ok()) status = ShareAndClose(connection, *items, touch);
  const double a_block =
      static_cast<double>(NowNs() - start) / static_cast<double>(items->size());
  status = connection.End(*items, status);
  if (samples->blocks != 0) return status;
  const double fit = bench.options.budget_s * 1e9 / a_block;
  samples->blocks = sizes.size();
  if (fit < static_cast<double>(sizes.size())) {
    samples->blocks = std::max(items->size(), static_cast<std::size_t>(fit));
  }
  return status;
}

// What a connection has cost both processes.
class Costs {
 public:
  explicit Costs(Connection& connection) : connection_(connection) {}

  // Connects, and counts from before that on.
  absl::Status Meet(ManySamples* samples) {
    ASSIGN_OR_RETURN(before_, connection_.CpuSoFar());
    left_out_ = 0;
    start_ = NowNs();
    absl::Status met = connection_.Meet();
    samples->connect.push_back(static_cast<double>(NowNs() - start_));
    return met;
  }
  // `thread_ns` of the owner were not for sharing.
  void LeaveOut(double thread_ns) { left_out_ += thread_ns; }
  std::int64_t start() const { return start_; }

  absl::Status End(ManySamples* samples) {
    ASSIGN_OR_RETURN(Connection::Cpu after, connection_.CpuSoFar());
    samples->whole_owner_cpu.push_back(
        std::max(0.0, after.owner_ns - before_.owner_ns - left_out_));
    samples->whole_importer_cpu.push_back(after.importer_ns -
                                          before_.importer_ns);
    return absl::OkStatus();
  }

 private:
  Connection& connection_;
  Connection::Cpu before_;
  double left_out_ = 0;
  std::int64_t start_ = 0;
};

absl::Status Measure(Connection& connection, Costs& costs,
                     const std::vector<Item>& items, const ManyOptions& options,
                     ManySamples* samples) {
  if (options.warm) {
    RETURN_IF_ERROR(
        ShareAndClose(connection, EvenlyPicked(items, kPilot), options.touch));
  }
  ASSIGN_OR_RETURN(Shared shared,
                   connection.Share(items, {.touch = options.touch}));
  RETURN_IF_ERROR(costs.End(samples));
  RETURN_IF_ERROR(connection.Verify());
  const auto count = static_cast<double>(items.size());
  const double exporter = shared.exporter.process_ns / count;
  const double importer = shared.importer.process_ns / count;
  samples->exporter.push_back(exporter);
  samples->importer.push_back(importer);
  samples->both.push_back(exporter + importer);
  Append(samples->exports, shared.exports);
  Append(samples->imports, shared.importer.lots);
  samples->readable.push_back(shared.total_ns);
  if (options.subscriber == Subscriber::kLate) {
    samples->whole.push_back(
        static_cast<double>(shared.importer.done_at - costs.start()));
  }
  samples->touch.push_back(shared.importer.touch_ns);
  return absl::OkStatus();
}

// Shares blocks one by one; all must be closed.
absl::Status MeasureAlone(Connection& connection,
                          const std::vector<Item>& items,
                          ManySamples* samples) {
  ASSIGN_OR_RETURN(Shared shared, connection.Share(EvenlyPicked(items, kAlone),
                                                   {.alone = true}));
  Append(samples->export_alone, shared.exports);
  Append(samples->import_alone, shared.importer.lots);
  return connection.CloseAll().status();
}

// Closes and frees, whatever `status` is of what was measured before, which is
// returned first. An importer that could not import does not share again.
absl::Status TearDown(Connection& connection, const std::vector<Item>& items,
                      const ManyOptions& options, absl::Status status,
                      ManySamples* samples) {
  absl::StatusOr<Answer> closed = connection.CloseAll();
  status.Update(closed.status());
  if (status.ok()) {
    samples->close.push_back(closed->wall_ns /
                             static_cast<double>(items.size()));
    if (options.alone) status = MeasureAlone(connection, items, samples);
    if (status.ok()) status = CountCalls(connection, items, samples);
  }
  return connection.End(items, status);
}

// The blocks of a turn, filled, and what they take. On failure nothing stays
// allocated.
absl::StatusOr<std::vector<Item>> Make(Bench& bench, Connection& connection,
                                       Costs& costs,
                                       absl::Span<const std::uint64_t> sizes,
                                       std::uint64_t seed,
                                       ManySamples* samples) {
  ASSIGN_OR_RETURN(std::uint64_t before, bench.gpu.FreeBytes());
  double create_ns = 0;
  const std::int64_t cpu = ThreadCpuNs();
  absl::StatusOr<std::vector<Item>> items =
      connection.Create(EvenlyPicked(sizes, samples->blocks), seed, &create_ns);
  costs.LeaveOut(static_cast<double>(ThreadCpuNs() - cpu));
  if (!items.ok()) return items.status();
  const absl::StatusOr<std::uint64_t> after = bench.gpu.FreeBytes();
  if (!after.ok()) {
    connection.Free(*items).IgnoreError();
    return after.status();
  }
  samples->taken = before > *after ? before - *after : 0;
  samples->create.push_back(create_ns);
  std::set<std::uint64_t> driver_blocks;
  samples->payload = 0;
  for (const Item& item : *items) {
    samples->payload += item.block.size;
    driver_blocks.insert(item.block.address >> 21);
  }
  samples->driver_blocks = driver_blocks.size();
  return items;
}

absl::Status One(Bench& bench, Link& link, const Route& route,
                 absl::Span<const std::uint64_t> sizes, std::uint64_t seed,
                 const ManyOptions& options, ManySamples* samples) {
  RETURN_IF_ERROR(Pilot(bench, route, link, sizes, options.touch, samples));
  ASSIGN_OR_RETURN(
      Connection connection,
      Connection::Own(bench.gpu, route, link, bench.options.corrupt));
  Costs costs(connection);
  const bool late = options.subscriber == Subscriber::kLate;
  if (!late) RETURN_IF_ERROR(costs.Meet(samples));
  absl::StatusOr<std::vector<Item>> items =
      Make(bench, connection, costs, sizes, seed, samples);
  if (!items.ok()) return connection.End({}, items.status());
  absl::Status met = late ? costs.Meet(samples) : absl::OkStatus();
  if (!met.ok()) return connection.End(*items, met);
  return TearDown(connection, *items, options,
                  Measure(connection, costs, *items, options, samples),
                  samples);
}

}  // namespace

const char* NameOf(Subscriber subscriber) {
  return subscriber == Subscriber::kEarly ? "early" : "late";
}

const ManySamples* Find(const ManyByRoute& samples, const Route& route) {
  const auto found = samples.find(&route);
  return found == samples.end() || found->second.readable.empty()
             ? nullptr
             : &found->second;
}

absl::Status ShareMany(Bench& bench, Link& link,
                       const std::vector<const Route*>& routes,
                       absl::Span<const std::uint64_t> sizes,
                       const ManyOptions& options, ManyByRoute* samples) {
  for (int i = 0; i < options.iterations; ++i) {
    for (const Route* route : Rotated(routes, i)) {
      ManySamples& of = (*samples)[route];
      if (!of.left_out.empty() || of.spent_ns > bench.options.budget_s * 1e9) {
        continue;
      }
      RETURN_IF_ERROR(bench.GoOn());
      const std::int64_t start = NowNs();
      bench.progress.Step(absl::StrCat(
          options.what, ", ", NameOf(options.subscriber), ", ", link.place(),
          ": ", route->label, ", ", i + 1, " of ", options.iterations));
      absl::Status done = One(bench, link, *route, sizes,
                              static_cast<std::uint64_t>(i), options, &of);
      of.spent_ns += static_cast<double>(NowNs() - start);
      if (absl::IsResourceExhausted(done)) {
        of.left_out = std::string(done.message());
        continue;
      }
      RETURN_IF_ERROR(vmm::platform::Annotate(done, route->label));
    }
  }
  return absl::OkStatus();
}

}  // namespace bench::compare
