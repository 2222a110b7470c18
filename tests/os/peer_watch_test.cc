// When a peer's end is proven: processes that are killed while others, which
// they forked, live on.
#include "platform/ipc/peer_watch.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"
#include "tests/support/fork.h"
#include "tests/support/same_process_id_posix.h"

extern char** environ;

namespace vmm::platform {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::RegisterChild;
using Args = std::vector<std::string>;

// What a forked child has that keeps all of its parent's mappings, like that of
// a program that becomes a daemon: no descriptor at all.
[[noreturn]] void SleepWithoutDescriptors() {
  ::syscall(SYS_close_range, 0U, std::numeric_limits<unsigned>::max(), 0U);
  for (;;) ::pause();
}

pid_t Fork() {
  const pid_t pid = ::fork();
  if (pid == 0) SleepWithoutDescriptors();
  return pid;
}

// Without the handlers of fork().
pid_t BareClone() {
  const long pid = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0);
  if (pid == 0) SleepWithoutDescriptors();
  return static_cast<pid_t>(pid);
}

// Forks a process that becomes another program.
pid_t ForkAndExec() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    ::_exit(1);
  }
  return pid;
}

pid_t Spawn() {
  char name[] = "sleep", time[] = "60";
  char* const arguments[] = {name, time, nullptr};
  pid_t pid = 0;
  Check(::posix_spawn(&pid, "/bin/sleep", nullptr, nullptr, arguments,
                      environ) == 0,
        "posix_spawn() failed");
  return pid;
}

void CloseAll() {
  ::syscall(SYS_close_range, 3U, std::numeric_limits<unsigned>::max(), 0U);
}

// Forks a process that initialises CUDA, as far as its lifelines are concerned.
pid_t ForkOneWithADriver() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    LetGoOfInheritedLifelines();
    SleepWithoutDescriptors();
  }
  return pid;
}

// The same, which has this process's id.
pid_t ForkOneOfThisIdWithADriver() {
  const testing::SameProcessId same;
  return ForkOneWithADriver();
}

pid_t Make(const std::string& what) {
  pid_t made = 0;
  if (what == "driver") LetGoOfInheritedLifelines();
  if (what == "fork with a driver") made = ForkOneWithADriver();
  if (what == "fork one of this id with a driver") {
    made = ForkOneOfThisIdWithADriver();
  }
  if (what == "fork" || what == "fork, close") made = Fork();
  if (what == "clone") made = BareClone();
  if (what == "exec") made = ForkAndExec();
  if (what == "spawn") made = Spawn();
  if (what == "close" || what == "fork, close") CloseAll();
  return made;
}

// args: where to dial, and what to do before and after it sends its lifeline.
// It says the id of the process that it made, if any, and waits for its end.
int Watched(const Args& args) {
  const pid_t before = Make(args[1]);
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  Must(SendLifeline(channel, Late()));
  const std::string id = std::to_string(before + Make(args[2]));
  Must(channel.Send(
      1, {reinterpret_cast<const std::uint8_t*>(id.data()), id.size()}, {},
      Late()));
  for (;;) ::pause();
}
const bool kWatched = RegisterChild("watched", &Watched);

// args: where to dial, once with the lifeline and once more when its descriptor,
// with all others, has been closed and another process forked.
int ClosesAndForks(const Args& args) {
  Channel first = Must(Channel::Connect(args[0], {}, Late()));
  Must(SendLifeline(first, Late()));
  CloseAll();
  const std::string id = std::to_string(Fork());
  Channel second = Must(Channel::Connect(args[0], {}, Late()));
  Must(second.Send(
      1, {reinterpret_cast<const std::uint8_t*>(id.data()), id.size()}, {},
      Late()));
  for (;;) ::pause();
}
const bool kClosesAndForks = RegisterChild("closes-and-forks", &ClosesAndForks);

