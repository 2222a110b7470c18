// What a process holds: for a comparison of before and after.
#ifndef VMMSHARE_TESTS_SUPPORT_PROCESS_USAGE_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_PROCESS_USAGE_POSIX_H_

#include <cstddef>
#include <cstdint>

namespace vmm::testing {

struct ProcessUsage {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t resident = 0;  // Bytes.
};

// Of a process that has not been waited for, by its /proc.
ProcessUsage UsageOf(std::int64_t pid);

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_PROCESS_USAGE_POSIX_H_
