// The importer's process: imports what the owner sends, and measures it.
#ifndef VMMSHARE_BENCH_COMPARE_IMPORTER_PROCESS_H_
#define VMMSHARE_BENCH_COMPARE_IMPORTER_PROCESS_H_

#include "absl/status/status.h"
#include "bench/compare/options.h"

namespace bench::compare {

// Serves the owner at options.connect until it hangs up. Then it closes what
// it has imported and, if options.linger names a listener, lives on until that
// one hangs up too.
absl::Status RunImporter(const Options& options);

}  // namespace bench::compare

#endif  // VMMSHARE_BENCH_COMPARE_IMPORTER_PROCESS_H_
