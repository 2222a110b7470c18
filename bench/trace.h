// Trace: what a program asked of an allocator, in order, to be asked again.
//
// Text, one event a line; traces/record.py makes it from PyTorch programs:
//
//   vmmshare-trace 1
//   what the program was
//   with what it was recorded
//   3 events, 2 streams
//   + 524288 0                 allocate bytes, for work on a stream
//   + 4096 1
//   - 0 0                      free the allocation of that number, counted
//                              from 0, on a stream
//   end
//
// What is not freed at the end stays live there.
#ifndef VMMSHARE_BENCH_TRACE_H_
#define VMMSHARE_BENCH_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bench {

struct TraceEvent {
  bool allocates = true;
  std::uint64_t size = 0;      // Bytes.
  std::uint32_t stream = 0;    // Below Trace::streams.
  std::size_t allocation = 0;  // Its number.
};

// A value. Parsed ones are sound: every free is of an allocation that is live
// then.
struct Trace {
  std::string program;
  std::string recorded_with;
  std::uint32_t streams = 0;
  std::size_t allocations = 0;
  std::uint64_t peak_live = 0;  // Bytes.
  std::vector<TraceEvent> events;
};

// Total: takes any text. INVALID_ARGUMENT names the line and what is wrong with
// it: no trace, a damaged line, an end in the middle, a free of what is not
// live; UNIMPLEMENTED for a newer version.
absl::StatusOr<Trace> ParseTrace(absl::string_view text);

// That of a file. NOT_FOUND and others as the system says; errors of
// ParseTrace() name the file.
absl::StatusOr<Trace> ReadTrace(const std::string& path);

}  // namespace bench

#endif  // VMMSHARE_BENCH_TRACE_H_
