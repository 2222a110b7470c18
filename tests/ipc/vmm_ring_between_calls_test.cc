// What becomes of a host that stands in cuStreamSynchronize() when the other
// side of its ring goes: it makes no call of the ring.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/ipc/lifeline.h"
#include "tests/gpu/held_stream.h"
#include "tests/ipc/ring_ipc_test.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Time enough for a side to look after the other several times.
constexpr absl::Duration kManyLooks = absl::Milliseconds(350);

// Publishes four items, of which the third never comes. args: where to dial for
// the ring and, when that is done, for orders.
int WriterWithAGap(const std::vector<std::string>& args) {
  const Here here;
  const std::unique_ptr<RingHome> home = Must(RingHome::Create(here.device));
  const std::unique_ptr<RingWriter> ring = Must(RingWriter::Open(
      *home, Dial(args[0]), {.buffers = 4, .bytes = kBytes}, Late()));
  const Stream stream;
  HeldStream held(here.device);
  for (int i = 1; i <= 4; ++i) {
    const CUstream on = i == 3 ? held.get() : stream.get();
    const RingBuffer buffer = Must(ring->Acquire(on, Late()));
    FillItem(buffer, on);
    Must(ring->Publish(buffer, on, Late()));
    if (i != 3) stream.Sync();
  }
  platform::Channel orders = Dial(args[0]);
  Hear(orders);  // Nothing comes: it is killed.
  return 1;
}
const bool kWriterWithAGap =
    RegisterChild("ring-writer-with-a-gap", &WriterWithAGap);

class RingBetweenCalls : public RingTest {
 protected:
  // A ring of one buffer, whose stream here waits until the reader gives back
  // what it has acquired, or has not.
  void WaitForTheReader(const Stream& stream, bool it_acquires) {
    OpenRing(1);
    Put(stream.get());
    Put(stream.get());
    if (it_acquires) {
      EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
    }
    EXPECT_FALSE(stream.IsIdle());
  }
};

TEST_F(RingBetweenCalls, AWritersStreamGoesOnWhenItsReaderIsKilled) {
  for (const bool it_acquires : {false, true}) {
    const Stream stream;
    WaitForTheReader(stream, it_acquires);
    KillReader();
    stream.Sync();
    const absl::Status status = ring_->Acquire(stream.get(), Late()).status();
    ExpectFails(absl::StatusCode::kUnavailable, status, "has lost its reader");
    EXPECT_THAT(std::string(status.message()), HasSubstr("were let go"));
    ExpectAllIsBack();
  }
}

// Of what it has not acquired the reader knows no fence.
TEST_F(RingBetweenCalls, AWritersStreamGoesOnWhenItsReaderHasLeft) {
  for (const bool it_acquires : {false, true}) {
    const Stream stream;
    WaitForTheReader(stream, it_acquires);
    EXPECT_EQ(Ask("leave"), "OK");
    stream.Sync();
    ExpectFails(absl::StatusCode::kUnavailable,
                ring_->Acquire(stream.get(), Late()).status(),
                "has left the ring");
    EndReader();
    ExpectAllIsBack();
  }
}

TEST_F(RingBetweenCalls, AWritersStreamGoesOnWhenItsReaderLetsGo) {
  const Stream stream;
  WaitForTheReader(stream, false);
  EXPECT_EQ(Ask("let-go"), "OK");
  stream.Sync();
  ExpectFails(absl::StatusCode::kAborted,
              ring_->Acquire(stream.get(), Late()).status(),
              "the reader called LetGo()");
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingBetweenCalls, AWritersStreamWaitsForAReaderThatStandsStill) {
  const Stream stream;
  WaitForTheReader(stream, true);
  child_->Stop();
  absl::SleepFor(kManyLooks);
  EXPECT_FALSE(stream.IsIdle()) << "it writes over what the reader has";
  child_->Continue();
  EXPECT_EQ(Ask("release"), "OK");
  stream.Sync();
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 2 "));
  EXPECT_EQ(Ask("release"), "OK");
  ExpectOk(ring_->Finish(Late()));
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingBetweenCalls, AReadersStreamGoesOnWhenItsWriterIsKilled) {
  child_.emplace(Child::Start("ring-writer-with-a-gap", {address()}));
  const std::unique_ptr<RingReader> ring =
      Must(RingReader::Open(device, Accept(), {}, Late()));
  orders_.emplace(Accept());  // It has published all.
  const Stream stream, other;
  Results results(device, 3);
  for (int i = 1; i <= 2; ++i) {
    const RingBuffer buffer = Must(ring->Acquire(other.get(), Late()));
    ExpectOk(ring->Await(buffer, Late()));  // Its memory has come.
    results.Take(buffer, other.get());
    ExpectOk(ring->Release(buffer, other.get()));
  }
  const RingBuffer third = Must(ring->Acquire(stream.get(), Late()));
  EXPECT_FALSE(stream.IsIdle());
  KillReader();
  stream.Sync();
  ExpectFails(absl::StatusCode::kUnavailable, ring->Await(third, Late()),
              "the contents of item 3 are not there");
  ExpectOk(ring->Release(third, stream.get()));
  EXPECT_EQ(results.Wrong(), 0u);
}

