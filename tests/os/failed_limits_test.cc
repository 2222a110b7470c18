// Errors of what a limit of the process ran into: they say which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/os_error.h"
#include "platform/os/zeroed_pages.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/failing_call.h"

namespace vmm::platform {
namespace {

using ::testing::AllOf;
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

TEST(FailedLimits, WhereThreadsAreRefusedTheErrorSaysByWhat) {
  const FailingCall failing("pthread_create", EPERM);
  EXPECT_THAT(NearLimit(), AllOf(HasSubstr("seccomp"), HasSubstr("clone3()")));
}

// For a process of its own, in which all that is mapped from now on is locked.
constexpr int kLocksNothing = 77;

int MapsWhatCannotBeLocked(const std::vector<std::string>&) {
  constexpr std::size_t kMuch = 8 << 20;
  if (::geteuid() == 0) BecomeStranger();  // Whom the limit binds.
  rlimit limit{};
  Check(::getrlimit(RLIMIT_MEMLOCK, &limit) == 0, "getrlimit() failed");
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1 << 20);
  Check(::setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit() failed");
  pthread_attr_t attributes;
  Check(::pthread_attr_init(&attributes) == 0 &&
            ::pthread_attr_setstacksize(&attributes, kMuch) == 0 &&
            ::pthread_setattr_default_np(&attributes) == 0,
        "no stack of that size can be had");
  if (::mlockall(MCL_FUTURE) != 0) return kLocksNothing;
  void* const much = ::mmap(nullptr, kMuch, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (much != MAP_FAILED || errno != EAGAIN) return kLocksNothing;
  const std::string locked =
      absl::StrCat("may lock ", limit.rlim_cur, " bytes (ulimit -l)");
  for (const absl::Status& status :
       {SharedMemory::Create(kMuch, PeerAccess::kRead).status(),
        MapZeroedPages(kMuch).status()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("mmap("), HasSubstr("failed with EAGAIN"),
                      HasSubstr(locked), Not(HasSubstr("ulimit -u"))));
  }
  // Nor is there a stack for a thread.
  EXPECT_THAT(std::string(OsError(EAGAIN, "pthread_create()").message()),
              AllOf(HasSubstr(locked), Not(HasSubstr("ulimit -u"))));
  return 0;
}
const bool kMapsWhatCannotBeLocked = testing::RegisterChild(
    "maps_what_cannot_be_locked", &MapsWhatCannotBeLocked);

TEST(FailedLimits, MemoryThatMayNotBeLockedIsNoLackOfThreads) {
  const int ended =
      testing::Child::Start("maps_what_cannot_be_locked", {}).Wait();
  if (ended == kLocksNothing) {
    GTEST_SKIP()
        << "what is mapped here is not locked: by a sanitizer, or on a "
           "system without such a limit";
  }
  EXPECT_EQ(ended, 0);
}

}  // namespace
}  // namespace vmm::platform
