// The instance of the host-memory driver that a test program has to itself.
#ifndef VMMSHARE_TESTS_SUPPORT_HOST_INSTANCE_H_
#define VMMSHARE_TESTS_SUPPORT_HOST_INSTANCE_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace vmm::testing {

// Of the process `pid`, which starts now. Not by the id alone, which is reused:
// what an earlier test left running would count in this one's budget. (Once
// under wine a test did not get all of it.) At most 32 characters, as the
// driver wants.
inline std::string HostInstanceName(std::uint64_t pid) {
  const auto now = static_cast<std::uint64_t>(
      std::chrono::steady_clock::now().time_since_epoch().count());
  return "test-" + std::to_string(pid) + "-" +
         std::to_string(now % 1'000'000'000'000);
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_HOST_INSTANCE_H_
