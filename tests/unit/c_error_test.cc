// Why a call failed, of a process that is refused memory.
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "tests/support/refused_memory.h"
#include "vmm/c/internal/call.h"

namespace vmm::c {
namespace {

// What is returned is what the error says, which is there and says what to do.
void ExpectTold(vmmshare_status returned, vmmshare_error* error) {
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(vmmshare_error_status(error), returned);
  EXPECT_STRNE(vmmshare_error_message(error), "");
  EXPECT_STRNE(vmmshare_error_remedy(error), "");
  EXPECT_EQ(vmmshare_error_cuda_result(error), -1);
}

// Calls `body` with ever more memory, until it has what it needs; what it returned
// then, and before that only that there was none.
template <typename Body>
vmmshare_status WithEverMoreMemory(const Body& body) {
  for (long granted = 0; granted < 100; ++granted) {
    vmmshare_error* error = nullptr;
    testing::refusal = {granted, /*lasts=*/true};
    const vmmshare_status returned = Call(&error, body);
    const bool refused = testing::refusal.happened;
    testing::refusal = {};
    ExpectTold(returned, error);
    vmmshare_error_free(error);
    if (!refused) return returned;
    EXPECT_EQ(returned, VMMSHARE_RESOURCE_EXHAUSTED);
  }
  ADD_FAILURE() << "it was never done";
  return VMMSHARE_UNKNOWN;
}

TEST(CErrorTest, ACallWithoutMemorySaysSo) {
  const auto body = []() -> absl::Status { throw std::bad_alloc(); };
  vmmshare_error* error = nullptr;
  const vmmshare_status returned = Call(&error, body);
  EXPECT_EQ(returned, VMMSHARE_RESOURCE_EXHAUSTED);
  ExpectTold(returned, error);
  EXPECT_STREQ(vmmshare_error_remedy(error), "Free memory of the host.");
  // What is freed is there for the next.
  vmmshare_error_free(error);
  EXPECT_EQ(Call(&error, body), VMMSHARE_RESOURCE_EXHAUSTED);
  ExpectTold(returned, error);
  vmmshare_error_free(error);
  EXPECT_EQ(Call(nullptr, body), VMMSHARE_RESOURCE_EXHAUSTED);
}

TEST(CErrorTest, AFailureThatThereIsNoMemoryToTellSaysSo) {
  const absl::Status status = absl::NotFoundError(
      "something of a name that has no room in a string itself. Look for it.");
  EXPECT_EQ(WithEverMoreMemory([&] { return status; }), VMMSHARE_NOT_FOUND);
}

TEST(CErrorTest, AnExceptionThatThereIsNoMemoryToTellEndsNoProcess) {
  const std::runtime_error thrown(
      "something that has no room in a string itself");
  EXPECT_EQ(WithEverMoreMemory([&]() -> absl::Status {
              throw std::runtime_error(thrown);  // A copy takes no memory.
            }),
            VMMSHARE_INTERNAL);
  EXPECT_EQ(WithEverMoreMemory([]() -> absl::Status { throw 1; }),
            VMMSHARE_INTERNAL);
}

}  // namespace
}  // namespace vmm::c
