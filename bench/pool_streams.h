// What a pool costs under programs with many streams, beside the driver's own
// pool: how much it reserves for what is live, and how long an operation takes.
#ifndef VMMSHARE_BENCH_POOL_STREAMS_H_
#define VMMSHARE_BENCH_POOL_STREAMS_H_

#include "vmm/memory/device.h"

namespace vmm::bench {

// Prints a table: random allocations of 4 KiB to 1 MiB, 50 to 100 live blocks a
// stream (fewer above 64 streams, 3,200 to 6,400 in all); then one block
// allocated and freed on one stream after another. `most`: streams in the last
// row. False when an allocation of ours failed.
bool PrintStreamTable(const Device& device, int most);

// Prints the time of an operation, at the start and after `operations` of
// them, with 3,000 blocks live.
bool PrintLongRun(const Device& device, long operations);

}  // namespace vmm::bench

#endif  // VMMSHARE_BENCH_POOL_STREAMS_H_
