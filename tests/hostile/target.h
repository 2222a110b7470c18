// Servers that hostile peers talk to, each in a process of its own.
#ifndef VMMSHARE_TESTS_HOSTILE_TARGET_H_
#define VMMSHARE_TESTS_HOSTILE_TARGET_H_

#include <string>
#include <vector>

#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/process_usage_posix.h"

namespace vmm::testing {

inline constexpr std::uint32_t kTargetRingBuffers = 2;
inline constexpr std::uint64_t kTargetRingBytes = 64 << 10;
inline constexpr int kTargetRingItems = 3;

// A process that serves, as the parent of the test sees it.
class Target {
 public:
  // `kind` is "endpoint", "keeper" or "ring"; it says where to find it through
  // `listener`.
  Target(const std::string& kind, platform::Listener& listener,
         const std::string& directory);
  // It ends well, within a deadline; the test fails otherwise.
  void End();

  // endpoint: the tickets of memory and of a pool. keeper: the address. ring:
  // the addresses of a writer and of a reader.
  const std::vector<std::string>& says() const { return says_; }
  ProcessUsage Uses() const { return UsageOf(child_.pid()); }
  // What its descriptors refer to, a line each.
  std::string Open() const;

 private:
  Child child_;
  platform::Channel orders_;
  std::vector<std::string> says_;
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_HOSTILE_TARGET_H_
