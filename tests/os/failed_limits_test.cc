// Errors of what a limit of the process ran into: they say which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "tests/support/emulator.h"
#include "tests/support/failing_call.h"

namespace vmm::platform {
namespace {

using testing::FailingCall;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FailedLimits, ALimitOfTheAddressSpaceIsSaidWhereItWasMet) {
  if (testing::IsEmulated())
    GTEST_SKIP() << "qemu-user: sets no limit of memory";
  rlimit before{};
  Check(::getrlimit(RLIMIT_AS, &before) == 0, "getrlimit() failed");
  // More than any processor has.
  const rlimit limited{std::min<rlim_t>(before.rlim_cur, rlim_t{1} << 60),
                       before.rlim_max};
  Check(::setrlimit(RLIMIT_AS, &limited) == 0, "setrlimit() failed");
  const absl::Status status = OsError(ENOMEM, "mmap()");
  Check(::setrlimit(RLIMIT_AS, &before) == 0, "setrlimit() failed");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("may map ", limited.rlim_cur >> 20,
                                     " MiB (ulimit -v)")));
}

TEST(FailedLimits, WithoutALimitThatCanBeReadAnErrorGivesNoAdvice) {
  for (const int code : {EMFILE, ENOMEM, EFBIG}) {
    const FailingCall failing("getrlimit", EPERM);
    EXPECT_THAT(std::string(OsError(code, "call()").message()),
                Not(HasSubstr("ulimit")));
  }
}

TEST(FailedLimits, WhereNoThreadCanBeStartedTheErrorSaysHowManyThereMayBe) {
  rlimit before{};
  Check(::getrlimit(RLIMIT_NPROC, &before) == 0, "getrlimit() failed");
  // None, where this user may have none, and some.
  const rlimit wanted[] = {
      {RLIM_INFINITY, RLIM_INFINITY},
      {std::min<rlim_t>(before.rlim_cur, 54321), before.rlim_max}};
  for (const rlimit& each : wanted) {
    static_cast<void>(::setrlimit(RLIMIT_NPROC, &each));
    rlimit limit{};
    Check(::getrlimit(RLIMIT_NPROC, &limit) == 0, "getrlimit() failed");
    absl::Status status;
    {
      const FailingCall failing("pthread_create", EAGAIN);
      status = OsError(EAGAIN, "pthread_create()");
    }
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(limit.rlim_cur == RLIM_INFINITY
                      ? "may have any number of processes"
                      : absl::StrCat("may have ", limit.rlim_cur, " of")));
  }
  Check(::setrlimit(RLIMIT_NPROC, &before) == 0, "setrlimit() failed");
}

}  // namespace
}  // namespace vmm::platform