// A killed process, and what is known of it.
class PeerWatchTest : public OsTest {
 protected:
  PeerWatch Start(const std::string& before, const std::string& after) {
    Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
    child_.emplace(
        Child::Start("watched", {listener.address(), before, after}));
    channel_.emplace(Must(listener.Accept(Late())));
    PeerWatch watch = Must(PeerWatch::Receive(*channel_, Late()));
    const Message message = Must(channel_->Receive(Late()));
    Check(absl::SimpleAtoi(
              std::string(message.payload.begin(), message.payload.end()),
              &made_),
          "no process id");
    return watch;
  }
  void KillIt() {
    child_->Kill();
    EXPECT_EQ(child_->Wait(), Child::kKilled);
  }
  void KillWhatItMade() { ::kill(made_, SIGKILL); }

  // It is not proven while what it made lives, and is 2 s after its end.
  void ExpectProofOnlyAfterTheEndOf(PeerWatch& watch) {
    EXPECT_EQ(watch.Look(), PeerEnd::kNotEnded);
    KillIt();
    for (const absl::Time until = In(100); absl::Now() < until;) {
      ASSERT_EQ(watch.Look(), PeerEnd::kUnproven);
    }
    EXPECT_THAT(std::string(watch.why()), HasSubstr("that it forked"));
    const absl::Time killed = absl::Now();
    KillWhatItMade();
    Must(watch.WaitForEnd(Late()));
    EXPECT_GE(absl::Now() - killed, absl::Seconds(2));
    EXPECT_EQ(watch.Look(), PeerEnd::kProven);
  }

  TempDirectory temp_;
  std::optional<Child> child_;
  std::optional<Channel> channel_;
  int made_ = 0;
};

TEST_F(PeerWatchTest, WithoutAForkTheEndOfTheProcessIsProof) {
  PeerWatch watch = Start("", "");
  EXPECT_EQ(watch.Look(), PeerEnd::kNotEnded);
  EXPECT_TRUE(absl::IsDeadlineExceeded(watch.WaitForEnd(In(5))));
  KillIt();
  EXPECT_EQ(watch.Look(), PeerEnd::kProven);
  EXPECT_EQ(watch.Look(), PeerEnd::kProven);
  Must(watch.WaitForEnd(absl::InfinitePast()));
}

TEST_F(PeerWatchTest, AForkedChildThatClosedAllDescriptorsIsSeen) {
  PeerWatch watch = Start("", "fork");
  ExpectProofOnlyAfterTheEndOf(watch);
}

TEST_F(PeerWatchTest, OneThatWasForkedBeforeIsSeen) {
  PeerWatch watch = Start("fork", "");
  ExpectProofOnlyAfterTheEndOf(watch);
}

TEST_F(PeerWatchTest, OneThatWasClonedWithoutHandlersIsSeen) {
  PeerWatch watch = Start("", "clone");
  ExpectProofOnlyAfterTheEndOf(watch);
}

// Killed at once, as the processes of a group are: the child's lifeline goes
// before its GPU context does.
TEST_F(PeerWatchTest, OneThatEndsTogetherWithItsParentIsWaitedFor) {
  PeerWatch watch = Start("", "fork");
  const absl::Time killed = absl::Now();
  KillWhatItMade();
  KillIt();
  EXPECT_EQ(watch.Look(), PeerEnd::kUnproven);
  Must(watch.WaitForEnd(Late()));
  EXPECT_GE(absl::Now() - killed, absl::Seconds(2));
}

TEST_F(PeerWatchTest, OneThatExecsIsNotWaitedFor) {
  PeerWatch watch = Start("", "exec");
  KillIt();
  Must(watch.WaitForEnd(Late()));
  EXPECT_EQ(::kill(made_, 0), 0) << "it lives";
  KillWhatItMade();
}

// It could not have its parent's context.
TEST_F(PeerWatchTest, OneThatInitialisesCudaIsNotWaitedFor) {
  PeerWatch watch = Start("", "fork with a driver");
  KillIt();
  Must(watch.WaitForEnd(Late()));
  EXPECT_EQ(::kill(made_, 0), 0) << "it lives";
  KillWhatItMade();
}

TEST_F(PeerWatchTest, WhoInitialisesCudaKeepsALifelineOfItsOwn) {
  PeerWatch watch = Start("driver", "fork");
  ExpectProofOnlyAfterTheEndOf(watch);
}

