// What is put around the message of an error.
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "platform/base/annotate.h"

namespace vmm::platform {
namespace {

TEST(Annotate, PutsWordsInFrontAndBehind) {
  const absl::Status status = absl::NotFoundError("no such file");
  EXPECT_EQ(Annotate(status, "open(x)").message(), "open(x): no such file");
  EXPECT_EQ(Annotate(status, "", "Make it").message(), "no such file. Make it");
  EXPECT_EQ(Annotate(status, "", "").message(), "no such file");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "a", "b").ok());
}

TEST(Annotate, ASentenceThatHasEndedEndsOnce) {
  EXPECT_EQ(Annotate(absl::NotFoundError("Nobody listens there."), "",
                     "The owner may have ended")
                .message(),
            "Nobody listens there. The owner may have ended");
}

TEST(Annotate, KeepsWhatTravelsWithTheStatus) {
  absl::Status status = absl::InternalError("x");
  status.SetPayload("url", absl::Cord("y"));
  EXPECT_EQ(Annotate(status, "a", "b").GetPayload("url"), absl::Cord("y"));
  const absl::Status coded = WithCode(status, absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::IsUnavailable(coded));
  EXPECT_EQ(coded.message(), "x");
  EXPECT_EQ(coded.GetPayload("url"), absl::Cord("y"));
}

TEST(WithCode, LeavesASuccessOne) {
  EXPECT_TRUE(WithCode(absl::OkStatus(), absl::StatusCode::kUnavailable).ok());
}

}  // namespace
}  // namespace vmm::platform
