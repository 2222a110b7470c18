#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_format.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/socket_advice_posix.h"
#include "platform/ipc/socket_path_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/emulator.h"
#include "tests/support/fork.h"
#include "tests/support/same_process_id_posix.h"

namespace {

// The type of all file systems, or 0: each has its own.
std::atomic<unsigned> type_of_all{0};

}  // namespace

// In place of the C library's.
extern "C" int fstatfs(int fd, struct statfs* about) noexcept {
  const auto failed = static_cast<int>(::syscall(SYS_fstatfs, fd, about));
  if (failed == 0 && type_of_all != 0) about->f_type = type_of_all;
  return failed;
}

namespace vmm::platform {
namespace {

using ::testing::AllOf;
using testing::Child;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RegisterChild;

class ListenerTest : public OsTest {
 protected:
  Listener Bind(const std::string& name = "", PeerPolicy policy = {}) {
    return Must(Listener::Bind({temp_.path(), name}, std::move(policy)));
  }
  absl::Status BindStatus(const std::string& directory,
                          const std::string& name = "x") {
    return Listener::Bind({directory, name}, {}).status();
  }
  absl::Status ConnectStatus(const std::string& address,
                             absl::Time deadline = Late()) {
    return Channel::Connect(address, {}, deadline).status();
  }
  // A socket that was bound and whose owner has died.
  std::string Stale(const std::string& name, int type = SOCK_SEQPACKET) {
    OsHandle socket = BoundSocket(name, type);
    return temp_.File(name);
  }
  OsHandle BoundSocket(const std::string& name, int type) {
    OsHandle socket =
        OsHandle::Adopt(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    temp_.File(name).copy(address.sun_path, sizeof(address.sun_path) - 1);
    Check(::bind(RawFd(socket), reinterpret_cast<sockaddr*>(&address),
                 sizeof(address)) == 0,
          "bind() failed");
    return socket;
  }
  void Chmod(const std::string& path, mode_t mode) {
    Check(::chmod(path.c_str(), mode) == 0, "chmod() failed");
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat about;
    Check(::lstat(path.c_str(), &about) == 0, "lstat() failed");
    return about.st_mode & 07777;
  }
  static bool Exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
  }

  // On a tmpfs, which is this system's alone.
  TempDirectory temp_{"/dev/shm"};
};

TEST_F(ListenerTest, ConnectsTwoChannelsThatKnowEachOther) {
  Listener listener = Bind();
  Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  Channel server = Must(listener.Accept(Late()));
  for (const Channel* channel : {&client, &server}) {
    EXPECT_EQ(channel->peer().user, CurrentUser());
    EXPECT_EQ(channel->peer().pid, CurrentProcessId());
    EXPECT_EQ(::fcntl(RawFd(channel->handle()), F_GETFD), FD_CLOEXEC);
  }
  OsHandle memory = MemoryWith("hello");
  const OsHandle* handles[] = {&memory};
  Must(client.Send(1, Bytes("to server"), handles, Late()));
  Must(server.Send(2, Bytes("to client"), {}, Late()));
  Message message = Must(server.Receive(Late()));
  EXPECT_EQ(Text(message.payload), "to server");
  EXPECT_EQ(TextIn(message.handles.at(0)), "hello");
  EXPECT_EQ(Text(Must(client.Receive(Late())).payload), "to client");
  EXPECT_EQ(listener.refused(), 0u);
}

TEST_F(ListenerTest, TheSocketIsItsUsersAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 022, 0777}) {
    const mode_t before = ::umask(mask);
    Listener listener = Bind();
    ::umask(before);
    EXPECT_EQ(ModeOf(listener.address()), 0600u);
  }
}

TEST_F(ListenerTest, TheSocketIsReachableForOthersOnlyWhenTheyAreNamed) {
  const mode_t before = ::umask(077);
  Listener listener = Bind("", {{UserId("4711")}});
  ::umask(before);
  EXPECT_EQ(ModeOf(listener.address()), 0666u);
}

TEST_F(ListenerTest, Pitfall11NamesHave128RandomBits) {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) {
    const std::string name =
        std::filesystem::path(Bind().address()).filename().string();
    EXPECT_EQ(name.size(), 32u);
    for (const char c : name) EXPECT_TRUE(std::isxdigit(c)) << name;
    names.insert(name);
  }
  EXPECT_EQ(names.size(), 100u);
}

