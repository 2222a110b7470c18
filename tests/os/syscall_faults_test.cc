// System calls can be failed, all of those that vmmshare makes, and the sweep
// over them is red where it must be.
#include "tests/support/syscall_faults.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>

#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "tests/support/open_handles.h"
#include "tests/support/sweep.h"

namespace vmm::testing {
namespace {

using platform::OsError;
using platform::OsHandle;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

int OpenNull() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(SyscallFaults, PassOnEveryCallWhileNothingIsArmed) {
  const OsHandle file = OsHandle::Adopt(OpenNull());
  ASSERT_TRUE(file.has_value());
  char byte;
  EXPECT_EQ(::read(static_cast<int>(file.get()), &byte, 1), 0);
}

TEST(SyscallFaults, FailTheNthCallOnceWithADocumentedError) {
  ArmSyscallFault({.point = {.nth = 1}});
  const OsHandle first = OsHandle::Adopt(OpenNull());
  errno = 0;
  const int second = OpenNull();
  const int error = errno;
  const OsHandle third = OsHandle::Adopt(OpenNull());
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_TRUE(first.has_value());
  EXPECT_EQ(second, -1);
  EXPECT_EQ(error, EMFILE);
  EXPECT_TRUE(third.has_value());
  EXPECT_EQ(outcome.fired, 1u);
  ASSERT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.failed[0].call, "open");
  EXPECT_EQ(outcome.failed[0].error, EMFILE);
}

TEST(SyscallFaults, FailEveryCallFromTheNthOn) {
  ArmSyscallFault({.point = {.nth = 0, .times = FaultPoint::kForEver}});
  const int first = OpenNull();
  const int second = ::socket(AF_UNIX, SOCK_STREAM, 0);
  void* const third =
      ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int third_error = errno;
  char* const fourth = ::realpath("/", nullptr);
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_EQ(first, -1);
  EXPECT_EQ(second, -1);
  EXPECT_EQ(third, MAP_FAILED);
  EXPECT_EQ(third_error, ENOMEM);
  EXPECT_EQ(fourth, nullptr);
  EXPECT_EQ(outcome.failed.size(), 4u);
}

TEST(SyscallFaults, FailACallOfOneNameAlone) {
  const auto use = [] {
    const OsHandle file = OsHandle::Adopt(OpenNull());
    const int copy = ::dup(STDOUT_FILENO);
    const int error = errno;
    if (copy >= 0) ::close(copy);
    return std::make_tuple(file.has_value(), copy >= 0, error);
  };
  // With an error of which its manual says nothing.
  ArmSyscallFault({.only_error = EXDEV, .only_call = "dup"});
  EXPECT_EQ(use(), std::make_tuple(true, false, EXDEV));
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_EQ(outcome.counted, 1u);
  ASSERT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.failed[0].call, "dup");
}

// Those that no sweep fails.
TEST(SyscallFaults, FailLimitsAndUsersOnlyWhereTheyAreNamed) {
  rlimit limit{};
  passwd entry{};
  passwd* found = nullptr;
  char memory[1024];
  const auto fail = [&](const std::string& name, int error) {
    ArmSyscallFault({.only_error = error, .only_call = name});
  };
  fail("getrlimit", EPERM);
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), -1);
  EXPECT_EQ(errno, EPERM);
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  fail("setrlimit", EPERM);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), -1);
  EXPECT_EQ(errno, EPERM);
  fail("getpwnam_r", ERANGE);
  EXPECT_EQ(::getpwnam_r("root", &entry, memory, sizeof memory, &found),
            ERANGE);
  EXPECT_EQ(found, nullptr);
  DisarmSyscallFault();

  ArmSyscallFault(
      {.point = {.times = FaultPoint::kForEver}, .calls = CallKind::kAny});
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(DisarmSyscallFault().counted, 0u);
}

TEST(SyscallFaults, AFailedCloseHasClosed) {
  const int fd = OpenNull();
  const ExpectNoNewHandles handles_less_one;
  const int other = OpenNull();
  ArmSyscallFault({.calls = CallKind::kRelease});
  const int result = ::close(other);
  const int error = errno;
  DisarmSyscallFault();
  EXPECT_EQ(result, -1);
  EXPECT_EQ(error, EIO);
  EXPECT_EQ(::fcntl(other, F_GETFD), -1) << "it is still open";
  // `fd` lives until handles_less_one has looked.
  EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
}

TEST(SyscallFaults, TellWhenACallHasNoFurtherError) {
  ArmSyscallFault({.error_index = 5});  // dup documents one.
  const OsHandle copy = OsHandle::Adopt(::dup(STDOUT_FILENO));
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_TRUE(copy.has_value());
  EXPECT_TRUE(outcome.no_such_error);
  EXPECT_EQ(outcome.fired, 1u);
  EXPECT_THAT(outcome.failed, IsEmpty());
}

TEST(SyscallFaults, AStormOfInterruptsReachesOnlyCallsThatKnowThem) {
  ArmSyscallFault({.point = {.times = 2}, .only_error = EINTR});
  const OsHandle copy = OsHandle::Adopt(::dup(STDOUT_FILENO));
  // Of nothing, so that a write that is made changes nothing.
  const ssize_t first = ::write(STDOUT_FILENO, "", 0);
  const ssize_t second = ::write(STDOUT_FILENO, "", 0);
  const ssize_t third = ::write(STDOUT_FILENO, "", 0);
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_TRUE(copy.has_value());
  EXPECT_EQ(first, -1);
  EXPECT_EQ(second, -1);
  EXPECT_EQ(third, 0);
  EXPECT_EQ(outcome.failed.size(), 2u);
}

