// A ring over sockets that a launcher made, which has ended; and over one that holds
// few messages.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/ipc/ring_both_sides.h"
#include "tests/ipc/ring_ipc_test.h"
#include "tests/support/receive_raw_posix.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

// Makes a pair, hands both ends to who listens at args[0], and ends.
int RingLauncherMain(const std::vector<std::string>& args) {
  const auto pair = Must(platform::Channel::Pair());
  platform::Channel to = Dial(args[0]);
  const platform::OsHandle* ends[] = {&pair.first.handle(),
                                      &pair.second.handle()};
  if (!to.Send(kGoOn, {}, ends, Late()).ok()) return 1;
  Hear(to);
  return 0;
}
const bool kRingLauncher = RegisterChild("ring-launcher", &RingLauncherMain);

TEST_F(RingTest, AReaderIsNotTakenForTheLauncherThatMadeItsSocket) {
  Child launcher = Child::Start("ring-launcher", {address()});
  platform::Channel link = Accept();
  std::vector<platform::OsHandle> ends = ReceiveRaw(link);
  Tell(link);
  ASSERT_EQ(launcher.Wait(), 0);
  RingSides ring = Must(
      OpenBothSides(device, Where(), {.buffers = 1, .bytes = kBytes},
                    {Must(platform::Channel::Adopt(std::move(ends.at(0)), {})),
                     Must(platform::Channel::Adopt(std::move(ends.at(1)), {}))},
                    Late()));
  const Stream stream;
  // The reader holds the buffer, and the writer is as far ahead as it may be.
  for (int i = 0; i < 2; ++i) {
    const RingBuffer buffer = Must(ring.writer->Acquire(stream.get(), Late()));
    ExpectOk(ring.writer->Publish(buffer, stream.get(), Late()));
    if (i == 0) Must(ring.reader->Acquire(stream.get(), Late()));
  }
  ExpectFails(
      absl::StatusCode::kDeadlineExceeded,
      ring.writer->Acquire(stream.get(), absl::Now() + kMoment).status(), "");
  ring.reader->LetGo();
  ring.writer->LetGo();
}

TEST_F(RingTest, AnItemThatCannotBeSentEndsTheRingForGood) {
  auto ends = Must(platform::Channel::Pair());
  const int least = 1;  // The system makes it some KiB.
  ASSERT_EQ(::setsockopt(static_cast<int>(ends.first.handle().get()),
                         SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)),
            0);
  RingSides ring = Must(
      OpenBothSides(device, Where(), {.buffers = kMaxRingBuffers, .bytes = 256},
                    std::move(ends), Late()));
  const Stream stream;
  absl::Status sent;
  for (std::uint32_t i = 0; i < kMaxRingBuffers && sent.ok(); ++i) {
    const RingBuffer buffer = Must(ring.writer->Acquire(stream.get(), Late()));
    sent = ring.writer->Publish(buffer, stream.get(), absl::Now() + kMoment);
  }
  const char* const words = "an item could not be sent to the reader";
  ExpectFails(absl::StatusCode::kDeadlineExceeded, sent, words);
  // Not what an Acquire() answers that may be tried again.
  ExpectFails(absl::StatusCode::kAborted,
              ring.writer->Acquire(stream.get(), Late()).status(), words);
  ExpectFails(absl::StatusCode::kAborted, ring.writer->Finish(Late()), words);
  ring.reader->LetGo();
  ring.writer->LetGo();
}

}  // namespace
}  // namespace vmm::testing