TEST_F(ListenerTest, Pitfall11APathThatIsTooLongIsRefusedWithBothLengths) {
  const std::size_t room = 107 - temp_.path().size() - 1;
  Listener fits = Bind(std::string(room, 'n'));
  EXPECT_EQ(fits.address().size(), 107u);
  EXPECT_TRUE(Channel::Connect(fits.address(), {}, Late()).ok());

  const std::string name(room + 1, 'n');
  for (const absl::Status& status :
       {BindStatus(temp_.path(), name), ConnectStatus(temp_.File(name))}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("108"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("107"));
  }
}

TEST_F(ListenerTest, ANameMustNotHaveADirectoryPart) {
  for (const std::string name : {"a/b", "../x", "/x", "x/", ".", ".."}) {
    EXPECT_TRUE(absl::IsInvalidArgument(BindStatus(temp_.path(), name)))
        << name;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      BindStatus(temp_.path(), std::string("x\0y", 3))));
}

TEST_F(ListenerTest, ADirectoryMustBeAbsoluteAndExist) {
  EXPECT_TRUE(absl::IsInvalidArgument(BindStatus("relative")));
  EXPECT_TRUE(absl::IsInvalidArgument(BindStatus(".")));
  EXPECT_TRUE(absl::IsNotFound(BindStatus(temp_.File("none"))));
}

TEST_F(ListenerTest, RefusesADirectoryOthersMayWrite) {
  for (const mode_t mode : {0777, 0770, 0702, 0720}) {
    Chmod(temp_.path(), mode);
    const absl::Status status = BindStatus(temp_.path());
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));
}

TEST_F(ListenerTest, TakesADirectoryOthersMayRead) {
  Chmod(temp_.path(), 0755);
  EXPECT_TRUE(BindStatus(temp_.path()).ok());
}

TEST_F(ListenerTest, TakesASharedDirectoryThatIsSticky) {
  Chmod(temp_.path(), 01777);
  Listener listener = Bind();
  EXPECT_EQ(ModeOf(listener.address()), 0600u);
  EXPECT_TRUE(ConnectStatus(listener.address()).ok());
}

TEST_F(ListenerTest, RefusesALinkToADirectory) {
  const std::string real = temp_.File("real");
  const std::string link = temp_.File("link");
  ASSERT_EQ(::mkdir(real.c_str(), 0700), 0);
  ASSERT_EQ(::symlink(real.c_str(), link.c_str()), 0);
  for (const std::string& path : {link, link + "/", link + "//"}) {
    const absl::Status status = BindStatus(path);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << path << ": " << status;
  }
  Listener listener = Must(Listener::Bind({real, "x"}, {}));
  EXPECT_TRUE(absl::IsPermissionDenied(ConnectStatus(link + "/x")));
  EXPECT_TRUE(absl::IsPermissionDenied(ConnectStatus(link + "//x")));
  EXPECT_TRUE(ConnectStatus(real + "/x").ok());
}

TEST_F(ListenerTest, ASlashAtTheEndMakesNoDirectoryOfALink) {
  const std::string link = temp_.File("link");
  ASSERT_EQ(::symlink(temp_.path().c_str(), link.c_str()), 0);
  for (const char* end : {"", "/", "//"}) {
    const absl::Status status = CheckDirectory(link + end, {});
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is a symbolic link"));
    EXPECT_TRUE(CheckDirectory(temp_.path() + end, {}).ok()) << end;
  }
  // Nothing is left of it but its slash.
  EXPECT_TRUE(CheckDirectory("/", {}).ok());
}

TEST_F(ListenerTest, APathInTheRootHasOneSlash) {
  const std::string name(200, 'x');
  EXPECT_THAT(std::string(BindStatus("/", name).message()),
              HasSubstr("the socket path /" + name + " has 201 bytes"));
}

