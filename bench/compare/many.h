// Sharing many blocks: what the scenarios kth and tensors have in common.
#ifndef VMMSHARE_BENCH_COMPARE_MANY_H_
#define VMMSHARE_BENCH_COMPARE_MANY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bench/compare/bench.h"

namespace bench::compare {

// What one route took for a number of blocks, a number for each repetition.
struct ManySamples {
  std::size_t blocks = 0;           // Shared, of those asked for.
  std::vector<double> exporter;     // CPU ns a block, of the whole process.
  std::vector<double> importer;     // Likewise.
  std::vector<double> both;         // Of exporter and importer.
  std::vector<double> exports;      // Wall ns a block, by lots of kLot.
  std::vector<double> imports;      // Likewise.
  std::vector<double> readable;     // ns from the first export to all touched.
  std::vector<double> touch;        // ns, within `readable`.
  std::vector<double> create;       // ns for all blocks.
  std::vector<double> close;        // ns a block, wall.
  std::uint64_t payload = 0;        // Bytes of the blocks that were created,
  std::uint64_t taken = 0;          // and what they took of the device.
  std::uint64_t driver_blocks = 0;  // 2 MiB of addresses that they touch.
  CallCounts exporter_calls;        // Of 128 shares more, with times that
  CallCounts importer_calls;        // count for nothing.
  double spent_ns = 0;              // Of the budget.
  std::string left_out;             // Why there is nothing.
};
using ManyByRoute = std::map<const Route*, ManySamples>;

// Shares blocks of `sizes` by each of `routes` in turns, up to `iterations`
// times. A route whose sharing would take longer than the budget makes and
// shares fewer blocks, evenly picked, from its first turn on; and one that has
// spent the budget with all that belongs to a turn has no further one. A route
// for which the memory or the descriptors do not suffice is left out, with the
// reason.
absl::Status ShareMany(Bench& bench, Link& link,
                       const std::vector<const Route*>& routes,
                       absl::Span<const std::uint64_t> sizes, bool touch,
                       int iterations, const std::string& what,
                       ManyByRoute* samples);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_MANY_H_
