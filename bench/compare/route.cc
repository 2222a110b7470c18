#include "bench/compare/route.h"

#include <array>

namespace bench::compare {

absl::Span<const Route> Routes() {
  static const std::array<Route, 6> kAll = {
      routes::kLegacyIpc, routes::kStreamPoolIpc, routes::kBareCalls,
      routes::kDedicated, routes::kPool,          routes::kLegacyIpcOwnBlock};
  return kAll;
}

const Route* FindRoute(const std::string& name) {
  for (const Route& route : Routes()) {
    if (name == route.name) return &route;
  }
  return nullptr;
}

std::size_t IndexOf(const Route& route) {
  return static_cast<std::size_t>(&route - Routes().data());
}

}  // namespace bench::compare