TEST_F(ListenerTest, WhereNoSocketCanBeMadeTheErrorSaysWhatToDo) {
  const auto advice = [this](int code) {
    return BindAdvice(code, temp_.path());
  };
  EXPECT_THAT(advice(EROFS), HasSubstr("mount it writable"));
  EXPECT_THAT(advice(EACCES), HasSubstr("chmod 1777"));
  for (const int code : {EPERM, EOPNOTSUPP}) {
    EXPECT_THAT(advice(code), HasSubstr("may have no sockets")) << code;
  }
  for (const int code : {ENOSPC, EDQUOT}) {
    EXPECT_THAT(advice(code), HasSubstr("no room for a further file"));
  }
  EXPECT_EQ(advice(EMFILE), "");
}

TEST_F(ListenerTest, AUserWhoseOwnDirectoryKeepsItOutIsToldTheMode) {
  for (const mode_t mode : {0, 0500, 0600}) {
    Chmod(temp_.path(), mode);
    EXPECT_THAT(BindAdvice(EACCES, temp_.path()),
                AllOf(HasSubstr(absl::StrFormat("mode, %04o", mode)),
                      HasSubstr("chmod u+rwx"), Not(HasSubstr("1777"))));
  }
  Chmod(temp_.path(), 0700);
}

TEST_F(ListenerTest, WhoMayNotConnectIsToldWhoseTheSocketIs) {
  Listener listener = Bind();
  const std::string& address = listener.address();
  EXPECT_THAT(ConnectAdvice(address),
              AllOf(HasSubstr("has mode 0600"), HasSubstr("SELinux")));
  Chmod(address, 0400);
  EXPECT_THAT(ConnectAdvice(address),
              AllOf(HasSubstr("has mode 0400"), HasSubstr("changed it")));
  EXPECT_EQ(ConnectAdvice(temp_.File("none")), "");
  EXPECT_THAT(LookAdvice(EACCES), HasSubstr("may not enter a directory"));
  EXPECT_EQ(LookAdvice(ENOMEM), "");
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner";
  ASSERT_EQ(::chown(address.c_str(), kStranger, kStranger), 0);
  Chmod(address, 0600);
  EXPECT_THAT(ConnectAdvice(address),
              AllOf(HasSubstr("of user " + std::to_string(kStranger)),
                    HasSubstr("Run both sides as one user"),
                    HasSubstr("PeerPolicy::also_allowed")));
  Chmod(address, 0666);
  EXPECT_THAT(ConnectAdvice(address), HasSubstr("SELinux"));
}

TEST_F(ListenerTest, RefusesAFileAsDirectory) {
  std::ofstream(temp_.File("file")) << "x";
  const absl::Status status = BindStatus(temp_.File("file"));
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("is a file and must be a directory"),
                    Not(HasSubstr("link"))));
}

TEST_F(ListenerTest, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner";
  const std::string theirs = temp_.File("theirs");
  ASSERT_EQ(::mkdir(theirs.c_str(), 0700), 0);
  ASSERT_EQ(::chown(theirs.c_str(), kStranger, kStranger), 0);
  const absl::Status status = BindStatus(theirs);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::to_string(kStranger)));
  // Not even for a server whose clients that user may be: it is not his.
  EXPECT_TRUE(absl::IsPermissionDenied(
      Listener::Bind({theirs, "x"}, {{UserId(std::to_string(kStranger))}})
          .status()));
}

TEST_F(ListenerTest, ConnectRefusesADirectoryOthersMayWrite) {
  Listener listener = Bind();
  Chmod(temp_.path(), 0777);
  EXPECT_TRUE(absl::IsPermissionDenied(ConnectStatus(listener.address())));
  Chmod(temp_.path(), 0700);
  EXPECT_TRUE(ConnectStatus(listener.address()).ok());
}

TEST_F(ListenerTest, ConnectRefusesASocketOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner";
  Listener listener = Bind();
  ASSERT_EQ(::chown(listener.address().c_str(), kStranger, kStranger), 0);
  const absl::Status status = ConnectStatus(listener.address());
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Run both sides as one user"));
}

TEST_F(ListenerTest, ConnectRefusesWhatIsNoAddress) {
  std::ofstream(temp_.File("file")) << "x";
  for (const std::string& address :
       {std::string(), std::string("/"), std::string("relative/x"),
        std::string("x"), temp_.path() + "/", std::string("\0abstract", 9),
        temp_.path() + std::string("/x\0y", 4), temp_.File("file")}) {
    const absl::Status status = ConnectStatus(address);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address << ": " << status;
  }
}