TEST_F(RingBetweenCalls, WhatAKilledWriterHadFilledComesAfterItsEnd) {
  child_.emplace(Child::Start("ring-writer-with-a-gap", {address()}));
  const std::unique_ptr<RingReader> ring =
      Must(RingReader::Open(device, Accept(), {}, Late()));
  orders_.emplace(Accept());
  const Stream stream, waits;
  Results results(device, 3);
  // In its time, so that all memory has come.
  ExpectOk(ring->Await(Must(ring->Acquire(stream.get(), Late())), Late()));
  const RingBuffer second = Must(ring->Acquire(stream.get(), Late()));
  Must(ring->Acquire(waits.get(), Late()));
  KillReader();
  waits.Sync();  // Its end is proven, and all that waited let go.
  ExpectOk(ring->Await(second, Late()));
  results.Take(second, stream.get());
  const RingBuffer fourth = Must(ring->Acquire(stream.get(), Late()));
  ExpectOk(ring->Await(fourth, Late()));
  results.Take(fourth, stream.get());
  stream.Sync();
  EXPECT_EQ(results.Wrong(), 0u);
  ExpectFails(absl::StatusCode::kUnavailable,
              ring->Acquire(stream.get(), Late()).status(),
              "has lost its writer");
}

TEST_F(RingBetweenCalls, WhatTheReaderSaidIsSaidByTheNextCall) {
  {
    const Stream stream;
    WaitForTheReader(stream, false);
    KillReader();
    stream.Sync();  // The watcher has heard that it hung up.
    const absl::Status status = ring_->Finish(Late());
    ExpectFails(absl::StatusCode::kUnavailable, status, "has lost its reader");
    EXPECT_THAT(std::string(status.message()), HasSubstr("hung up"));
    ExpectAllIsBack();
  }
  OpenRing(2);
  const Stream stream;
  Put(stream.get());
  EXPECT_EQ(Ask("let-go"), "OK");
  EXPECT_EQ(Ask("leave"), "OK");
  ExpectFails(absl::StatusCode::kAborted, ring_->Finish(Late()),
              "the reader called LetGo()");
  EndReader();
  ExpectAllIsBack();
}

// Who could send more could be listened to without end.
TEST_F(RingBetweenCalls, AReaderThatLetsGoTwiceIsHungUpOn) {
  auto [mine, its] = Must(platform::Channel::Pair());
  std::thread reader([channel = &its] {
    Must(ring::DecodeOffer(Must(channel->Receive(Late())).payload));
    Must(platform::ReceiveLifeline(*channel, Late()));
    ExpectOk(channel->Send(ring::kRingJoined, {}, {}, Late()));
    ExpectOk(platform::SendLifeline(*channel, Late()));
    for (int i = 0; i < 3; ++i) {
      ExpectOk(channel->Send(ring::kRingLetGo, {}, {}, Late()));
    }
  });
  ring_ = Must(RingWriter::Open(*home_, std::move(mine),
                                {.buffers = 1, .bytes = kBytes}, Late()));
  reader.join();
  const Stream stream;
  const RingBuffer buffer = Must(ring_->Acquire(stream.get(), Late()));
  ExpectFails(absl::StatusCode::kAborted,
              ring_->Publish(buffer, stream.get(), Late()),
              "the reader called LetGo()");
  ExpectOk(its.WaitForHangUp(Late()));
  ExpectAllIsBack();
}

TEST_F(RingBetweenCalls, LettingGoTwiceIsSaidOnce) {
  auto [mine, its] = Must(platform::Channel::Pair());
  ring::RingPeer peer(std::move(mine), "writer");
  peer.SayLetGo();
  peer.SayLetGo();
  EXPECT_EQ(Must(its.Receive(Late())).type, ring::kRingLetGo);
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(its.Receive(absl::InfinitePast()).status()));
  peer.Leave(/*has_passed=*/true);
  EXPECT_EQ(Must(its.Receive(Late())).type, ring::kRingBye);
}

// Memory of fences is worn out by that.
TEST_F(RingBetweenCalls, NoFenceIsAbandonedForAReaderThatGaveAllBack) {
  auto [mine, its] = Must(platform::Channel::Pair());
  std::unique_ptr<ImportedFencePool> fences;
  std::vector<Fence> known;
  std::thread reader([&, channel = std::move(its)]() mutable {
    const ring::Offer offer =
        Must(ring::DecodeOffer(Must(channel.Receive(Late())).payload));
    Must(platform::ReceiveLifeline(channel, Late()));
    ExpectOk(channel.Send(ring::kRingJoined, {}, {}, Late()));
    ExpectOk(platform::SendLifeline(channel, Late()));
    const RingItem item =
        Must(DecodeRingItem(Must(channel.Receive(Late())).payload));
    fences = Must(ImportedFencePool::Subscribe(driver(), offer.fences,
                                               {.devices = {device}}, Late()));
    for (const FenceTicket& ticket : {item.full, item.free}) {
      known.push_back(Must(fences->Import(ticket, Late())));
    }
    ExpectOk(known[1].SignalFromHost(1));
    ExpectOk(channel.Send(ring::kRingBye, {}, {}, Late()));
  });
  ring_ = Must(RingWriter::Open(*home_, std::move(mine),
                                {.buffers = 1, .bytes = kBytes}, Late()));
  const Stream stream;
  Put(stream.get());
  reader.join();
  stream.Sync();
  absl::SleepFor(kManyLooks);
  for (const Fence& fence : known) EXPECT_EQ(Must(fence.Query()), 1u);
  known.clear();
  ExpectAllIsBack();
}

}  // namespace
}  // namespace vmm::testing
