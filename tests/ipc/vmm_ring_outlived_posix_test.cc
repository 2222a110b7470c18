// One side of a ring is killed, and a process that it forked, which may have
// its GPU context, goes on: streams that wait for that side are let go only
// after the end of that one, too.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/gpu/held_stream.h"
#include "tests/ipc/forks_and_waits_posix.h"
#include "tests/ipc/ring_ipc_test.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

using Args = std::vector<std::string>;

// args: where to dial for the ring and, after that, for the test.
int RingReaderThatForks(const Args& args) {
  const Here here;
  const Stream stream;
  const std::unique_ptr<RingReader> ring =
      Must(RingReader::Open(here.device, Dial(args[0]), {}, Late()));
  Must(ring->Acquire(stream.get(), Late()));
  ForkAndWait(Dial(args[0]));
}
const bool kRingReaderThatForks =
    RegisterChild("ring-reader-that-forks", &RingReaderThatForks);

// Publishes what does not come.
int RingWriterThatForks(const Args& args) {
  const Here here;
  const std::unique_ptr<RingHome> home = Must(RingHome::Create(here.device));
  const std::unique_ptr<RingWriter> ring = Must(RingWriter::Open(
      *home, Dial(args[0]), {.buffers = 1, .bytes = kBytes}, Late()));
  HeldStream held(here.device);
  const RingBuffer buffer = Must(ring->Acquire(held.get(), Late()));
  Must(ring->Publish(buffer, held.get(), Late()));
  ForkAndWait(Dial(args[0]));
}
const bool kRingWriterThatForks =
    RegisterChild("ring-writer-that-forks", &RingWriterThatForks);

// Forks its reader before it initialises CUDA. args: where the reader is to dial
// when its stream waits, and again when that was let go.
int RingWriterThatForksItsReader(const Args& args) {
  auto [writers, readers] = Must(platform::Channel::Pair());
  if (::fork() == 0) {
    writers.Close();
    const Here here;
    const std::unique_ptr<RingReader> ring =
        Must(RingReader::Open(here.device, std::move(readers), {}, Late()));
    const Stream stream;
    Must(ring->Acquire(stream.get(), Late()));
    EXPECT_FALSE(stream.IsIdle());
    platform::Channel orders = Dial(args[0]);
    Tell(orders);
    stream.Sync();
    Tell(orders,
         std::string(ring->Acquire(stream.get(), Late()).status().message()),
         kText);
    orders.WaitForHangUp(Late()).IgnoreError();
    ::_exit(0);
  }
  readers.Close();
  const Here here;
  const std::unique_ptr<RingHome> home = Must(RingHome::Create(here.device));
  const std::unique_ptr<RingWriter> ring = Must(RingWriter::Open(
      *home, std::move(writers), {.buffers = 1, .bytes = kBytes}, Late()));
  HeldStream held(here.device);
  const RingBuffer buffer = Must(ring->Acquire(held.get(), Late()));
  Must(ring->Publish(buffer, held.get(), Late()));
  for (;;) ::pause();
}
const bool kRingWriterThatForksItsReader = RegisterChild(
    "ring-writer-that-forks-its-reader", &RingWriterThatForksItsReader);

class RingOutlived : public RingTest {
 protected:
  // A writer here, which waits for the buffer that a reader has which was
  // killed, and whose child lives until orders_ is closed.
  void LoseAReader(const Stream& stream) {
    child_.emplace(Child::Start("ring-reader-that-forks", {address()}));
    ring_ = Must(RingWriter::Open(*home_, Accept(),
                                  {.buffers = 1, .bytes = kBytes}, Late()));
    Put(stream.get());
    orders_.emplace(Accept());
    Hear(*orders_);
    Put(stream.get());
    KillReader();
    EXPECT_FALSE(stream.IsIdle());
  }
  // A reader here, and its first item, whose contents a writer has not filled
  // that was killed, and whose child lives until orders_ is closed.
  std::pair<std::unique_ptr<RingReader>, RingBuffer> LoseAWriter(
      const Stream& stream) {
    child_.emplace(Child::Start("ring-writer-that-forks", {address()}));
    std::unique_ptr<RingReader> ring =
        Must(RingReader::Open(device, Accept(), {}, Late()));
    const RingBuffer buffer = Must(ring->Acquire(stream.get(), Late()));
    orders_.emplace(Accept());
    Hear(*orders_);
    KillReader();
    return {std::move(ring), buffer};
  }
  static absl::Time Soon() { return absl::Now() + kMoment; }
};

