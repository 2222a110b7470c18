#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/compare/bench.h"
#include "bench/compare/connection.h"
#include "bench/compare/os.h"
#include "bench/compare/scenarios.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"

namespace bench::compare {
namespace {

constexpr std::uint64_t kSize = 64 << 10;

struct Snapshot {
  std::uint64_t free = 0;
  Usage owner;
  Usage importer;
};

absl::StatusOr<Snapshot> Take(const Bench& bench, Link& link) {
  Snapshot snapshot;
  ASSIGN_OR_RETURN(snapshot.free, bench.gpu.FreeBytes());
  snapshot.owner = {AddressSpaceBytes(), OpenHandles()};
  ASSIGN_OR_RETURN(Answer answer, link.Ask(kUsage, Writer()));
  snapshot.importer = answer.usage;
  return snapshot;
}

double Difference(std::uint64_t more, std::uint64_t less) {
  return static_cast<double>(more) - static_cast<double>(less);
}

absl::StatusOr<Snapshot> ShareAndTake(const Bench& bench, Link& link,
                                      Connection& connection,
                                      const std::vector<Item>& items) {
  RETURN_IF_ERROR(connection.Share(items, {}).status());
  RETURN_IF_ERROR(connection.Verify());
  return Take(bench, link);
}

absl::Status One(Bench& bench, Link& link, const Route& route,
                 std::uint64_t blocks, Table* table) {
  ASSIGN_OR_RETURN(Snapshot before, Take(bench, link));
  ASSIGN_OR_RETURN(
      Connection connection,
      Connection::Open(bench.gpu, route, link, bench.options.corrupt));
  const std::vector<std::uint64_t> sizes(blocks, kSize);
  absl::StatusOr<std::vector<Item>> items = connection.Create(sizes, blocks);
  if (!items.ok()) return connection.End({}, items.status());
  absl::StatusOr<Snapshot> during =
      ShareAndTake(bench, link, connection, *items);
  RETURN_IF_ERROR(connection.End(*items, during.status()));
  ASSIGN_OR_RETURN(Snapshot after, Take(bench, link));

  const double gpu = Difference(before.free, during->free);
  const double payload = static_cast<double>(blocks * kSize);
  const double owner_space =
      Difference(during->owner.address_space, before.owner.address_space);
  const double importer_space =
      Difference(during->importer.address_space, before.importer.address_space);
  const double owner_handles =
      Difference(during->owner.handles, before.owner.handles);
  const double importer_handles =
      Difference(during->importer.handles, before.importer.handles);
  const double left = Difference(before.free, after.free);
  table->rows.push_back(
      {route.label, BytesText(gpu), absl::StrFormat("%.2f", gpu / payload),
       BytesText(owner_space), BytesText(importer_space),
       absl::StrFormat("%.0f", owner_handles),
       absl::StrFormat("%.0f", importer_handles), BytesText(left)});
  bench.results.metrics.push_back(
      {absl::StrCat("footprint/", route.name, "/", link.key()),
       {0},
       0,
       1,
       {{"gpu_bytes", gpu},
        {"payload_bytes", payload},
        {"owner_address_space_bytes", owner_space},
        {"importer_address_space_bytes", importer_space},
        {"owner_descriptors", owner_handles},
        {"importer_descriptors", importer_handles},
        {"gpu_bytes_afterwards", left}}});
  return absl::OkStatus();
}

absl::Status Run(Bench& bench) {
  const std::uint64_t blocks = bench.options.quick ? 100 : 1000;
  for (const std::unique_ptr<Link>& link : bench.links) {
    Table table;
    table.title = absl::StrFormat("What %d shared blocks of 64 KiB take, %s",
                                  blocks, link->place());
    table.header = {
        "route",      "GPU bytes",           "x payload",  "owner's addresses",
        "importer's", "owner's descriptors", "importer's", "GPU bytes left"};
    table.notes = {
        "GPU bytes: fall of cuMemGetInfo's free bytes while shared; left: "
        "after all was closed, freed and shut",
        "addresses: rise of the process's address space (VmSize), which a "
        "driver takes in steps and keeps"};
    for (const Route* route : bench.RoutesFor(*link, RouteSet::kOneBlock)) {
      RETURN_IF_ERROR(bench.GoOn());
      bench.progress.Step(
          absl::StrCat("footprint: ", route->label, ", ", link->place()));
      absl::Status done = One(bench, *link, *route, blocks, &table);
      if (absl::IsResourceExhausted(done)) {
        table.notes.push_back(
            absl::StrCat(route->label, ": not available: ", done.message()));
        continue;
      }
      RETURN_IF_ERROR(vmm::platform::Annotate(done, route->label));
    }
    bench.results.tables.push_back(table);
  }
  return absl::OkStatus();
}

}  // namespace

const Scenario scenarios::kFootprint = {
    "footprint",
    "GPU bytes, address space and descriptors of 1,000 shared blocks",
    R"(  Nothing is timed. Counted while 1,000 blocks of 64 KiB are shared, against just before the
  route was opened: free bytes of the device, address space and open descriptors of both
  processes; then the free bytes again after everything was given back.)",
    &Run};

}  // namespace bench::compare