// It is another driver, or another copy of it: its parent's context may be here.
TEST_F(PeerWatchTest, OneThatInitialisesCudaAfterItsParentIsWaitedFor) {
  PeerWatch watch = Start("driver", "fork with a driver");
  ExpectProofOnlyAfterTheEndOf(watch);
}

TEST_F(PeerWatchTest, OneThatHasItsParentsIdIsWaitedForAllTheSame) {
  PeerWatch watch = Start("driver", "fork one of this id with a driver");
  ExpectProofOnlyAfterTheEndOf(watch);
}

TEST_F(PeerWatchTest, SpawningIsNoFork) {
  PeerWatch watch = Start("", "spawn");
  KillIt();
  EXPECT_EQ(watch.Look(), PeerEnd::kProven);
  KillWhatItMade();
}

TEST_F(PeerWatchTest, ALifelineWhoseDescriptorWasClosedIsMadeAgain) {
  PeerWatch watch = Start("close", "fork");
  ExpectProofOnlyAfterTheEndOf(watch);
}

// The child maps the one that was sent before, too.
TEST_F(PeerWatchTest, AForkAfterItWasSentAndClosedIsWaitedFor) {
  Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
  child_.emplace(Child::Start("closes-and-forks", {listener.address()}));
  Channel first = Must(listener.Accept(Late()));
  PeerWatch watch = Must(PeerWatch::Receive(first, Late()));
  Channel second = Must(listener.Accept(Late()));
  const Message message = Must(second.Receive(Late()));
  Check(
      absl::SimpleAtoi(
          std::string(message.payload.begin(), message.payload.end()), &made_),
      "no process id");
  const absl::Time killed = absl::Now();
  KillWhatItMade();
  KillIt();
  Must(watch.WaitForEnd(Late()));
  EXPECT_GE(absl::Now() - killed, absl::Seconds(2));
}

TEST_F(PeerWatchTest, OfForksWithTheClosedOneNothingIsKnown) {
  PeerWatch watch = Start("fork, close", "");
  KillIt();
  KillWhatItMade();
  const absl::Status never = watch.WaitForEnd(In(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(never));
  EXPECT_THAT(std::string(never.message()), HasSubstr("cannot be watched"));
}

// args: where to dial. Forks while nothing is left for a lifeline; the child
// speaks then, and had forked itself. It needs this main for its first fork
// alone, so that it has no lifeline at all.
int ForksUnseen(const Args& args) {
  const pid_t speaker = ::fork();
  if (speaker == 0) {
    pid_t made = 0;
    {
      const DescriptorLimit none(0);
      made = ::fork();
      if (made == 0) ::_exit(0);
    }
    int status = 0;
    Check(made > 0 && ::waitpid(made, &status, 0) == made, "fork() failed");
    Channel channel = Must(Channel::Connect(args[0], {}, Late()));
    Must(SendLifeline(channel, Late()));
    // Before Linux 6.5 nobody can refer to a process that has ended.
    Must(channel.Receive(Late()));
    ::_exit(0);
  }
  int status = 0;
  Check(::waitpid(speaker, &status, 0) == speaker, "waitpid() failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
const bool kForksUnseen = RegisterChild("forks-unseen", &ForksUnseen);

TEST_F(PeerWatchTest, OfForksWithoutALifelineNothingIsKnown) {
  Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
  Child child = Child::Start("forks-unseen", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  PeerWatch watch = Must(PeerWatch::Receive(channel, Late()));
  Must(channel.Send(1, {}, {}, Late()));
  ASSERT_EQ(child.Wait(), 0);
  EXPECT_EQ(watch.Look(), PeerEnd::kUnproven);
  EXPECT_THAT(std::string(watch.why()), HasSubstr("cannot be watched"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(watch.WaitForEnd(In(5))));
}

// args: where to dial. Who speaks is what this process cloned without the
// handlers of fork().
int Clones(const Args& args) {
  const long speaker =
      ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0);
  if (speaker == 0) {
    Channel channel = Must(Channel::Connect(args[0], {}, Late()));
    Must(SendLifeline(channel, Late()));
    Must(channel.Receive(Late()));
    ::_exit(0);
  }
  for (;;) ::pause();
}
const bool kClones = RegisterChild("clones", &Clones);

// With its parent's lifeline its end would be proven by that one's only.
TEST_F(PeerWatchTest, OneThatWasClonedWithoutHandlersHasALifelineOfItsOwn) {
  Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
  Child child = Child::Start("clones", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  PeerWatch watch = Must(PeerWatch::Receive(channel, Late()));
  EXPECT_EQ(watch.Look(), PeerEnd::kNotEnded);
  Must(channel.Send(1, {}, {}, Late()));
  Must(watch.WaitForEnd(Late()));
  EXPECT_EQ(watch.Look(), PeerEnd::kProven);
  child.Kill();
  EXPECT_EQ(child.Wait(), Child::kKilled) << "it lived all the time";
}

// --- What is no lifeline -----------------------------------------------------

class HostileLifeline : public OsTest {
 protected:
  // What Receive() says to such a message.
  absl::Status Refused(std::uint16_t type, std::size_t bytes,
                       const std::vector<const OsHandle*>& handles) {
    auto ends = Must(Channel::Pair());
    Must(ends.first.Send(type, std::vector<std::uint8_t>(bytes), handles,
                         Late()));
    return PeerWatch::Receive(ends.second, Late()).status();
  }
};

TEST_F(HostileLifeline, OtherMessagesAreRefused) {
  auto ends = Must(Channel::Pair());
  Must(SendLifeline(ends.first, Late()));
  const Message good = Must(ends.second.Receive(Late()));
  const OsHandle* const one = &good.handles[0];
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(1, 0, {one})));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(kLifelineMessage, 1, {one})));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(kLifelineMessage, 0, {})));
  EXPECT_TRUE(
      absl::IsInvalidArgument(Refused(kLifelineMessage, 0, {one, one})));
  EXPECT_TRUE(Refused(kLifelineMessage, 0, {one}).ok());
}

