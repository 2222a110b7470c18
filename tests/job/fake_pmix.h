// A libpmix that answers as a test tells it to; fake_pmix.cc is the library.
#ifndef VMMSHARE_TESTS_JOB_FAKE_PMIX_H_
#define VMMSHARE_TESTS_JOB_FAKE_PMIX_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/pmix_abi.h"

namespace vmm::testing {

// What the library answers, and what it was told. Not thread-safe.
struct FakePmix {
  // Of a call that calls back.
  struct Call {
    fabric::pmix::Status asked = fabric::pmix::kSuccess;
    // Nothing: it does not call back until a test does, by `held`.
    std::optional<fabric::pmix::Status> answer = fabric::pmix::kSuccess;
  };

  const char* version = "OpenPMIx 4.2.2 (PMIx Standard: 4.2, Stable ABI: 0.0)";
  fabric::pmix::Status init = fabric::pmix::kSuccess;
  fabric::pmix::Status put = fabric::pmix::kSuccess;
  fabric::pmix::Status commit = fabric::pmix::kSuccess;
  Call fence;
  Call get;

  // Of the job; a value of another type than is expected is one of `*_type`.
  fabric::pmix::Rank rank = 0;
  std::uint32_t size = 1;
  std::uint16_t size_type = fabric::pmix::kUint32;
  std::uint16_t local_rank = 0;
  // To the question for it.
  fabric::pmix::Status local_rank_answer = fabric::pmix::kSuccess;
  std::uint16_t local_rank_type = fabric::pmix::kUint16;
  std::uint16_t value_type = fabric::pmix::kByteObject;
  // By rank and key.
  std::map<std::pair<fabric::pmix::Rank, std::string>, std::string> values;

  std::function<void()> in_init;
  std::function<void()> in_finalize;

  // What the last fence was given as its time, in seconds.
  std::optional<int> timeout;
  int commits = 0;
  int gets = 0;
  std::vector<std::function<void()>> held;
  std::string key_when_called_back;

  bool Has(fabric::pmix::Rank of, const std::string& key) const {
    return values.contains({of, key});
  }
};

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_JOB_FAKE_PMIX_H_
