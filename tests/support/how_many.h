// How often a test repeats what it tries by the million.
#ifndef VMMSHARE_TESTS_SUPPORT_HOW_MANY_H_
#define VMMSHARE_TESTS_SUPPORT_HOW_MANY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace vmm::testing {

// The number in the environment variable `name`, or `otherwise`: more at night,
// fewer where each takes long, as under the thread sanitizer.
inline std::uint64_t HowMany(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  std::uint64_t count = otherwise;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &count))
        << name << "=" << text << ": expected a number";
  }
  return count;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_HOW_MANY_H_
