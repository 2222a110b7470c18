#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "platform/os/os_error.h"

namespace vmm::platform {
namespace {

using ::testing::HasSubstr;

struct Row {
  int code;
  absl::StatusCode status;
  const char* name;
};

class OsErrorTest : public ::testing::TestWithParam<Row> {};

TEST_P(OsErrorTest, HasItsStatusAndItsName) {
  const absl::Status status = OsError(GetParam().code, "call(1, 2)");
  EXPECT_EQ(status.code(), GetParam().status);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().name));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::to_string(GetParam().code)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("call(1, 2)"));
}

INSTANTIATE_TEST_SUITE_P(
    Errno, OsErrorTest,
    ::testing::Values(
        Row{EPERM, absl::StatusCode::kPermissionDenied, "EPERM"},
        Row{EACCES, absl::StatusCode::kPermissionDenied, "EACCES"},
        Row{ENOENT, absl::StatusCode::kNotFound, "ENOENT"},
        Row{ESRCH, absl::StatusCode::kNotFound, "ESRCH"},
        Row{EEXIST, absl::StatusCode::kAlreadyExists, "EEXIST"},
        Row{EADDRINUSE, absl::StatusCode::kAlreadyExists, "EADDRINUSE"},
        Row{EMFILE, absl::StatusCode::kResourceExhausted, "EMFILE"},
        Row{ENFILE, absl::StatusCode::kResourceExhausted, "ENFILE"},
        Row{ENOMEM, absl::StatusCode::kResourceExhausted, "ENOMEM"},
        Row{ENOBUFS, absl::StatusCode::kResourceExhausted, "ENOBUFS"},
        Row{ETOOMANYREFS, absl::StatusCode::kResourceExhausted, "ETOOMANYREFS"},
        Row{EINVAL, absl::StatusCode::kInvalidArgument, "EINVAL"},
        Row{EBADF, absl::StatusCode::kInvalidArgument, "EBADF"},
        Row{EMSGSIZE, absl::StatusCode::kInvalidArgument, "EMSGSIZE"},
        Row{ELOOP, absl::StatusCode::kFailedPrecondition, "ELOOP"},
        Row{ESPIPE, absl::StatusCode::kFailedPrecondition, "ESPIPE"},
        Row{ENOSYS, absl::StatusCode::kUnimplemented, "ENOSYS"},
        Row{ENOPROTOOPT, absl::StatusCode::kUnimplemented, "ENOPROTOOPT"},
        Row{EAGAIN, absl::StatusCode::kUnavailable, "EAGAIN"},
        Row{EPIPE, absl::StatusCode::kUnavailable, "EPIPE"},
        Row{ECONNRESET, absl::StatusCode::kUnavailable, "ECONNRESET"},
        Row{ETIMEDOUT, absl::StatusCode::kDeadlineExceeded, "ETIMEDOUT"},
        Row{EIO, absl::StatusCode::kInternal, "EIO"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(OsError, SaysWhatTheSystemSays) {
  EXPECT_EQ(OsError(EACCES, "open(/x)").message(),
            "open(/x) failed with EACCES (13: Permission denied)");
}

TEST(OsError, EndsWithTheAdvice) {
  EXPECT_EQ(OsError(ENOENT, "open(/x)", "Make it first.").message(),
            "open(/x) failed with ENOENT (2: No such file or directory). "
            "Make it first.");
}

TEST(OsError, AnUnlistedCodeIsUnknownAndKeepsItsNumber) {
  const absl::Status status = OsError(123456, "call()");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(status.message()), HasSubstr("123456"));
}

std::string TextThatSetsErrno() {
  errno = EDOM;
  return "open(/x)";
}

TEST(OsError, TheLastErrorIsReadBeforeTheTextIsMade) {
  errno = EACCES;
  EXPECT_EQ(LastError().Of(TextThatSetsErrno(), "Do.").message(),
            "open(/x) failed with EACCES (13: Permission denied). Do.");
}

TEST(OsError, LeavesErrnoAlone) {
  errno = EDOM;
  EXPECT_FALSE(OsError(ENOENT, "call()").ok());
  EXPECT_EQ(errno, EDOM);
}

}  // namespace
}  // namespace vmm::platform