TEST_F(ListenerTest, ConnectRefusesAListenerOfAnotherKind) {
  OsHandle stream = BoundSocket("stream", SOCK_STREAM);
  ASSERT_EQ(::listen(RawFd(stream), 1), 0);
  const absl::Status status = ConnectStatus(temp_.File("stream"));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Another program's socket is there"));
}

TEST_F(ListenerTest, ConnectFindsNobodyWhereNobodyListens) {
  EXPECT_TRUE(absl::IsNotFound(ConnectStatus(temp_.File("none"))));
  const absl::Status status = ConnectStatus(Stale("stale"));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Nobody listens"));
}

TEST_F(ListenerTest, ANameThatALiveListenerHasIsTaken) {
  Listener listener = Bind("name");
  const absl::Status status = BindStatus(temp_.path(), "name");
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_TRUE(IsTakenByProcess(status)) << status;
  // It still works; the look at it is a connection that says nothing.
  Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  Channel looked = Must(listener.Accept(Late()));
  EXPECT_TRUE(absl::IsUnavailable(looked.Receive(Late()).status()));
  Channel server = Must(listener.Accept(Late()));
  Must(client.Send(5, {}, {}, Late()));
  EXPECT_EQ(Must(server.Receive(Late())).type, 5);
}

TEST_F(ListenerTest, Pitfall11TheSocketOfADeadListenerIsReplaced) {
  Stale("name");
  Listener listener = Bind("name");
  EXPECT_TRUE(ConnectStatus(listener.address()).ok());
}

TEST_F(ListenerTest, OnAFileSystemThatOtherMachinesMayHaveNoSocketIsReplaced) {
  const std::string path = Stale("name");
  // NFS, SMB, CIFS, SMB 2, AFS, Ceph, OCFS2, GFS2, Lustre, GPFS, BeeGFS.
  for (const unsigned type :
       {0x6969u, 0x517Bu, 0xFF534D42u, 0xFE534D42u, 0x5346414Fu, 0x00C36400u,
        0x7461636Fu, 0x01161970u, 0x0BD00BD0u, 0x47504653u, 0x19830326u}) {
    SCOPED_TRACE(type);
    type_of_all = type;
    const absl::Status status = BindStatus(temp_.path(), "name");
    // A name that is free is taken there.
    const absl::Status free = BindStatus(temp_.path(), "free");
    type_of_all = 0;
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("other machines"), HasSubstr("remove the file")));
    EXPECT_TRUE(free.ok()) << free;
    EXPECT_TRUE(Exists(path));
  }
  // Whose own root file system a container may have: of gVisor (9p), of rootless
  // Podman (FUSE), and of others (overlay).
  for (const unsigned type : {0x01021997u, 0x65735546u, 0x794C7630u}) {
    SCOPED_TRACE(type);
    if (!Exists(path)) Stale("name");
    type_of_all = type;
    const absl::Status status = BindStatus(temp_.path(), "name");
    type_of_all = 0;
    EXPECT_TRUE(status.ok()) << status;
  }
}

std::string RandomName(char digit) { return std::string(32, digit); }

void Age(const std::string& path) {
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  Check(::utimensat(AT_FDCWD, path.c_str(), long_ago, AT_SYMLINK_NOFOLLOW) == 0,
        "utimensat() failed");
}

int ListenAndDie(const std::vector<std::string>& args) {
  const Listener listener = Must(Listener::Bind({args[0], ""}, {}));
  testing::KillThisProcess();
}
const bool kListenAndDie = RegisterChild("listen-and-die", &ListenAndDie);

TEST_F(ListenerTest, TheSocketOfAKilledOwnerIsSweptByTheNextListener) {
  Child child = Child::Start("listen-and-die", {temp_.path()});
  EXPECT_EQ(child.Wait(), Child::kKilled);
  const auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(temp_.path()), {});
  };
  ASSERT_EQ(count(), 1);
  for (const auto& entry : std::filesystem::directory_iterator(temp_.path())) {
    Age(entry.path());
  }
  const Listener listener = Bind();
  EXPECT_EQ(count(), 1);
  EXPECT_TRUE(ConnectStatus(listener.address()).ok());
}

