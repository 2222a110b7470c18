// Must: the value, or the end of a benchmark with the error.
#ifndef VMMSHARE_BENCH_MUST_H_
#define VMMSHARE_BENCH_MUST_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bench {

inline void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

}  // namespace bench

#endif  // VMMSHARE_BENCH_MUST_H_