// args: where to dial. Sends its lifeline a second time when it is told to.
int SendsItTwice(const Args& args) {
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  Must(SendLifeline(channel, Late()));
  Must(channel.Receive(Late()));
  Must(SendLifeline(channel, Late()));
  return channel.WaitForHangUp(Late()).ok() ? 0 : 1;
}
const bool kSendsItTwice = RegisterChild("sends-it-twice", &SendsItTwice);

// Or a hostile owner would keep its importers from all others.
TEST_F(PeerWatchTest, OneThatAPeerHasSpoiledIsNotSentToOthers) {
  Listener listener = Must(Listener::Bind({temp_.path(), ""}, {}));
  Child child = Child::Start("sends-it-twice", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  const Message first = Must(channel.Receive(Late()));
  ASSERT_EQ(::fcntl(RawFd(first.handles[0]), F_ADD_SEALS, F_SEAL_SEAL), 0);
  Must(channel.Send(1, {}, {}, Late()));
  PeerWatch watch = Must(PeerWatch::Receive(channel, Late()));
  EXPECT_EQ(watch.Look(), PeerEnd::kNotEnded);
  channel.Close();
  EXPECT_EQ(child.Wait(), 0);
  Must(watch.WaitForEnd(Late()));
}

// Sends its lifeline to itself on several threads, while the receivers spoil what
// came and other files are given the numbers that become free.
int IsSpoiledMeanwhile(const Args&) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 200;
  std::atomic<bool> done = false;
  std::thread opens([&done] {
    while (!done.load()) {
      const OsHandle other =
          OsHandle::Adopt(::open("/dev/null", O_RDWR | O_CLOEXEC));
    }
  });
  std::atomic<int> wrong = 0;
  std::vector<std::thread> senders;
  for (int i = 0; i < kThreads; ++i) {
    senders.emplace_back([&wrong] {
      for (int round = 0; round < kRounds; ++round) {
        auto ends = Must(Channel::Pair());
        if (!SendLifeline(ends.first, Late()).ok()) {
          ++wrong;
          continue;
        }
        const Message came = Must(ends.second.Receive(Late()));
        const int lifeline = RawFd(came.handles[0]);
        if (::fcntl(lifeline, F_GET_SEALS) < 0) ++wrong;
        // Refused where another receiver of the same one was first.
        static_cast<void>(::fcntl(lifeline, F_ADD_SEALS, F_SEAL_SEAL));
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  done = true;
  opens.join();
  return wrong.load() == 0 ? 0 : 1;
}
const bool kIsSpoiledMeanwhile =
    RegisterChild("is-spoiled-meanwhile", &IsSpoiledMeanwhile);

// Or a hostile peer could have another file of this process sent to somebody.
TEST_F(PeerWatchTest, OneThatIsReplacedMeanwhileIsSentAllTheSame) {
  EXPECT_EQ(Child::Start("is-spoiled-meanwhile", {}).Wait(), 0);
}

TEST_F(HostileLifeline, OtherDescriptorsAreRefused) {
  const OsHandle plain = MemoryWith("no seals");
  const OsHandle sealed = OsHandle::Adopt(
      ::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Check(::fcntl(RawFd(sealed), F_ADD_SEALS, F_SEAL_SEAL) == 0, "F_SEAL_SEAL");
  const OsHandle file =
      OsHandle::Adopt(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Pipe pipe = MakePipe();
  for (const OsHandle* bad : {&plain, &sealed, &file, &pipe.read_end}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Refused(kLifelineMessage, 0, {bad})));
  }
}

OsHandle EmptyMemory() {
  return OsHandle::Adopt(
      ::memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

constexpr int kLifelineSeals =
    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

OsHandle PageWith(int seals, off_t bytes = 4096) {
  OsHandle page = EmptyMemory();
  Check(::ftruncate(RawFd(page), bytes) == 0, "ftruncate() failed");
  Check(::fcntl(RawFd(page), F_ADD_SEALS, seals) == 0, "F_ADD_SEALS failed");
  return page;
}

// Others could have whoever asks it wait: with a write() that comes to no end, or
// with many pages.
TEST_F(HostileLifeline, OneThatOthersCanWriteToIsRefused) {
  const OsHandle good = PageWith(kLifelineSeals);
  EXPECT_TRUE(Refused(kLifelineMessage, 0, {&good}).ok());
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE}) {
    const OsHandle bad = PageWith(kLifelineSeals & ~missing);
    const absl::Status status = Refused(kLifelineMessage, 0, {&bad});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << missing << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("can write to it"));
  }
  for (const off_t bytes : {0, 16, 4095, 4097, 8192}) {
    const OsHandle bad = PageWith(kLifelineSeals, bytes);
    const absl::Status status = Refused(kLifelineMessage, 0, {&bad});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bytes << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("4096 bytes"));
  }
}

// args: where to dial. Forbids seals to the lifeline that it sent, once it is
// there.
int SendsItsOwn(const Args& args) {
  const OsHandle lifeline = PageWith(kLifelineSeals);
  Channel channel = Must(Channel::Connect(args[0], {}, Late()));
  Must(channel.Send(kLifelineMessage, {}, {&lifeline}, Late()));
  Must(channel.Receive(Late()));
  Check(::fcntl(RawFd(lifeline), F_ADD_SEALS, F_SEAL_SEAL) == 0, "F_SEAL_SEAL");
  return 0;
}
const bool kSendsItsOwn = RegisterChild("sends-its-own", &SendsItsOwn);

TEST_F(HostileLifeline, OneThatCannotBeReadProvesNothing) {
  const TempDirectory temp;
  Listener listener = Must(Listener::Bind({temp.path(), ""}, {}));
  Child child = Child::Start("sends-its-own", {listener.address()});
  Channel channel = Must(listener.Accept(Late()));
  PeerWatch watch = Must(PeerWatch::Receive(channel, Late()));
  EXPECT_EQ(watch.Look(), PeerEnd::kNotEnded);
  Must(channel.Send(1, {}, {}, Late()));
  ASSERT_EQ(child.Wait(), 0);
  EXPECT_TRUE(ComesTrue([&] {
    return watch.Look() == PeerEnd::kUnproven &&
           absl::StrContains(watch.why(), "cannot be read");
  }));
}

int LifelinesMapped() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "vmmshare-lifeline")) ++count;
  }
  return count;
}