TEST_F(ListenerTest, OnlyWhatIsProvablyLeftBehindIsSwept) {
  std::vector<std::string> kept;
  // One that listens, whom the sweep does not disturb.
  Listener listening = Bind();
  kept.push_back(listening.address());
  // One that does not listen yet, one of a name that somebody chose, and what
  // is no socket.
  const OsHandle bound = BoundSocket(RandomName('a'), SOCK_SEQPACKET);
  kept.push_back(temp_.File(RandomName('a')));
  kept.push_back(Stale("name"));
  kept.push_back(Stale(RandomName('g')));
  kept.push_back(temp_.File(RandomName('b')));
  std::ofstream(kept.back()) << "precious";
  const std::string gone = Stale(RandomName('c'));
  kept.push_back(temp_.File(RandomName('d')));
  ASSERT_EQ(::symlink(gone.c_str(), kept.back().c_str()), 0);
  if (::geteuid() == 0) {
    kept.push_back(Stale(RandomName('e')));
    ASSERT_EQ(::chown(kept.back().c_str(), kStranger, kStranger), 0);
  }
  // Of another program, which receives datagrams.
  const OsHandle datagrams = BoundSocket(RandomName('0'), SOCK_DGRAM);
  kept.push_back(temp_.File(RandomName('0')));
  for (const std::string& path : kept) Age(path);
  Age(gone);
  // And one that may be in the making.
  kept.push_back(Stale(RandomName('f')));
  {
    Chmod(temp_.path(), 01777);
    const Listener next = Bind();
    EXPECT_TRUE(Exists(gone)) << "in a directory that is shared";
    Chmod(temp_.path(), 0700);
  }
  const Listener next = Bind();
  EXPECT_FALSE(Exists(gone));
  for (const std::string& path : kept) {
    EXPECT_TRUE(std::filesystem::symlink_status(path).type() !=
                std::filesystem::file_type::not_found)
        << path;
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      listening.Accept(absl::InfinitePast()).status()));
  EXPECT_TRUE(ConnectStatus(listening.address()).ok());
}

// There a socket of a random name has a path that is too long for an address.
TEST_F(ListenerTest, WhatCannotBeAskedForIsNotSwept) {
  const std::string folder = temp_.File(std::string(70, 'x'));
  const std::string stale = folder + "/" + RandomName('a');
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::mknod(stale.c_str(), S_IFSOCK | 0600, 0), 0);
  Age(stale);
  const Listener listener = Must(Listener::Bind({folder, "name"}, {}));
  EXPECT_TRUE(Exists(stale));
  EXPECT_TRUE(ConnectStatus(listener.address()).ok());
}

TEST_F(ListenerTest, OtherFilesAreNotReplaced) {
  std::ofstream(temp_.File("file")) << "precious";
  ASSERT_EQ(::mkdir(temp_.File("directory").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("nowhere", temp_.File("link").c_str()), 0);
  for (const char* name : {"file", "directory", "link"}) {
    const absl::Status status = BindStatus(temp_.path(), name);
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_FALSE(IsTakenByProcess(status)) << status;
  }
  std::string text;
  std::ifstream(temp_.File("file")) >> text;
  EXPECT_EQ(text, "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(temp_.File("link")));
}

TEST_F(ListenerTest, ADeadSocketOfAnotherUserIsNotReplaced) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner";
  const std::string path = Stale("name");
  ASSERT_EQ(::chown(path.c_str(), kStranger, kStranger), 0);
  const absl::Status status = BindStatus(temp_.path(), "name");
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_TRUE(Exists(path));
}

TEST_F(ListenerTest, ManyWhoWantOneNameGetItOnce) {
  Stale("name");
  std::atomic<int> won = 0;
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      absl::StatusOr<Listener> listener =
          Listener::Bind({temp_.path(), "name"}, {});
      if (listener.ok()) {
        ++won;
      } else {
        EXPECT_TRUE(absl::IsAlreadyExists(listener.status()))
            << listener.status();
      }
      ++done;
      while (done < 16) std::this_thread::yield();  // Keeps the name so long.
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 1);
}