TEST(SyscallFaults, NeverInterruptForEver) {
  // The sixth error of write is EINTR.
  ArmSyscallFault({.point = {.times = FaultPoint::kForEver}, .error_index = 5});
  const ssize_t result = ::write(STDOUT_FILENO, "", 0);
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_EQ(result, 0);
  EXPECT_EQ(outcome.fired, 0u);
}

TEST(SyscallFaults, ReachWhatIsCalledByNumber) {
  ArmSyscallFault({});
  const long result = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  const int error = errno;
  const SyscallOutcome outcome = DisarmSyscallFault();
  EXPECT_EQ(result, -1);
  EXPECT_EQ(error, EMFILE);
  ASSERT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.failed[0].call, "syscall(pidfd_open)");
}

TEST(SyscallFaults, NameANumberThatTheTableLacks) {
  ArmSyscallFault({});
  ::syscall(SYS_getppid);
  EXPECT_THAT(DisarmSyscallFault().unlisted,
              ::testing::ElementsAre(SYS_getppid));
}

TEST(SyscallFaults, ReachTheStartOfAThread) {
  pthread_t thread;
  ArmSyscallFault({});
  const int result = ::pthread_create(
      &thread, nullptr, [](void* unused) { return unused; }, nullptr);
  DisarmSyscallFault();
  EXPECT_EQ(result, EAGAIN);
}

TEST(SyscallFaults, ReachTheStartOfAStdThread) {
  ArmSyscallFault({});
  int error = 0;
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& thrown) {
    error = thrown.code().value();
  }
  DisarmSyscallFault();
  EXPECT_EQ(error, EAGAIN);
}

TEST(SyscallFaults, ReachOtherThreadsUnlessTheyAreToldNotTo) {
  for (bool this_thread_only : {false, true}) {
    // An error that starting the thread does not document.
    ArmSyscallFault({.point = {.times = FaultPoint::kForEver,
                               .this_thread_only = this_thread_only},
                     .only_error = EMFILE});
    int fd = -1;
    std::thread([&fd] { fd = OpenNull(); }).join();
    DisarmSyscallFault();
    EXPECT_EQ(fd >= 0, this_thread_only);
    if (fd >= 0) ::close(fd);
  }
}

TEST(SyscallFaults, DoNotReachAForkedChild) {
  ArmSyscallFault({.point = {.times = FaultPoint::kForEver}});
  // No driver is loaded here, and the child does nothing but one call.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(OpenNull() >= 0 ? 0 : 1);
  DisarmSyscallFault();
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// What a toy operation on descriptors does wrong.
enum class Bug { kNone, kLeaksTheFirst, kSwallowsAnError, kMindsInterrupts };

// Opens two descriptors and passes a number through the second.
absl::Status Toy(Bug bug) {
  const int first = OpenNull();
  if (first < 0) return platform::LastError().Of("open(/dev/null)");
  const int second = ::eventfd(0, EFD_CLOEXEC);
  if (second < 0) {
    const int error = errno;
    if (bug != Bug::kLeaksTheFirst) ::close(first);
    return OsError(error, "eventfd(0)");
  }
  const OsHandle first_owner = OsHandle::Adopt(first);
  const OsHandle second_owner = OsHandle::Adopt(second);
  const std::uint64_t one = 1;
  ssize_t size;
  do {
    size = ::write(second, &one, sizeof one);
  } while (size < 0 && bug != Bug::kMindsInterrupts &&
           (errno == EINTR || errno == EAGAIN));
  if (size < 0 && bug != Bug::kSwallowsAnError) {
    return platform::LastError().Of("write(eventfd)");
  }
  return absl::OkStatus();
}

SweepResult SweepToy(Bug bug) {
  return Sweep({.name = "descriptors", .run = [bug] { return Toy(bug); }});
}

TEST(SyscallSweep, PassesASoundOperationAndCountsItsPoints) {
  const SweepResult result = SweepToy(Bug::kNone);
  EXPECT_THAT(result.problems, IsEmpty());
  EXPECT_EQ(result.driver_points, 0u);
  // open, eventfd and write document 5, 4 and 6 errors, and fail for ever in 3
  // ways; two closes document 3, and fail for ever in 2 ways; write and two
  // closes may be interrupted.
  EXPECT_EQ(result.system_points, 15u + 3 + 2 * 3 + 2 + 3);
}

TEST(SyscallSweep, ALeakedDescriptorTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kLeaksTheFirst).problems,
              Contains(AllOf(HasSubstr("eventfd, call 1 failed once"),
                             HasSubstr("is left open: /dev/null"))));
}

TEST(SyscallSweep, ASwallowedErrorTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kSwallowsAnError).problems,
              Contains(AllOf(HasSubstr("write, call 2 failed once"),
                             HasSubstr("swallowed"))));
}

TEST(SyscallSweep, AnInterruptThatIsNoticedTurnsItRed) {
  EXPECT_THAT(SweepToy(Bug::kMindsInterrupts).problems,
              Contains(AllOf(HasSubstr("write, call 0 interrupted 8 times"),
                             HasSubstr("must go unnoticed"))));
}

TEST(SyscallSweep, ACallThatNoTableKnowsTurnsItRed) {
  const SweepResult result = Sweep({.name = "unlisted", .run = [] {
                                      ::syscall(SYS_getppid);
                                      return absl::OkStatus();
                                    }});
  EXPECT_THAT(result.problems, Contains(HasSubstr("is in no table")));
}

}  // namespace
}  // namespace vmm::testing
