#include "platform/os/os_handle.h"

#include <gtest/gtest.h>

#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

class OsHandleTest : public OsTest {};

TEST_F(OsHandleTest, DuplicateRefersToTheSameObject) {
  OsHandle memory = MemoryWith("before");
  OsHandle other = Must(Duplicate(memory));
  EXPECT_NE(memory.get(), other.get());
  ASSERT_EQ(::pwrite(RawFd(memory), "after!", 6, 0), 6);
  EXPECT_EQ(TextIn(other), "after!");
}

TEST_F(OsHandleTest, DuplicateOutlivesTheFirst) {
  OsHandle memory = MemoryWith("text");
  OsHandle other = Must(Duplicate(memory));
  memory.Reset();
  EXPECT_EQ(TextIn(other), "text");
}

TEST_F(OsHandleTest, DuplicateIsCloseOnExec) {
  OsHandle inherited = OsHandle::Adopt(::memfd_create("test", 0));
  OsHandle other = Must(Duplicate(inherited));
  EXPECT_EQ(::fcntl(RawFd(other), F_GETFD), FD_CLOEXEC);
}

TEST_F(OsHandleTest, DuplicateOfNothingIsAnInvalidArgument) {
  EXPECT_TRUE(absl::IsInvalidArgument(Duplicate(OsHandle()).status()));
}

TEST_F(OsHandleTest, DuplicateOfAClosedDescriptorIsAnInvalidArgument) {
  OsHandle never_open = OsHandle::Adopt(987654);
  const absl::Status status = Duplicate(never_open).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("987654"), std::string::npos) << status;
  EXPECT_EQ(std::move(never_open).Relinquish(), 987654);
}

TEST_F(OsHandleTest, ResetClosesTheDescriptor) {
  OsHandle memory = MemoryWith("text");
  const int fd = RawFd(memory);
  memory.Reset();
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

// Uses up every descriptor, then duplicates one.
int DuplicateAtTheLimit(const std::vector<std::string>&) {
  OsHandle memory = MemoryWith("text");
  absl::Status status;
  {
    DescriptorLimit limit(0);
    status = Duplicate(memory).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("ulimit"), std::string::npos) << status;
  return 0;
}
const bool kRegistered =
    testing::RegisterChild("duplicate_at_the_limit", &DuplicateAtTheLimit);

TEST_F(OsHandleTest, Pitfall15AtTheDescriptorLimitTheErrorSaysSo) {
  EXPECT_EQ(testing::Child::Start("duplicate_at_the_limit", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::platform
