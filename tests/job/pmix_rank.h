// A rank whose libpmix is the one of fake_pmix.h.
#ifndef VMMSHARE_TESTS_JOB_PMIX_RANK_H_
#define VMMSHARE_TESTS_JOB_PMIX_RANK_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fabric/pmix.h"
#include "platform/os/library.h"
#include "tests/job/fake_pmix.h"
#include "tests/support/child.h"
#include "tests/support/must.h"

namespace vmm::testing {

// What the libpmix of this process answers.
inline FakePmix& ThePmix() {
  static auto* const pmix = reinterpret_cast<FakePmix* (*)()>(
      Must(platform::Library::OpenPath(VMMSHARE_TEST_PMIX))
          .Find("vmmshare_test_pmix"))();
  return *pmix;
}

inline absl::StatusOr<std::unique_ptr<fabric::PmixExchange>> Connect(
    Deadline deadline = Late()) {
  return fabric::PmixExchange::Connect({.library = VMMSHARE_TEST_PMIX},
                                       deadline);
}

// A process joins its job once: `rank` is for RegisterChild(), and runs in a
// process of its own.
template <void (*rank)()>
int Rank(const std::vector<std::string>&) {
  rank();
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// What the process of the rank registered as `name` returned.
inline int RunRank(const std::string& name) {
  return Child::Start(name, {}, {{"PMIX_NAMESPACE", "job"}, {"PMIX_RANK", "0"}})
      .Wait();
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_JOB_PMIX_RANK_H_
