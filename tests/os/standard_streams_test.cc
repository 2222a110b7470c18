// A program that was started with its standard streams closed: what it prints
// goes nowhere, and not into shared memory or a protocol's socket.
#include "platform/os/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "platform/ipc/channel.h"
#include "platform/ipc/shared_memory.h"
#include "platform/os/descriptor_posix.h"
#include "tests/os/os_test.h"
#include "tests/support/child.h"

namespace vmm::platform {
namespace {

using testing::Child;
using testing::RegisterChild;

// Whether one of 0, 1 and 2 is open.
bool AnyIsOpen() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) return true;
  }
  return false;
}

// Everything that makes or receives descriptors. args: a directory. What it
// returns says at which step one of them was 0, 1 or 2.
int WithoutStreams(const std::vector<std::string>& args) {
  for (int fd = 0; fd <= 2; ++fd) ::close(fd);
  auto pair = Must(Channel::Pair());
  if (AnyIsOpen()) return 1;
  const CancelEvent event = Must(CancelEvent::Create());
  if (AnyIsOpen()) return 2;
  const SharedMemory shared =
      Must(SharedMemory::Create(4096, PeerAccess::kRead));
  if (AnyIsOpen()) return 3;
  const OsHandle* handles[] = {&event.handle(), &shared.handle()};
  Must(pair.first.Send(1, {}, handles, Late()));
  const Message message = Must(pair.second.Receive(Late()));
  if (AnyIsOpen()) return 4;
  const Process peer = Must(pair.second.OpenPeer());
  const Process self = Must(Process::Open(CurrentProcessId()));
  if (AnyIsOpen()) return 5;
  Listener listener = Must(Listener::Bind({args[0], "name"}, {}));
  Channel client = Must(Channel::Connect(listener.address(), {}, Late()));
  Channel server = Must(listener.Accept(Late()));
  if (AnyIsOpen()) return 6;
  const OsHandle copy = Must(Duplicate(event.handle()));
  return AnyIsOpen() ? 7 : 0;
}
const bool kWithoutStreams = RegisterChild("without_streams", &WithoutStreams);

TEST(StandardStreamsTest, NoDescriptorOfOursTakesTheirPlace) {
  const TempDirectory directory;
  EXPECT_EQ(Child::Start("without_streams", {directory.path()}).Wait(), 0);
}

// What it returns says what went wrong.
int WithNothingToHoldThem(const std::vector<std::string>&) {
  for (int fd = 0; fd <= 2; ++fd) ::close(fd);
  if (WriteWithoutWaiting(stderr, "to nobody") != Written::kFailed) return 1;
  rlimit before{};
  Check(::getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit() failed");
  const rlimit none{0, before.rlim_max};
  Check(::setrlimit(RLIMIT_NOFILE, &none) == 0, "setrlimit() failed");
  const absl::Status refused = HoldStandardStreams();
  Check(::setrlimit(RLIMIT_NOFILE, &before) == 0, "setrlimit() failed");
  if (!absl::IsResourceExhausted(refused)) return 2;
  if (!absl::StrContains(refused.message(), "open(/dev/null)")) return 3;
  if (AnyIsOpen()) return 4;
  Must(HoldStandardStreams());
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) return 5;
  }
  // They are there, and are no use: each is open in the other direction.
  const Written nowhere = WriteWithoutWaiting(stderr, "to nobody");
  return nowhere == Written::kFailed ? 0 : 6;
}
const bool kWithNothing = RegisterChild("nothing_left", &WithNothingToHoldThem);

TEST(StandardStreamsTest, WhereNothingCanHoldThemTheErrorSaysSo) {
  EXPECT_EQ(Child::Start("nothing_left", {}).Wait(), 0);
}

// Its standard output or error is a pipe that nobody reads, and then one whose
// reader is gone. args: "stdout" or "stderr". What it returns says what went
// wrong.
int NobodyReads(const std::vector<std::string>& args) {
  std::FILE* const stream = args[0] == "stdout" ? stdout : stderr;
  const int fd = ::fileno(stream);
  if (::signal(SIGPIPE, SIG_IGN) == SIG_ERR) return 1;
  Pipe pipe = MakePipe();
  if (::dup2(RawFd(pipe.write_end), fd) < 0) return 1;
  if (WriteWithoutWaiting(stream, "there is room") != Written::kWhole) return 2;
  const std::string much(4096, 'x');
  while (::write(fd, much.data(), much.size()) > 0) {
  }
  // Its other users may have it wait.
  if (::fcntl(fd, F_SETFL, 0) != 0) return 3;
  if (WriteWithoutWaiting(stream, "no room") != Written::kNotYet) return 4;
  std::string read(4096, '\0');
  if (::read(RawFd(pipe.read_end), read.data(), read.size()) != 4096) return 5;
  if (read.substr(0, 14) != "there is roomx") return 6;
  if (WriteWithoutWaiting(stream, much) != Written::kWhole) return 7;
  pipe.read_end = OsHandle();
  const Written gone = WriteWithoutWaiting(stream, "to nobody");
  return gone == Written::kFailed ? 0 : 8;
}
const bool kNobodyReads = RegisterChild("nobody_reads", &NobodyReads);

TEST(StandardStreamsTest, WhatNobodyReadsHoldsUpNobody) {
  EXPECT_EQ(Child::Start("nobody_reads", {"stderr"}).Wait(), 0);
  EXPECT_EQ(Child::Start("nobody_reads", {"stdout"}).Wait(), 0);
}

TEST(StandardStreamsTest, AnErrorIsAnError) {
  errno = EMFILE;
  EXPECT_FALSE(AdoptDescriptor(-1).has_value());
  EXPECT_EQ(errno, EMFILE);
}

}  // namespace
}  // namespace vmm::platform