TEST_F(RingOutlived,
       AKilledReadersBufferIsWrittenOnlyAfterTheEndOfWhatItForked) {
  const Stream stream;
  LoseAReader(stream);
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 3; ++i) {
    const absl::Time asked = absl::Now();
    ExpectFails(absl::StatusCode::kUnavailable,
                ring_->Acquire(stream.get(), Soon()).status(),
                "It has ended, but a process that it forked");
    least = std::min(least, absl::Now() - asked);
  }
  EXPECT_LT(least, absl::Seconds(1));
  EXPECT_FALSE(stream.IsIdle()) << "it writes over what somebody may use";
  orders_->Close();
  ExpectSoon([&] {
    return absl::StrContains(
        ring_->Acquire(stream.get(), Soon()).status().message(), "were let go");
  });
  stream.Sync();
  ExpectAllIsBack();
}

// Without a call of the ring, too.
TEST_F(RingOutlived, AStreamIsSynchronisedAfterTheEndOfWhatItsReaderForked) {
  const Stream stream;
  LoseAReader(stream);
  absl::SleepFor(absl::Milliseconds(350));  // Time to look several times.
  EXPECT_FALSE(stream.IsIdle()) << "it writes over what somebody may use";
  orders_->Close();
  stream.Sync();
  ExpectFails(absl::StatusCode::kUnavailable,
              ring_->Acquire(stream.get(), Soon()).status(), "were let go");
  ExpectAllIsBack();
}

TEST_F(RingOutlived, AWriterThatGoesWaitsForTheEndOfWhatItsReaderForked) {
  const Stream stream;
  LoseAReader(stream);
  std::future<void> gone =
      std::async(std::launch::async, [this] { ring_.reset(); });
  EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  EXPECT_FALSE(stream.IsIdle());
  orders_->Close();
  gone.get();
  stream.Sync();
  ExpectAllIsBack();
}

TEST_F(RingOutlived, AStreamIsSynchronisedAfterTheEndOfWhatItsWriterForked) {
  const Stream stream;
  const auto [ring, buffer] = LoseAWriter(stream);
  absl::SleepFor(absl::Milliseconds(350));
  EXPECT_FALSE(stream.IsIdle()) << "the contents may still come";
  orders_->Close();
  stream.Sync();
  ExpectFails(absl::StatusCode::kUnavailable, ring->Await(buffer, Late()),
              "were let go");
  ExpectOk(ring->Release(buffer, stream.get()));
}

// It has the writer's lifeline, too, but no context of its.
TEST_F(RingOutlived, AReaderThatItsWriterForkedGoesOn) {
  child_.emplace(
      Child::Start("ring-writer-that-forks-its-reader", {address()}));
  orders_.emplace(Accept());
  Hear(*orders_);
  KillReader();
  EXPECT_THAT(Hear(*orders_), ::testing::HasSubstr("has lost its writer"));
  orders_->Close();
}

TEST_F(RingOutlived,
       AKilledWritersContentsAreAwaitedUntilTheEndOfWhatItForked) {
  const Stream stream;
  const auto [ring, buffer] = LoseAWriter(stream);
  // The connection is open: the child has it. It says nothing all the same.
  for (int i = 0; i < 3; ++i) {
    ExpectFails(
        absl::StatusCode::kUnavailable,
        ring->Acquire(stream.get(), absl::Now() + absl::Seconds(1)).status(),
        "It has ended, but a process that it forked");
  }
  EXPECT_FALSE(stream.IsIdle()) << "the contents may still come";
  ExpectOk(ring->Release(buffer, stream.get()));
  orders_->Close();
  ExpectSoon([&] {
    return absl::StrContains(
        ring->Acquire(stream.get(), Soon()).status().message(), "were let go");
  });
  stream.Sync();
  EXPECT_FALSE(ring->Finish(Late()).ok()) << "not all contents were there";
}

}  // namespace
}  // namespace vmm::testing
