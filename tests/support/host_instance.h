// Instances of the host-memory driver that a test program has to itself.
#ifndef VMMSHARE_TESTS_SUPPORT_HOST_INSTANCE_H_
#define VMMSHARE_TESTS_SUPPORT_HOST_INSTANCE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "platform/os/process.h"

namespace vmm::testing {

// `what`, of at most 15 characters, and what tells this process from all others:
// the same at each call. Not its id alone, which is reused: what an earlier test
// left running would count in this one's budget. (Once under wine a test did not
// get all of it.) At most 32 characters, as the driver wants.
inline std::string HostInstanceName(const std::string& what = "test") {
  static const auto first_asked =
      static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(
              std::chrono::steady_clock::now().time_since_epoch())
              .count()) %
      100'000'000;
  return what + "-" + std::to_string(platform::CurrentProcessId()) + "-" +
         std::to_string(first_asked);
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_HOST_INSTANCE_H_
