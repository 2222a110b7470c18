// One system call that fails, by its name: what the caller is told, and what is
// there afterwards. The sweeps fail all of them, and say no more than that each
// is told; here stands in which words, and what is done without it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/file_reader.h"
#include "platform/os/handle_table.h"
#include "platform/os/library.h"
#include "platform/os/machine.h"
#include "platform/os/os_error.h"
#include "platform/os/surroundings.h"
#include "platform/os/user_name.h"
#include "platform/os/zeroed_pages.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/descriptor_limit_posix.h"
#include "tests/support/failing_call.h"
#include "tests/support/syscall_faults.h"

namespace vmm::platform {
namespace {

using testing::ArmSyscallFault;
using testing::Child;
using testing::FailingCall;
using ::testing::HasSubstr;

class FailedCallTest : public OsTest {
 protected:
  TempDirectory temp_;
};

// Makes a socket file that nobody listens at.
void MakeDeadSocket(const std::string& path) {
  const OsHandle socket =
      OsHandle::Adopt(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  Check(::bind(RawFd(socket), reinterpret_cast<sockaddr*>(&name),
               sizeof name) == 0,
        "bind() failed");
}

TEST_F(FailedCallTest, IsToldWithItsCodeAndItsWords) {
  const std::string dead = temp_.File("dead");
  const auto listen = [&] {
    return Listener::Bind({temp_.path(), "dead"}, {}).status();
  };
  const FileReader reader = Must(FileReader::Open("/proc/self/exe"));
  using Code = absl::StatusCode;
  struct Row {
    const char* call;
    int error;
    std::function<absl::Status()> run;
    Code code;
    std::string words;
  };
  const Row rows[] = {
      {"open", EACCES, [] { return ReadMachine().status(); },
       Code::kPermissionDenied, "mount /proc"},
      {"read", EIO, [] { return ReadMachine().status(); }, Code::kInternal,
       "read(/proc/sys/kernel/random/boot_id) failed with EIO"},
      {"gethostname", EPERM, [] { return ReadMachine().status(); },
       Code::kPermissionDenied, "gethostname() failed"},
      {"getrlimit", EPERM, [] { return GetDescriptorLimits().status(); },
       Code::kPermissionDenied, "getrlimit(RLIMIT_NOFILE) failed"},
      {"getrlimit", EPERM, &RaiseDescriptorLimit, Code::kPermissionDenied,
       "getrlimit(RLIMIT_NOFILE) failed"},
      {"setrlimit", EPERM, &RaiseDescriptorLimit, Code::kPermissionDenied,
       "setrlimit(RLIMIT_NOFILE, "},
      {"getpwnam_r", EMFILE, [] { return ParseUser("root").status(); },
       Code::kResourceExhausted, "getpwnam_r(root) failed with EMFILE"},
      {"getpwnam_r", EIO, [] { return ParseUser("root").status(); },
       Code::kInternal, "getpwnam_r(root) failed with EIO"},
      {"getpwnam_r", EACCES, [] { return ParseUser("root").status(); },
       Code::kPermissionDenied, "getpwnam_r(root) failed with EACCES"},
      {"getpwnam_r", EPERM, [] { return ParseUser("root").status(); },
       Code::kInvalidArgument, "nobody has this name here"},
      {"getpwnam_r", ENOENT, [] { return ParseUser("root").status(); },
       Code::kInvalidArgument, "nobody has this name here"},
      {"fstat", ENOMEM, [&] { return reader.Size().status(); },
       Code::kResourceExhausted, "fstat(/proc/self/exe) failed"},
      {"fstat", ENOMEM,
       [] { return Library::OpenPath("/proc/self/exe").status(); },
       Code::kResourceExhausted, "fstat(/proc/self/exe) failed"},
      {"memfd_create", EMFILE,
       [] { return SharedMemory::Create(1, PeerAccess::kRead).status(); },
       Code::kResourceExhausted, "memfd_create(vmmshare-control) failed"},
      {"memfd_create", EPERM,
       [] { return SharedMemory::Create(1, PeerAccess::kRead).status(); },
       Code::kPermissionDenied, "seccomp profile may refuse that call"},
      {"memfd_create", ENOSYS,
       [] { return SharedMemory::Create(1, PeerAccess::kRead).status(); },
       Code::kUnimplemented, "allow memfd_create"},
      {"socket", EMFILE, listen, Code::kResourceExhausted,
       "socket(AF_UNIX) failed"},
      {"unlink", EACCES, listen, Code::kPermissionDenied, "unlink(" + dead},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.call, ": ", row.words));
    std::filesystem::remove(dead);
    MakeDeadSocket(dead);
    absl::Status status;
    {
      const FailingCall failing(row.call, row.error);
      status = row.run();
    }
    EXPECT_EQ(status.code(), row.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.words));
  }
}

