// Session: the importer's half of a route, what came by it and what that took.
#ifndef VMMSHARE_BENCH_COMPARE_SESSION_H_
#define VMMSHARE_BENCH_COMPARE_SESSION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "bench/compare/clock.h"
#include "bench/compare/gather.h"
#include "bench/compare/gpu.h"
#include "bench/compare/route.h"
#include "bench/compare/wire.h"
#include "platform/ipc/channel.h"

namespace bench::compare {

class Session {
 public:
  struct Imported {
    Block block;
    std::uint32_t word = 0;  // What its owner filled it with.
  };
  // What a session fills. They are kept, empty, for the one after it: their
  // memory was used, so that no import waits for the kernel to make it.
  struct Lists {
    // With memory that was used.
    static Lists Make();
    std::vector<Imported> blocks;
    std::vector<double> lots;
  };

  // `slow_ns` is added to each import.
  Session(Gpu& gpu, Gather& gather, std::unique_ptr<Importer> importer,
          double slow_ns, Lists lists);

  // A batch, which came at `received_at`; the first error of one is Finish()'s.
  void Import(vmm::platform::Message& message, std::int64_t received_at);
  // What the batches since the last time took; `touch`: reads a word of each
  // block.
  absl::Status Finish(bool touch, Answer* answer);
  absl::Status Verify(Answer* answer) const;
  // All blocks.
  absl::Status Close();

  const std::vector<Imported>& blocks() const { return lists_.blocks; }
  Lists TakeLists() &&;

 private:
  absl::Status Touch() const;

  Gpu& gpu_;
  Gather& gather_;
  std::unique_ptr<Importer> importer_;
  double slow_ns_;
  Lists lists_;
  absl::Status status_;  // The first error of the batches.
  Meter meter_;
  Figures so_far_;  // Of the batches: transport, calls and steps.
};

// Takes that long, of wall time and of CPU time.
void Spin(double ns);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_SESSION_H_
