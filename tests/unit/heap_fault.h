// What tests of a heap's CheckInvariants() have in common.
#ifndef VMMSHARE_TESTS_UNIT_HEAP_FAULT_H_
#define VMMSHARE_TESTS_UNIT_HEAP_FAULT_H_

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"

namespace vmm::pool {

// The check found a fault, and says it in these words.
inline void ExpectFault(const absl::Status& checked, const std::string& words) {
  EXPECT_EQ(checked.code(), absl::StatusCode::kInternal) << words;
  EXPECT_TRUE(absl::StrContains(checked.message(), words))
      << "expected: " << words << "\nsaid: " << checked;
}

}  // namespace vmm::pool

#endif  // VMMSHARE_TESTS_UNIT_HEAP_FAULT_H_