// Sends its lifeline to a peer that forbids further seals to each, until it is
// refused; then forks.
int HasItsLifelinesSealed(const Args&) {
  constexpr int kMost = 1024;
  auto ends = Must(Channel::Pair());
  absl::Status sent;
  int sealed = 0;
  while (sent.ok() && sealed <= 2 * kMost) {
    sent = SendLifeline(ends.first, Late());
    if (!sent.ok()) break;
    const OsHandle lifeline = Must(ReceiveLifeline(ends.second, Late()));
    Check(::fcntl(RawFd(lifeline), F_ADD_SEALS, F_SEAL_SEAL) == 0,
          "F_SEAL_SEAL");
    ++sealed;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
  EXPECT_THAT(std::string(sent.message()), HasSubstr("F_SEAL_SEAL"));
  EXPECT_LE(LifelinesMapped(), kMost);
  // The child can do with one of its own what its parent cannot any more.
  EXPECT_EQ(testing::RunInFork([] {
              LetGoOfInheritedLifelines();
              const int inherited = LifelinesMapped();
              auto own = Must(Channel::Pair());
              return inherited == 0 && SendLifeline(own.first, Late()).ok() ? 0
                                                                            : 1;
            }),
            0);
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kHasItsLifelinesSealed =
    RegisterChild("has-its-lifelines-sealed", &HasItsLifelinesSealed);

TEST_F(HostileLifeline, WhoSealsEachThatItIsSentHasNoMappingsWithoutEnd) {
  EXPECT_EQ(Child::Start("has-its-lifelines-sealed", {}).Wait(), 0);
}

TEST_F(HostileLifeline, WhatIsWrongWithItIsSaid) {
  const absl::Status empty = ReadLifeline(EmptyMemory()).status();
  EXPECT_TRUE(absl::IsDataLoss(empty)) << empty;
  const OsHandle sealed = EmptyMemory();
  ASSERT_EQ(::fcntl(RawFd(sealed), F_ADD_SEALS, F_SEAL_SEAL), 0);
  const absl::Status closed = ReadLifeline(sealed).status();
  EXPECT_TRUE(absl::IsPermissionDenied(closed)) << closed;
  EXPECT_THAT(std::string(closed.message()), HasSubstr("F_SEAL_WRITE"));
}

// As kernels before 5.3, and namespaces that hide the peer.
TEST_F(HostileLifeline, AProcessThatTheSystemDoesNotReferToNeverEnds) {
  auto ends = Must(Channel::Pair());
  constexpr int kSoPassPidfd = 76;
  const int off = 0;
  for (const int option : {kSoPassPidfd, SO_TIMESTAMP}) {
    // Older kernels have no such option, and are served without.
    static_cast<void>(::setsockopt(RawFd(ends.second.handle()), SOL_SOCKET,
                                   option, &off, sizeof(off)));
  }
  Must(SendLifeline(ends.first, Late()));
  PeerWatch watch = Must(PeerWatch::Receive(ends.second, Late()));
  EXPECT_FALSE(watch.CanTell());
  EXPECT_EQ(watch.Look(), PeerEnd::kNotEnded);
  const absl::Status never = watch.WaitForEnd(In(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(never)) << never;
  EXPECT_THAT(std::string(never.message()), HasSubstr("not known to have"));
}

// An owner that a process gave its lifeline to cannot have another one wait
// for it, nor hide that the process has forked.
TEST_F(HostileLifeline, WhoReceivesItCanNeitherMapNorChangeIt) {
  auto ends = Must(Channel::Pair());
  Must(SendLifeline(ends.first, Late()));
  const OsHandle lifeline = Must(ReceiveLifeline(ends.second, Late()));
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                   RawFd(lifeline), 0),
            MAP_FAILED);
  const std::uint64_t none = 0;
  EXPECT_EQ(::pwrite(RawFd(lifeline), &none, sizeof(none), 0), -1);
  EXPECT_EQ(::ftruncate(RawFd(lifeline), 0), -1);
}

}  // namespace
}  // namespace vmm::platform
