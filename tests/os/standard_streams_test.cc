// A program that was started with its standard streams closed: what it prints
// goes nowhere, and not into shared memory or a protocol's socket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

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

TEST(StandardStreamsTest, AnErrorIsAnError) {
  errno = EMFILE;
  EXPECT_FALSE(AdoptDescriptor(-1).has_value());
  EXPECT_EQ(errno, EMFILE);
}

}  // namespace
}  // namespace vmm::platform
