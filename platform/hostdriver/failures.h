// Failure injection: which call is to fail, and how often each was made.
#ifndef VMMSHARE_PLATFORM_HOSTDRIVER_FAILURES_H_
#define VMMSHARE_PLATFORM_HOSTDRIVER_FAILURES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "platform/hostdriver/cuda_api.h"

namespace vmm::hostdriver {

// Thread-safe.
class Failures {
 public:
  // The one of the library; on first use it takes VMMSHARE_HOST_FAIL.
  static Failures& Get();

  // Replaces the rules and counts anew. False, and nothing changes, when
  // `rules` cannot be understood: host_driver.h has the grammar.
  bool Set(std::string_view rules);
  // Counts a call of `entry` and answers what it must fail with, if so.
  CUresult Count(const char* entry);
  // The calls of `entry` since Set(); of all for "*".
  std::uint64_t Calls(const std::string& entry) const;

 private:
  struct Rule {
    std::string entry;
    std::uint64_t nth = 0;
    bool onwards = false;
    CUresult result = CUDA_SUCCESS;
  };
  static bool Parse(std::string_view text, Rule* rule);

  mutable std::mutex mu_;
  std::vector<Rule> rules_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::uint64_t all_ = 0;
};

}  // namespace vmm::hostdriver

#endif  // VMMSHARE_PLATFORM_HOSTDRIVER_FAILURES_H_