TEST_F(ListenerTest, WhoHoldsTheDirectorysLockDelaysChosenNamesOneSecond) {
  OsHandle directory = OsHandle::Adopt(
      ::open(temp_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(RawFd(directory), LOCK_EX), 0);
  const absl::Time start = absl::Now();
  const absl::Status status = BindStatus(temp_.path(), "name");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_TRUE(BindStatus(temp_.path(), "").ok());  // Needs no lock.
}

TEST_F(ListenerTest, RemovesItsSocketWhenDestroyed) {
  std::string address;
  {
    Listener listener = Bind();
    address = listener.address();
    EXPECT_TRUE(Exists(address));
    Listener moved = std::move(listener);
    EXPECT_EQ(moved.address(), address);
  }
  EXPECT_FALSE(Exists(address));
  EXPECT_TRUE(absl::IsNotFound(ConnectStatus(address)));
}

TEST_F(ListenerTest, MoveAssignmentRemovesTheOldSocketAndKeepsTheNew) {
  Listener first = Bind("first");
  Listener second = Bind("second");
  first = std::move(second);
  EXPECT_FALSE(Exists(temp_.File("first")));
  EXPECT_TRUE(Exists(temp_.File("second")));
  EXPECT_TRUE(ConnectStatus(first.address()).ok());
}

TEST_F(ListenerTest, MoveAssignmentToItselfKeepsTheSocket) {
  Listener listener = Bind("name");
  Listener& same = listener;
  listener = std::move(same);
  EXPECT_TRUE(Exists(temp_.File("name")));
  EXPECT_TRUE(ConnectStatus(listener.address()).ok());
}

TEST_F(ListenerTest, AForkedChildDoesNotRemoveTheSocket) {
  for (const bool has_its_parents_id : {false, true}) {
    SCOPED_TRACE(has_its_parents_id);
    std::optional<testing::SameProcessId> same;
    if (has_its_parents_id) same.emplace();
    auto listener = std::make_unique<Listener>(Bind());
    EXPECT_EQ(testing::RunInFork([&] {
                listener.reset();
                return 0;
              }),
              0);
    EXPECT_TRUE(Exists(listener->address()));
    EXPECT_TRUE(ConnectStatus(listener->address()).ok());
  }
}

TEST_F(ListenerTest, DoesNotRemoveTheSocketOfItsSuccessor) {
  Listener old = Bind("name");
  ASSERT_EQ(::unlink(old.address().c_str()), 0);
  Listener successor = Bind("name");
  { Listener destroyed = std::move(old); }
  EXPECT_TRUE(Exists(successor.address()));
}

TEST_F(ListenerTest, Pitfall28AcceptEndsAtTheDeadline) {
  Listener listener = Bind();
  const absl::Time start = absl::Now();
  const absl::Status status =
      listener.Accept(start + absl::Milliseconds(50)).status();
  const absl::Duration elapsed = absl::Now() - start;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GE(elapsed, absl::Milliseconds(50));
  EXPECT_LT(elapsed, absl::Seconds(10));
}

TEST_F(ListenerTest, CancelWakesAccept) {
  Listener listener = Bind();
  CancelEvent cancel = Must(CancelEvent::Create());
  std::thread canceller([&cancel] { cancel.Notify(); });
  EXPECT_TRUE(absl::IsCancelled(
      listener.Accept(absl::InfiniteFuture(), &cancel).status()));
  canceller.join();
}

TEST_F(ListenerTest, Pitfall28ConnectToAFullQueueEndsAtTheDeadline) {
  Listener listener = Bind();
  std::vector<Channel> waiting;
  absl::Status status;
  absl::Time start;
  while (status.ok() && waiting.size() < 1000) {
    start = absl::Now();
    absl::StatusOr<Channel> channel = Channel::Connect(
        listener.address(), {}, start + absl::Milliseconds(50));
    status = channel.status();
    if (channel.ok()) waiting.push_back(*std::move(channel));
  }
  const absl::Duration elapsed = absl::Now() - start;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GE(elapsed, absl::Milliseconds(50));
  EXPECT_LT(elapsed, absl::Seconds(10));
  EXPECT_GE(waiting.size(), 64u);

  // Busy is not dead: nobody takes its name.
  const std::string name =
      std::filesystem::path(listener.address()).filename().string();
  EXPECT_TRUE(absl::IsAlreadyExists(BindStatus(temp_.path(), name)));

  // One who waits gets in as soon as there is room.
  std::thread client([&] {
    EXPECT_TRUE(Channel::Connect(listener.address(), {}, Late()).ok());
  });
  EXPECT_TRUE(listener.Accept(Late()).ok());
  client.join();
}

TEST_F(ListenerTest, ASilentClientDelaysNoOther) {
  Listener listener = Bind();
  Channel silent = Must(Channel::Connect(listener.address(), {}, Late()));
  Channel eager = Must(Channel::Connect(listener.address(), {}, Late()));
  Must(eager.Send(5, {}, {}, Late()));
  Channel first = Must(listener.Accept(Late()));
  Channel second = Must(listener.Accept(Late()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(first.Receive(In(10)).status()));
  EXPECT_EQ(Must(second.Receive(Late())).type, 5);
}

TEST_F(ListenerTest, ServesManyClients) {
  Listener listener = Bind();
  constexpr int kClients = 40;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&listener, i] {
      Channel channel = Must(Channel::Connect(listener.address(), {}, Late()));
      OsHandle memory = MemoryWith("client " + std::to_string(i));
      const OsHandle* handles[] = {&memory};
      Must(channel.Send(static_cast<std::uint16_t>(i), {}, handles, Late()));
      EXPECT_EQ(Must(channel.Receive(Late())).type, i + 1000);
    });
  }
  std::set<int> seen;
  for (int i = 0; i < kClients; ++i) {
    Channel channel = Must(listener.Accept(Late()));
    Message message = Must(channel.Receive(Late()));
    EXPECT_EQ(TextIn(message.handles.at(0)),
              "client " + std::to_string(message.type));
    seen.insert(message.type);
    Must(channel.Send(static_cast<std::uint16_t>(message.type + 1000), {}, {},
                      Late()));
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kClients));
}

