// For what a test relies on and does not test.
#ifndef VMMSHARE_TESTS_SUPPORT_MUST_H_
#define VMMSHARE_TESTS_SUPPORT_MUST_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"

namespace vmm::testing {

// A deadline that no passing test reaches.
inline absl::Time Late() { return absl::Now() + absl::Seconds(30); }

// The value, or the end of the program with the error.
template <typename T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) platform::Die(result.status().ToString());
  return *std::move(result);
}

inline void Must(const absl::Status& status) {
  if (!status.ok()) platform::Die(status.ToString());
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_MUST_H_
