// What every scenario works with.
#ifndef VMMSHARE_BENCH_COMPARE_BENCH_H_
#define VMMSHARE_BENCH_COMPARE_BENCH_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/compare/gpu.h"
#include "bench/compare/link.h"
#include "bench/compare/options.h"
#include "bench/compare/progress.h"
#include "bench/compare/results.h"
#include "bench/compare/route.h"

namespace bench::compare {

// Which routes a scenario is about, of those that work.
enum class RouteSet {
  kOneBlock,  // Without the arenas of legacy IPC, which are for many blocks.
  kTensors,   // Without legacy's 2 MiB a buffer, which would not fit.
  kAll,       // But for the pool of 1 GiB segments, which is for tensors.
};

struct Bench {
  Options options;
  Gpu& gpu;
  // Importers on the same GPU and, perhaps, on a peer.
  std::vector<std::unique_ptr<Link>> links = {};
  // Why a route does not work with a link, by route and place. Empty: it does.
  std::map<std::pair<std::uint32_t, std::string>, std::string> unavailable = {};
  Results results = {};
  Progress progress = {};

  // Whether somebody asked this process to end: no further turn is begun then.
  // CANCELLED if so.
  absl::Status GoOn() const;
  bool on_gpu() const { return !gpu.driver().is_host_memory(); }
  int Iterations(int usual) const {
    return options.iterations != 0 ? options.iterations
           : options.quick         ? 2
                                   : usual;
  }
  std::uint64_t MaxSize() const {
    return options.max_size != 0 ? options.max_size
           : options.quick       ? std::uint64_t{4} << 20
           : on_gpu()            ? std::uint64_t{4} << 30
                                 : std::uint64_t{64} << 20;
  }

  // The routes of `set` that were asked for and work with `link`, legacy first.
  std::vector<const Route*> RoutesFor(const Link& link, RouteSet set) const;
};

// Those of `routes`, starting with another one each time, and backwards every
// second time: what one frees the driver may still have to do with when the next
// one allocates, and that is not always to be the same one's.
template <typename T>
std::vector<T> Rotated(const std::vector<T>& routes, int turn) {
  std::vector<T> rotated = routes;
  if (!routes.empty()) {
    std::rotate(rotated.begin(),
                rotated.begin() + turn % static_cast<int>(rotated.size()),
                rotated.end());
    if (turn % 2 == 1) std::reverse(rotated.begin(), rotated.end());
  }
  return rotated;
}

// Shares 2 MiB by every route over every link; what fails is unavailable, with
// the reason. DATA_LOSS when the importer read something else.
absl::Status TryRoutes(Bench& bench);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_BENCH_H_