TEST_F(ListenerTest, AChannelOutlivesItsListener) {
  auto listener = std::make_unique<Listener>(Bind());
  Channel client = Must(Channel::Connect(listener->address(), {}, Late()));
  Channel server = Must(listener->Accept(Late()));
  listener.reset();
  Must(client.Send(5, {}, {}, Late()));
  EXPECT_EQ(Must(server.Receive(Late())).type, 5);
}

TEST_F(ListenerTest, AClientThatLeftBeforeAcceptIsSeenAsGone) {
  Listener listener = Bind();
  { Channel gone = Must(Channel::Connect(listener.address(), {}, Late())); }
  Channel server = Must(listener.Accept(Late()));
  EXPECT_TRUE(absl::IsUnavailable(server.Receive(Late()).status()));
}

// Accepts in directory args[0] without a free descriptor, then with one.
int AcceptAtTheLimit(const std::vector<std::string>& args) {
  Listener listener = Must(Listener::Bind({args[0], ""}, {}));
  Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  absl::Status status;
  {
    DescriptorLimit limit(0);
    status = listener.Accept(Late()).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(listener.Accept(Late()).ok());
  return 0;
}
const bool kAcceptAtTheLimit =
    RegisterChild("accept_at_the_limit", &AcceptAtTheLimit);

TEST_F(ListenerTest, Pitfall15AtTheDescriptorLimitAcceptSaysSoAndGoesOn) {
  EXPECT_EQ(Child::Start("accept_at_the_limit", {temp_.path()}).Wait(), 0);
}

// The status code of DefaultChannelDirectory(); the directory, if any, must be
// args[0].
int ShowDefault(const std::vector<std::string>& args) {
  absl::StatusOr<std::string> directory = DefaultChannelDirectory();
  if (!directory.ok()) return static_cast<int>(directory.status().code());
  EXPECT_EQ(*directory, args[0]);
  Listener listener = Must(Listener::Bind({}, {}));
  EXPECT_EQ(listener.address().substr(0, args[0].size() + 1), args[0] + "/");
  return 0;
}
const bool kShowDefault = RegisterChild("show_default", &ShowDefault);

int DefaultWith(const std::string& shared, const std::string& runtime,
                const std::string& expected) {
  return Child::Start("show_default", {expected},
                      {{"NVIDIA_DRA_LOCAL_IPC_DIR", shared},
                       {"XDG_RUNTIME_DIR", runtime}})
      .Wait();
}

TEST_F(ListenerTest, Pitfall37TheDirectoryThatContainersShareComesFirst) {
  Chmod(temp_.path(), 01777);
  EXPECT_EQ(DefaultWith(temp_.path(), "/nonexistent", temp_.path()), 0);
}

TEST_F(ListenerTest, TheRuntimeDirectoryComesSecond) {
  const std::string expected = temp_.File("vmmshare");
  EXPECT_EQ(DefaultWith("", temp_.path(), expected), 0);
  EXPECT_EQ(ModeOf(expected), 0700u);
  EXPECT_EQ(DefaultWith("", temp_.path(), expected), 0);  // Now it exists.
}

TEST_F(ListenerTest, TheDirectoryThatIsMadeIsItsUsersWhateverTheUmask) {
  for (const mode_t mask : {0, 0177, 0777}) {
    const TempDirectory runtime;
    const mode_t before = ::umask(mask);
    EXPECT_EQ(DefaultWith("", runtime.path(), runtime.File("vmmshare")), 0);
    ::umask(before);
    EXPECT_EQ(ModeOf(runtime.File("vmmshare")), 0700u) << mask;
  }
}

TEST_F(ListenerTest, WithoutVariablesItIsInTmpAndTheUsersAlone) {
  const std::string expected = "/tmp/vmmshare-" + CurrentUser().text();
  EXPECT_EQ(DefaultWith("", "", expected), 0);
  EXPECT_EQ(ModeOf(expected) & 077, 0u);
}

TEST_F(ListenerTest, AVariableThatDoesNotServeIsAnErrorAndNotPassedOver) {
  const auto code = [](absl::StatusCode value) {
    return static_cast<int>(value);
  };
  EXPECT_EQ(DefaultWith("relative", temp_.path(), ""),
            code(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(DefaultWith("", "relative", ""),
            code(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(DefaultWith(temp_.File("none"), temp_.path(), ""),
            code(absl::StatusCode::kNotFound));
  EXPECT_EQ(DefaultWith("", temp_.File("none"), ""),
            code(absl::StatusCode::kNotFound));
  Chmod(temp_.path(), 0777);
  EXPECT_EQ(DefaultWith(temp_.path(), "", ""),
            code(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(DefaultWith("", temp_.path(), ""),
            code(absl::StatusCode::kPermissionDenied));
}

// In a set-user-id program: whether the directory is args[0].
int ShowDefaultSecurely(const std::vector<std::string>& args) {
  const absl::StatusOr<std::string> directory = DefaultChannelDirectory();
  const bool right = directory.ok() && *directory == args[0];
  if (!right) std::cerr << directory.status() << "\n";
  // Not through exit(): a leak checker would attach as a debugger does, which
  // the system forbids for such a program.
  ::_exit(right ? 0 : 1);
}
const bool kShowDefaultSecurely =
    RegisterChild("show_default_securely", &ShowDefaultSecurely);

// Runs this program as user kStranger by its set-user-id bit, which makes the
// system call it secure, with variables that must not be believed.
TEST_F(ListenerTest, VariablesAreIgnoredInASetUserIdProgram) {
  if (testing::IsEmulated()) GTEST_SKIP() << "qemu-user: runs none as another";
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make such a program";
  if (std::getenv("LD_LIBRARY_PATH") != nullptr) {
    GTEST_SKIP() << "LD_LIBRARY_PATH is set, which such a program ignores; "
                    "this one may need it to start";
  }
  Chmod(temp_.path(), 01777);
  const std::string program = temp_.File("program");
  std::filesystem::copy_file("/proc/self/exe", program);
  ASSERT_EQ(::chown(program.c_str(), kStranger, kStranger), 0);
  Chmod(program, 04755);
  const std::string expected = "/tmp/vmmshare-" + std::to_string(kStranger);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("NVIDIA_DRA_LOCAL_IPC_DIR", temp_.path().c_str(), 1);
    ::setenv("XDG_RUNTIME_DIR", temp_.path().c_str(), 1);
    ::setenv("VMMSHARE_CHILD_PARENT", std::to_string(::getppid()).c_str(), 1);
    ::execl(program.c_str(), program.c_str(),
            "--vmmshare_child=show_default_securely", expected.c_str(),
            nullptr);
    ::_exit(126);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  std::error_code ignored;
  std::filesystem::remove_all(expected, ignored);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace vmm::platform