// --- What is done without it -------------------------------------------------

TEST_F(FailedCallTest, AKernelThatDoesNotKnowAFlagMakesMemoryWithoutIt) {
  SharedMemory memory = [] {
    const FailingCall failing("memfd_create", EINVAL);
    return Must(SharedMemory::Create(4096, PeerAccess::kReadWrite));
  }();
  memory.writable_bytes()[4095] = 7;
  const SharedMemory view =
      Must(SharedMemory::Open(memory.handle(), 4096, PeerAccess::kReadWrite));
  EXPECT_EQ(view.bytes()[4095], 7);
}

// What a kernel without room for a further mapping says to a part of one.
TEST_F(FailedCallTest, MemoryThatCannotBeUnmappedEndsNoProgram) {
  {
    SharedMemory memory = Must(SharedMemory::Create(4096, PeerAccess::kRead));
    const FailingCall failing("munmap", ENOMEM);
    memory = Must(SharedMemory::Create(4096, PeerAccess::kRead));
  }
  {
    ZeroedPages pages = Must(MapZeroedPages(4096));
    const FailingCall failing("munmap", ENOMEM);
    pages.Reset();
  }
}

TEST_F(FailedCallTest, ATableThatCannotGrowIsLeftAsItIs) {
  {
    const FailingCall failing("open", EMFILE);
    GrowHandleTable();
  }
  {
    const FailingCall failing("getrlimit", EPERM);
    GrowHandleTable();
  }
}

TEST_F(FailedCallTest, AUserWhoseEntryIsLongIsAskedForWithMoreRoom) {
  const FailingCall failing("getpwnam_r", ERANGE, 0, 3);
  EXPECT_EQ(Must(ParseUser("root")), UserId("0"));
}

TEST_F(FailedCallTest, AUserIsLookedUpAgainAfterAnInterrupt) {
  const FailingCall failing("getpwnam_r", EINTR, 0, 3);
  EXPECT_EQ(Must(ParseUser("root")), UserId("0"));
}

TEST_F(FailedCallTest, WhereTheLoaderDoesNotSayWhereItLooksNothingIsLoaded) {
  for (const std::uint64_t nth : {0, 1}) {
    const FailingCall failing("dlinfo", EINVAL, nth);
    const absl::Status status = Library::OpenSystem("libc.so.6").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("RTLD_DI_SERINFO"));
  }
  // Of what is loaded it need not say where it was found.
  const FailingCall failing("dlinfo", EINVAL, 2);
  const Library library = Must(Library::OpenSystem("libc.so.6"));
  EXPECT_EQ(library.path(), "libc.so.6");
  EXPECT_NE(library.Find("getpid"), nullptr);
}

TEST_F(FailedCallTest, AContainerWithoutFilesOfItsOwnIsKnownByItsVariables) {
  for (const char* variable : {"KUBERNETES_SERVICE_HOST", "container"}) {
    ::setenv(variable, "podman", /*overwrite=*/1);
    std::string mark;
    {
      const FailingCall failing("stat", ENOENT, 0, 3);
      mark = Must(ContainerMark());
    }
    ::unsetenv(variable);
    EXPECT_EQ(mark, absl::StrCat("the environment has ", variable));
  }
}

// --- What another thread forks meanwhile -------------------------------------

