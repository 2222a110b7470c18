#include "bench/compare/bench.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/compare/connection.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/termination.h"

namespace bench::compare {
namespace {

absl::Status TryRoute(Bench& bench, const Route& route, Link& link) {
  ASSIGN_OR_RETURN(Connection connection,
                   Connection::Open(bench.gpu, route, link));
  const std::array<std::uint64_t, 1> sizes = {2 << 20};
  absl::StatusOr<std::vector<Item>> items = connection.Create(sizes, 1);
  if (!items.ok()) return connection.End({}, items.status());
  absl::Status status = connection.Share(*items, {.touch = true}).status();
  if (status.ok()) status = connection.Verify();
  return connection.End(*items, status);
}

}  // namespace

std::vector<const Route*> Bench::RoutesFor(const Link& link,
                                           RouteSet set) const {
  std::vector<const Route*> routes;
  for (const Route* route : Routes()) {
    const bool is_own_block = route == &routes::kLegacyIpcOwnBlock;
    const bool is_arena =
        route == &routes::kLegacyIpcArena || route == &routes::kLegacyIpcCached;
    const bool is_large = route == &routes::kPoolOfGib;
    const bool belongs = set == RouteSet::kTensors
                             ? !is_own_block
                             : !is_large && (set == RouteSet::kAll ||
                                             (!is_own_block && !is_arena));
    if (belongs && IsWanted(options.routes, route->name) &&
        !unavailable.contains({IndexOf(*route), link.place()})) {
      routes.push_back(route);
    }
  }
  return routes;
}

absl::Status Bench::GoOn() const {
  return vmm::platform::WaitForTermination(absl::Now()).ok()
             ? absl::CancelledError("this process was asked to end")
             : absl::OkStatus();
}

absl::Status TryRoutes(Bench& bench) {
  for (const std::unique_ptr<Link>& link : bench.links) {
    for (const Route* route : Routes()) {
      RETURN_IF_ERROR(bench.GoOn());
      bench.progress.Step(
          absl::StrCat("trying ", route->label, ", ", link->place()));
      absl::Status tried = TryRoute(bench, *route, *link);
      if (absl::IsDataLoss(tried) || absl::IsUnavailable(tried)) {
        return vmm::platform::Annotate(
            tried, absl::StrCat(route->label, ", ", link->place()));
      }
      if (!tried.ok()) {
        bench.unavailable[{IndexOf(*route), link->place()}] =
            std::string(tried.message());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace bench::compare
