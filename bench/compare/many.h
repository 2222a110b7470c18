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

// When the importer comes.
enum class Subscriber {
  kEarly,  // Before the blocks are made: what a route does for it meanwhile, in
           // the background, is not in the times of sharing.
  kLate,   // When all blocks are there, and filled.
};
inline constexpr Subscriber kSubscribers[] = {Subscriber::kEarly,
                                              Subscriber::kLate};
// "early", "late".
const char* NameOf(Subscriber subscriber);

struct ManyOptions {
  std::string what;  // For the progress line.
  Subscriber subscriber = Subscriber::kEarly;
  int iterations = 1;
  // Reads a word of each block at the importer, within the times.
  bool touch = false;
  // Shares and closes 128 of the blocks before the measured ones over the same
  // connection, so that everything there is warm.
  bool warm = false;
  // Shares blocks one by one as well, after the measured ones.
  bool alone = false;
};

// What one route took for a number of blocks, a number for each repetition.
struct ManySamples {
  std::size_t blocks = 0;            // Shared, of those asked for.
  std::vector<double> exporter;      // CPU ns a block, of the whole process.
  std::vector<double> importer;      // Likewise.
  std::vector<double> both;          // Of exporter and importer.
  std::vector<double> exports;       // Wall ns a block, by lots of kLot.
  std::vector<double> imports;       // Likewise.
  std::vector<double> export_alone;  // Wall ns of a block by itself.
  std::vector<double> import_alone;  // Likewise.
  std::vector<double> connect;       // Wall ns until the importer is welcome.
  // From connecting to the end of sharing: wall ns, not for an early
  // subscriber, to whom the owner's own work comes between; and CPU ns of each
  // process, all threads, but for the owner's own making and filling.
  std::vector<double> whole;
  std::vector<double> whole_owner_cpu;
  std::vector<double> whole_importer_cpu;
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
// Null when there are no figures of `route`.
const ManySamples* Find(const ManyByRoute& samples, const Route& route);

// Shares blocks of `sizes` by each of `routes` in turns, up to `iterations`
// times. Every turn has a new connection, after one of 128 blocks that is not
// counted. A route whose sharing would take longer than the budget makes and
// shares fewer blocks, evenly picked, from its first turn on; and one that has
// spent the budget with all that belongs to a turn has no further one. A route
// for which the memory or the descriptors do not suffice is left out, with the
// reason.
absl::Status ShareMany(Bench& bench, Link& link,
                       const std::vector<const Route*>& routes,
                       absl::Span<const std::uint64_t> sizes,
                       const ManyOptions& options, ManyByRoute* samples);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_MANY_H_