// A child of this process at the moment of its construction, until its end.
class Forked {
 public:
  Forked() : pid_(::fork()) {
    Check(pid_ >= 0, "fork() failed");
    if (pid_ != 0) return;
    ::alarm(600);  // Lest it outlasts a test that crashed.
    for (;;) ::pause();
  }
  ~Forked() {
    Check(::kill(pid_, SIGKILL) == 0, "kill() failed");
    Check(::waitpid(pid_, nullptr, 0) == pid_, "waitpid() failed");
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

 private:
  const pid_t pid_;
};

TEST_F(FailedCallTest, AChildThatIsForkedInABindDoesNotKeepTheFolder) {
  MakeDeadSocket(temp_.File("one"));
  std::optional<Forked> child;
  const auto bind = [&](const char* name) {
    return Listener::Bind({temp_.path(), name}, {});
  };
  // Of a dead socket, which is removed: somebody else has done it already.
  ArmSyscallFault({.point = {.this_thread_only = true},
                   .only_error = ENOENT,
                   .only_call = "unlink",
                   .then = [&] { child.emplace(); }});
  const absl::StatusOr<Listener> one = bind("one");
  testing::DisarmSyscallFault();
  EXPECT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(child.has_value());
  const absl::StatusOr<Listener> other = bind("other");
  EXPECT_TRUE(other.ok()) << other.status();
  child.reset();
  // Nor does one of a bind that fails.
  ArmSyscallFault({.point = {.this_thread_only = true},
                   .only_error = ENOMEM,
                   .only_call = "bind",
                   .then = [&] { child.emplace(); }});
  EXPECT_FALSE(bind("third").ok());
  testing::DisarmSyscallFault();
  ASSERT_TRUE(child.has_value());
  const absl::StatusOr<Listener> third = bind("third");
  EXPECT_TRUE(third.ok()) << third.status();
}

// --- Where descriptors 0 to 2 are free ---------------------------------------

// What came or was made there has no room elsewhere. What it returns says what
// went wrong.
int WithoutRoomAbove(const std::vector<std::string>&) {
  auto ends = Must(Channel::Pair());
  const CancelEvent event = Must(CancelEvent::Create());
  const OsHandle* handles[] = {&event.handle()};
  Must(ends.first.Send(1, {}, handles, Late()));
  ::close(STDIN_FILENO);
  ::close(STDOUT_FILENO);
  const auto are_free = [] {
    return ::fcntl(STDIN_FILENO, F_GETFD) < 0 &&
           ::fcntl(STDOUT_FILENO, F_GETFD) < 0;
  };
  absl::Status pair, received;
  {
    const FailingCall failing("fcntl", EMFILE);
    pair = Channel::Pair().status();
  }
  if (!absl::IsResourceExhausted(pair)) return 1;  // Of fcntl(F_DUPFD_CLOEXEC).
  if (!are_free()) return 2;
  {
    // The pidfd of the sender, and the handle, at each of two looks.
    const FailingCall failing("fcntl", EMFILE, 0, 4);
    received = ends.second.Receive(Late()).status();
  }
  if (!absl::IsDataLoss(received)) return 3;
  if (!absl::StrContains(received.message(), "handles were dropped")) return 4;
  if (!are_free()) return 5;
  return ends.second.is_open() ? 6 : 0;
}
const bool kWithoutRoom =
    testing::RegisterChild("without_room_above", &WithoutRoomAbove);

TEST_F(FailedCallTest, WhatCannotBeMovedOffTheStandardStreamsIsAnError) {
  EXPECT_EQ(Child::Start("without_room_above", {}).Wait(), 0);
}

// --- Where descriptors are lacking for a moment ------------------------------

// A message with a handle, and no descriptor for that until the limit is asked for
// after `nth` other times: then there are some, and no limit is told.
struct Lacking {
  explicit Lacking(std::uint64_t nth) {
    const OsHandle* handles[] = {&event.handle()};
    Must(ends.first.Send(1, {}, handles, Late()));
    limit.emplace(0);
    ArmSyscallFault({.point = {.nth = nth, .this_thread_only = true},
                     .only_error = EPERM,
                     .only_call = "getrlimit",
                     .then = [this] { limit.reset(); }});
  }
  // How often it was told of none.
  std::uint64_t Lift() {
    const std::uint64_t fired = testing::DisarmSyscallFault().fired;
    limit.reset();
    return fired;
  }

  const CancelEvent event = Must(CancelEvent::Create());  // Its end asks, too.
  std::pair<Channel, Channel> ends = Must(Channel::Pair());
  std::optional<testing::DescriptorLimit> limit;
};

void ExpectWhole(const absl::StatusOr<Message>& received) {
  EXPECT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(!received.ok() || received->handles.size() == 1);
}

// There are some again before it is asked whether they were what a message lacked.
int ReceiveWhileALimitIsLifted(const std::vector<std::string>&) {
  Lacking lacking(0);
  const absl::StatusOr<Message> received = lacking.ends.second.Receive(Late());
  EXPECT_EQ(lacking.Lift(), 1u);
  ExpectWhole(received);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kReceiveWhileALimitIsLifted = testing::RegisterChild(
    "receive_while_a_limit_is_lifted", &ReceiveWhileALimitIsLifted);

TEST_F(FailedCallTest, AMessageThatLackedDescriptorsForAMomentIsReceived) {
  EXPECT_EQ(Child::Start("receive_while_a_limit_is_lifted", {}).Wait(), 0);
}

// There are some again after that was asked: as if there were none still.
int ReceiveBeforeALimitIsLifted(const std::vector<std::string>&) {
  Lacking lacking(1);
  const absl::Status refused = lacking.ends.second.Receive(Late()).status();
  lacking.Lift();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  ExpectWhole(lacking.ends.second.Receive(Late()));
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kReceiveBeforeALimitIsLifted = testing::RegisterChild(
    "receive_before_a_limit_is_lifted", &ReceiveBeforeALimitIsLifted);

TEST_F(FailedCallTest, WhetherDescriptorsAreLackingIsAskedOnceOfAMessage) {
  EXPECT_EQ(Child::Start("receive_before_a_limit_is_lifted", {}).Wait(), 0);
}

}  // namespace
}  // namespace vmm::platform
