// Connection: one route, opened between this process and an importer's.
#ifndef VMMSHARE_BENCH_COMPARE_CONNECTION_H_
#define VMMSHARE_BENCH_COMPARE_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/compare/clock.h"
#include "bench/compare/gpu.h"
#include "bench/compare/link.h"
#include "bench/compare/route.h"
#include "bench/compare/wire.h"

namespace bench::compare {

// A block of the owner's, and the word that fills it.
struct Item {
  Block block;
  std::uint32_t word = 0;
};

// What sharing some blocks took, closing and freeing excluded.
struct Shared {
  Meter exporter;               // Exporting alone.
  std::vector<double> exports;  // ns a block, of each lot of kLot blocks, or
                                // of each block where that is alone.
  CallCounts calls;             // Of exporting.
  Answer importer;
  double total_ns = 0;  // From the first export to the last import (or touch).
};

class Connection {
 public:
  // Own() and Meet().
  static absl::StatusOr<Connection> Open(Gpu& gpu, const Route& route,
                                         Link& link, bool corrupt = false);
  // Makes the owner's half, of which the importer knows nothing yet.
  static absl::StatusOr<Connection> Own(Gpu& gpu, const Route& route,
                                        Link& link, bool corrupt = false);
  // Introduces it, and opens the importer's half. Once.
  absl::Status Meet();

  // Blocks of `sizes`, filled; the fill is not in `create_ns`. On failure
  // nothing stays allocated.
  absl::StatusOr<std::vector<Item>> Create(
      absl::Span<const std::uint64_t> sizes, std::uint64_t seed,
      double* create_ns = nullptr);
  // In batches, which the importer imports while the next are exported.
  absl::StatusOr<Shared> Share(absl::Span<const Item> items,
                               const ShareOptions& options);
  // DATA_LOSS when the importer reads something else than was written.
  absl::Status Verify() { return link_->Ask(kVerify, *route_).status(); }
  absl::StatusOr<Answer> CloseAll() { return link_->Ask(kCloseAll, *route_); }
  // Returns the time it took.
  absl::StatusOr<double> Free(absl::Span<const Item> items);
  // Ends both halves. Everything must be closed and freed.
  absl::Status Shut();
  // Closes all, frees `items` and ends both halves, whatever came before: what
  // one route keeps the next one lacks. Returns `before`, if that is no error
  // the first one of these.
  absl::Status End(absl::Span<const Item> items, absl::Status before);

  // CPU time of both processes so far, with all their threads.
  struct Cpu {
    double owner_ns = 0;
    double importer_ns = 0;
  };
  absl::StatusOr<Cpu> CpuSoFar();

  Owner& owner() { return *owner_; }
  double setup_ns() const { return setup_ns_; }

 private:
  Connection(Gpu& gpu, const Route& route, Link& link, bool corrupt)
      : gpu_(&gpu), route_(&route), link_(&link), corrupt_(corrupt) {}

  Gpu* gpu_;
  const Route* route_;
  Link* link_;
  bool corrupt_;
  std::unique_ptr<Owner> owner_;
  double setup_ns_ = 0;
};

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_CONNECTION_H_
