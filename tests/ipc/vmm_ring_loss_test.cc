// What becomes of one side of a ring when the other is killed, leaves, or sends
// nonsense.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "platform/cuda/driver_table.h"
#include "platform/ipc/lifeline.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/ipc/ring_both_sides.h"
#include "tests/ipc/ring_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "tests/support/fork.h"
#include "tests/support/how_many.h"
#include "vmm/memory/internal/wire.h"
#include "vmm/queue/internal/last_point.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/ring.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A process that publishes two items and a third whose contents never come.
// args: where to dial.
int RingWriterMain(const std::vector<std::string>& args) {
  const Here here;
  const std::unique_ptr<RingHome> home = Must(RingHome::Create(here.device));
  const std::unique_ptr<RingWriter> ring = Must(RingWriter::Open(
      *home, Dial(args[0]), {.buffers = 4, .bytes = kBytes}, Late()));
  const Stream stream;
  HeldStream held(here.device);
  for (int i = 0; i < 3; ++i) {
    const CUstream on = i < 2 ? stream.get() : held.get();
    const RingBuffer buffer = Must(ring->Acquire(on, Late()));
    FillItem(buffer, on);
    Must(ring->Publish(buffer, on, Late()));
    if (i < 2) stream.Sync();
  }
  platform::Channel orders = Dial(args[0]);
  Hear(orders);  // Nothing comes: it is killed.
  return 1;
}
const bool kRingWriter = RegisterChild("ring-writer", &RingWriterMain);

// Publishes one item after another until it is killed. args: where to dial.
int EndlessWriterMain(const std::vector<std::string>& args) {
  const Here here;
  const std::unique_ptr<RingHome> home = Must(RingHome::Create(here.device));
  const std::unique_ptr<RingWriter> ring = Must(RingWriter::Open(
      *home, Dial(args[0]), {.buffers = 3, .bytes = kBytes}, Late()));
  const Stream stream;
  for (;;) {
    const RingBuffer buffer = Must(ring->Acquire(stream.get(), Late()));
    FillItem(buffer, stream.get());
    Must(ring->Publish(buffer, stream.get(), Late()));
  }
}
const bool kEndlessWriter =
    RegisterChild("ring-writer-without-end", &EndlessWriterMain);

// Goes while its GPU copies an item. args: where to dial.
int ImpatientReaderMain(const std::vector<std::string>& args) {
  const Here here;
  std::unique_ptr<RingReader> ring = Must(RingReader::Open(
      here.device, Dial(args[0]), {.patience = kMoment}, Late()));
  platform::Channel orders = Dial(args[0]);
  HeldStream held(here.device);
  Results results(here.device, 1);
  const RingBuffer buffer = Must(ring->Acquire(held.get(), Late()));
  Must(ring->Await(buffer, Late()));
  results.Take(buffer, held.get());
  Must(ring->Release(buffer, held.get()));
  ring.reset();
  Tell(orders, "gone");
  Hear(orders);
  held.Release();
  EXPECT_EQ(TestDriver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  Tell(orders, absl::StrCat(results.Wrong(), " wrong"));
  orders.WaitForHangUp(Late()).IgnoreError();
  return ::testing::Test::HasFailure() ? 1 : 0;
}
const bool kImpatientReader =
    RegisterChild("ring-reader-without-patience", &ImpatientReaderMain);

class RingLoss : public RingTest {
 protected:
  // A ring that the test reads, of a process that has published three items.
  std::unique_ptr<RingReader> ReadTheWriterProcess() {
    child_.emplace(Child::Start("ring-writer", {address()}));
    std::unique_ptr<RingReader> ring =
        Must(RingReader::Open(device, Accept(), {}, Late()));
    orders_.emplace(Accept());  // It has published them.
    return ring;
  }
};

TEST_F(RingLoss, AReaderThatIsKilledIsUnavailableAndItsWritersStreamGoesOn) {
  // Killed before it has acquired anything, while it holds an item, and when
  // it has given one back.
  for (const char* orders : {"", "acquire", "acquire release"}) {
    SCOPED_TRACE(orders);
    OpenRing(2);
    const Stream stream;
    for (int i = 0; i < 4; ++i) Put(stream.get());
    for (const std::string& order :
         std::vector<std::string>(absl::StrSplit(orders, ' '))) {
      if (order.empty()) continue;
      EXPECT_THAT(Ask(order), StartsWith("OK"));
    }
    EXPECT_FALSE(stream.IsIdle());
    KillReader();
    absl::Status status;
    do {
      const absl::StatusOr<RingBuffer> next =
          ring_->Acquire(stream.get(), Late());
      status = next.status();
      if (next.ok()) status = ring_->Publish(*next, stream.get(), Late());
    } while (status.ok());
    ExpectFails(absl::StatusCode::kUnavailable, status, "has lost its reader");
    EXPECT_THAT(std::string(status.message()), HasSubstr("were let go"));
    stream.Sync();
    EXPECT_EQ(ring_->Finish(Late()), status);
    EXPECT_EQ(ring_->Acquire(stream.get(), Late()).status(), status);
    ExpectAllIsBack();
  }
}

// At whatever it is just doing.
TEST_F(RingLoss, AReaderThatIsKilledAtAnyMomentLosesNothingOfTheWriters) {
  const std::uint64_t times = HowMany("VMMSHARE_TEST_KILLS", 25);
  for (std::uint64_t i = 0; i < times; ++i) {
    SCOPED_TRACE(i);
    OpenRing(1 + static_cast<std::uint32_t>(i) % 4);
    const Stream stream;
    Order("consume 200");
    absl::Status status;
    for (std::uint64_t item = 0; item < 200 && status.ok(); ++item) {
      if (item == 1 + i * 7 % 60) child_->Kill();
      const absl::StatusOr<RingBuffer> next =
          ring_->Acquire(stream.get(), Late());
      status = next.status();
      if (!next.ok()) break;
      FillItem(*next, stream.get());
      status = ring_->Publish(*next, stream.get(), Late());
    }
    ExpectFails(absl::StatusCode::kUnavailable, status, "has lost its reader");
    EXPECT_EQ(child_->Wait(), Child::kKilled);
    stream.Sync();
    ExpectAllIsBack();
  }
}

TEST_F(RingLoss, AWriterThatIsKilledAtAnyMomentLeavesNoWrongContents) {
  const std::uint64_t times = HowMany("VMMSHARE_TEST_KILLS", 25);
  for (std::uint64_t i = 0; i < times; ++i) {
    SCOPED_TRACE(i);
    child_.emplace(Child::Start("ring-writer-without-end", {address()}));
    const std::unique_ptr<RingReader> ring =
        Must(RingReader::Open(device, Accept(), {}, Late()));
    const Stream stream;
    Results results(device, 200);
    absl::Status status;
    for (std::uint64_t item = 0; item < 200 && status.ok(); ++item) {
      if (item == 1 + i * 7 % 60) child_->Kill();
      const absl::StatusOr<RingBuffer> next =
          ring->Acquire(stream.get(), Late());
      status = next.status();
      if (!next.ok()) break;
      // What came before the kill came whole; what did not come says so.
      const absl::Status there = ring->Await(*next, Late());
      if (there.ok()) results.Take(*next, stream.get());
      ExpectOk(ring->Release(*next, stream.get()));
    }
    ExpectFails(absl::StatusCode::kUnavailable, status, "has lost its writer");
    EXPECT_EQ(child_->Wait(), Child::kKilled);
    stream.Sync();
    EXPECT_EQ(results.Wrong(), 0u);
  }
}

TEST_F(RingLoss, FinishingEndsWhenTheReaderIsKilled) {
  OpenRing(2);
  const Stream stream;
  Put(stream.get());
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              ring_->Finish(absl::Now() + kMoment), "item 1 is not given back");
  KillReader();
  ExpectFails(absl::StatusCode::kUnavailable, ring_->Finish(Late()),
              "has lost its reader");
  ExpectAllIsBack();
}

TEST_F(RingLoss, AReaderThatLeavesIsUnavailable) {
  OpenRing(1);
  const Stream stream;
  Put(stream.get());
  Put(stream.get());
  EXPECT_FALSE(stream.IsIdle());
  EXPECT_EQ(Ask("leave"), "OK");
  ExpectFails(absl::StatusCode::kUnavailable,
              ring_->Acquire(stream.get(), Late()).status(),
              "has left the ring");
  stream.Sync();
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingLoss, NothingIsPublishedToAReaderThatHasLeft) {
  OpenRing(2);
  const Stream stream;
  const RingBuffer buffer = Must(ring_->Acquire(stream.get(), Late()));
  EXPECT_EQ(Ask("leave"), "OK");
  ExpectFails(absl::StatusCode::kUnavailable,
              ring_->Publish(buffer, stream.get(), Late()),
              "has left the ring");
  EndReader();
  // It went back all the same, in the stream's order.
  ExpectAllIsBack();
}

TEST_F(RingLoss, ABufferThatIsNotPublishedIsKeptUntilTheHomeGoes) {
  OpenRing(2);
  const Stream stream;
  Must(ring_->Acquire(stream.get(), Late()));
  KillReader();
  ring_.reset();
  // Nobody knows whether the GPU still writes to it.
  EXPECT_EQ(home_->pool().statistics().live_blocks, 1u);
}

TEST_F(RingLoss, AWriterThatIsKilledLeavesWhatItHasPublished) {
  const std::unique_ptr<RingReader> ring = ReadTheWriterProcess();
  const Stream stream;
  Results results(device, 2);
  // The memory of all three has come when the first is here: a writer that is
  // killed sooner has not sent it, it may be.
  RingBuffer taken = Must(ring->Acquire(stream.get(), Late()));
  child_->Kill();
  EXPECT_EQ(child_->Wait(), Child::kKilled);
  for (int i = 0; i < 2; ++i) {
    if (i > 0) taken = Must(ring->Acquire(stream.get(), Late()));
    ExpectOk(ring->Await(taken, Late()));
    results.Take(taken, stream.get());
    ExpectOk(ring->Release(taken, stream.get()));
  }
  stream.Sync();
  EXPECT_EQ(results.Wrong(), 0u);
  // The third was published, and its contents never came. Its stream may be
  // made to wait until the writer's end is proven, and is let go then.
  absl::StatusOr<RingBuffer> third = ring->Acquire(stream.get(), Late());
  absl::Status lost = third.status();
  if (third.ok()) {
    ExpectFails(absl::StatusCode::kUnavailable, ring->Await(*third, Late()),
                "the contents of item 3 are not there");
    ExpectOk(ring->Release(*third, stream.get()));
    lost = ring->Acquire(stream.get(), Late()).status();
  }
  ExpectFails(absl::StatusCode::kUnavailable, lost, "has lost its writer");
  stream.Sync();
  if (third.ok()) {
    ExpectFails(absl::StatusCode::kUnavailable, ring->Finish(Late()),
                "the contents of item 3 are not there");
  }
}

TEST_F(RingLoss, AwaitingContentsEndsWhenTheWriterIsKilled) {
  const std::unique_ptr<RingReader> ring = ReadTheWriterProcess();
  const Stream stream;
  RingBuffer buffer;
  for (int i = 0; i < 3; ++i) {
    buffer = Must(ring->Acquire(stream.get(), Late()));
    if (i < 2) ExpectOk(ring->Release(buffer, stream.get()));
  }
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              ring->Await(buffer, absl::Now() + kMoment), "item 3");
  child_->Kill();
  ExpectFails(absl::StatusCode::kUnavailable, ring->Await(buffer, Late()),
              "has lost its writer");
  EXPECT_EQ(child_->Wait(), Child::kKilled);
  stream.Sync();
}

TEST_F(RingLoss, AWriterThatGoesLeavesTheReaderWhatItHasPublished) {
  OpenRing(2);
  const Stream stream;
  for (int i = 0; i < 4; ++i) Put(stream.get());
  Order("consume 4");
  ring_.reset();
  EXPECT_EQ(home_->pool().statistics().live_blocks, 0u);
  EXPECT_THAT(Answer(), HasSubstr("left the ring without finishing it"));
  EXPECT_EQ(Ask("finish"), "OK") << "all contents were there";
  EndReader();
  ExpectAllIsBack();
}

// Its stream would write over what the reader has; so it waits.
TEST_F(RingLoss, AWriterThatGoesWaitsForItsReaderUntilItsPatienceEnds) {
  StartReader();
  Order("join");
  ring_ = Must(RingWriter::Open(
      *home_, Accept(),
      {.buffers = 1, .bytes = kBytes, .patience = 10 * kMoment}, Late()));
  EXPECT_EQ(Answer(), "OK");
  const Stream stream;
  Put(stream.get());
  Put(stream.get());
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
  EXPECT_EQ(Ask("await"), "OK");
  const absl::Time start = absl::Now();
  ring_.reset();
  EXPECT_GE(absl::Now() - start, 10 * kMoment);
  stream.Sync();
  EXPECT_THAT(Ask("release"), StartsWith("ABORTED")) << "it was written over";
  EndReader();
  ExpectAllIsBack();
}

// Of the buffers that it never acquired it knows no fence, which it could have
// abandoned: the writer's stream waits for one of those.
TEST_F(RingLoss, AWriterThatGoesHearsThatItsReaderHasLeft) {
  RingSides ring = Must(OpenBothSides(
      device, {.endpoint = {.listener = {listener_directory(), ""}}},
      {.buffers = 2, .bytes = kBytes, .patience = absl::Minutes(1)}, Late()));
  const Stream first, second, reading;
  for (int i = 0; i < 4; ++i) {
    const CUstream stream = i % 2 == 0 ? first.get() : second.get();
    const RingBuffer buffer = Must(ring.writer->Acquire(stream, Late()));
    FillItem(buffer, stream);
    Must(ring.writer->Publish(buffer, stream, Late()));
  }
  const RingBuffer item = Must(ring.reader->Acquire(reading.get(), Late()));
  Must(ring.reader->Release(item, reading.get()));
  ring.reader.reset();
  const absl::Time start = absl::Now();
  ring.writer.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

// A writer that has no memory for its buffers says that it leaves, and no more.
TEST_F(RingLoss, AWriterThatCannotMakeItsBuffersIsUnavailable) {
  auto [mine, its] = Must(platform::Channel::Pair());
  ExpectFails(
      absl::StatusCode::kInvalidArgument,
      RingWriter::Open(*home_, std::move(mine),
                       {.buffers = 2, .bytes = std::uint64_t{1} << 55}, Late())
          .status(),
      "a block of");
  ExpectFails(absl::StatusCode::kUnavailable,
              RingReader::Open(device, std::move(its), {}, Late()).status(),
              "the writer left before it offered a ring");
  ExpectAllIsBack();
}

// Nor one that has no descriptor for its lifeline.
TEST_F(RingLoss, AWriterThatCannotSendItsLifelineIsUnavailable) {
  if (!MayFork()) GTEST_SKIP() << "no lifeline is sent here";
  auto [mine, its] = Must(platform::Channel::Pair());
  ExpectOk(mine.Send(ring::kRingOffer,
                     ring::EncodeOffer({.buffers = 1,
                                        .bytes = kBytes,
                                        .pool = home_->pool_ticket(),
                                        .fences = home_->fences_ticket()}),
                     {}, Late()));
  ExpectOk(mine.Send(ring::kRingBye, {}, {}, Late()));
  ExpectFails(absl::StatusCode::kUnavailable,
              RingReader::Open(device, std::move(its), {}, Late()).status(),
              "the writer gave up while it opened");
  ExpectAllIsBack();
}

TEST_F(RingLoss, AReaderIsToldWhyAndTellsTheWriter) {
  StartReader();
  Order("join");
  platform::Channel channel = Accept();
  const std::vector<std::uint8_t> offer = ring::EncodeOffer(
      {.buffers = 1, .bytes = 1, .pool = "nonsense", .fences = "nonsense"});
  ExpectOk(channel.Send(ring::kRingOffer, offer, {}, Late()));
  ExpectOk(platform::SendLifeline(channel, Late()));
  EXPECT_THAT(Answer(),
              StartsWith("INVALID_ARGUMENT: not a usable pool string"));
  const platform::Message refusal = Must(channel.Receive(Late()));
  EXPECT_EQ(refusal.type, protocol::kRefused);
  EXPECT_THAT(
      std::string(
          protocol::DecodeError(refusal.payload, "the reader").message()),
      StartsWith("the reader refused: not a usable pool string"));
  orders_->Close();
  EXPECT_EQ(child_->Wait(), 0);
}

// What a reader may answer to an offer, and what comes of it.
TEST_F(RingLoss, AReaderThatAnswersSomethingElseIsRefused) {
  struct Case {
    std::function<void(platform::Channel&)> answer;
    absl::StatusCode code;
    const char* words;
  };
  const Case cases[] = {
      {[](platform::Channel& c) { c.Close(); }, absl::StatusCode::kUnavailable,
       "hung up"},
      {[](platform::Channel&) {}, absl::StatusCode::kDeadlineExceeded,
       "did not join"},
      {[](platform::Channel& c) { Tell(c, "x", 7); },
       absl::StatusCode::kDataLoss, "type 0x7"},
      {[](platform::Channel& c) {
         Must(protocol::SendError(c, protocol::kRefused,
                                  absl::ResourceExhaustedError("full"),
                                  Late()));
       },
       absl::StatusCode::kResourceExhausted, "the reader refused: full"},
  };
  for (const Case& one : cases) {
    auto [ours, theirs] = Must(platform::Channel::Pair());
    one.answer(theirs);
    const absl::Duration patience =
        one.code == absl::StatusCode::kDeadlineExceeded ? kMoment
                                                        : absl::Seconds(30);
    ExpectFails(one.code,
                RingWriter::Open(*home_, std::move(ours),
                                 {.buffers = 2, .bytes = kBytes},
                                 absl::Now() + patience)
                    .status(),
                one.words);
  }
  ExpectAllIsBack();
}

// A writer that sends items which are none of its ring. Each case is sent
// after a good first item of a ring of two buffers.
TEST_F(RingLoss, AReaderBelievesNoItemThatIsNoneOfTheRing) {
  struct Case {
    std::function<void(RingItem&)> spoil;
    const char* words;
  };
  const Case cases[] = {
      {[](RingItem& item) { item.number = 3; }, "item 3 of lap 1"},
      {[](RingItem& item) { item.number = 1; }, "which is in use"},
      {[](RingItem& item) { item.number = 4, item.lap = 2; }, "expected lap 1"},
      {[](RingItem& item) { item.number = 5, item.lap = 3; },
       "after lap 1 of its buffer, which is in use"},
      {[](RingItem& item) {
         item.number = 3, item.lap = 2;
         std::swap(item.full, item.free);
       },
       "another buffer than before"},
      {[](RingItem& item) { item.size = kBytes + 1; }, "262145 bytes"},
      {[](RingItem& item) { item.block.size = item.size = 256; }, "256 bytes"},
      {[](RingItem& item) { item.lap = 0; }, "of lap 0"},
  };
  const CUdeviceptr block = Must(home_->pool().Allocate(kBytes, nullptr));
  Fence full = Must(home_->fences().New());
  Fence free = Must(home_->fences().New());
  RingItem good;
  good.number = good.lap = 1;
  good.size = kBytes;
  good.block = Must(home_->pool().Export(block));
  good.full = Must(home_->fences().Export(full));
  good.free = Must(home_->fences().Export(free));
  ExpectOk(full.SignalFromHost(1));
  for (const Case& one : cases) {
    SCOPED_TRACE(one.words);
    StartReader();
    Order("join");
    platform::Channel channel = Accept();
    ExpectOk(channel.Send(ring::kRingOffer,
                          ring::EncodeOffer({.buffers = 2,
                                             .bytes = kBytes,
                                             .pool = home_->pool_ticket(),
                                             .fences = home_->fences_ticket()}),
                          {}, Late()));
    ExpectOk(platform::SendLifeline(channel, Late()));
    EXPECT_EQ(Must(channel.Receive(Late())).type, ring::kRingJoined);
    EXPECT_EQ(Answer(), "OK");
    ExpectOk(channel.Send(ring::kRingItem, EncodeRingItem(good), {}, Late()));
    EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
    RingItem bad = good;
    bad.number = 2;
    one.spoil(bad);
    ExpectOk(channel.Send(ring::kRingItem, EncodeRingItem(bad), {}, Late()));
    const std::string answer = Ask("acquire");
    EXPECT_THAT(answer, StartsWith("DATA_LOSS"));
    EXPECT_THAT(answer, HasSubstr(one.words));
    EXPECT_EQ(Ask("acquire"), answer) << "the ring has ended";
    KillReader();
  }
  ExpectOk(home_->pool().Free(block, nullptr));
}

TEST_F(RingLoss, AReaderBelievesNoLapThatDoesNotFollow) {
  // The same again, and with a lap left out.
  for (const std::uint64_t lap : {1, 3}) {
    StartReader();
    Order("join");
    platform::Channel channel = Accept();
    const CUdeviceptr block = Must(home_->pool().Allocate(kBytes, nullptr));
    Fence full = Must(home_->fences().New());
    Fence free = Must(home_->fences().New());
    RingItem item;
    item.number = item.lap = 1;
    item.block = Must(home_->pool().Export(block));
    item.full = Must(home_->fences().Export(full));
    item.free = Must(home_->fences().Export(free));
    ExpectOk(full.SignalFromHost(3));
    ExpectOk(channel.Send(ring::kRingOffer,
                          ring::EncodeOffer({.buffers = 2,
                                             .bytes = kBytes,
                                             .pool = home_->pool_ticket(),
                                             .fences = home_->fences_ticket()}),
                          {}, Late()));
    ExpectOk(platform::SendLifeline(channel, Late()));
    EXPECT_EQ(Must(channel.Receive(Late())).type, ring::kRingJoined);
    EXPECT_EQ(Answer(), "OK");
    ExpectOk(channel.Send(ring::kRingItem, EncodeRingItem(item), {}, Late()));
    EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
    EXPECT_EQ(Ask("release"), "OK");
    item.lap = lap;
    item.number = 2 * lap - 1;
    ExpectOk(channel.Send(ring::kRingItem, EncodeRingItem(item), {}, Late()));
    EXPECT_THAT(Ask("acquire"), HasSubstr("after lap 1 of its buffer"));
    KillReader();
    ExpectOk(home_->pool().Free(block, nullptr));
  }
}

TEST_F(RingLoss, AReaderBelievesNoEndThatIsNone) {
  for (const std::vector<std::uint8_t>& payload :
       {std::vector<std::uint8_t>(8, 1), std::vector<std::uint8_t>(7, 0),
        std::vector<std::uint8_t>(9, 0)}) {
    StartReader();
    Order("join");
    platform::Channel channel = Accept();
    ExpectOk(channel.Send(ring::kRingOffer,
                          ring::EncodeOffer({.buffers = 2,
                                             .bytes = kBytes,
                                             .pool = home_->pool_ticket(),
                                             .fences = home_->fences_ticket()}),
                          {}, Late()));
    ExpectOk(platform::SendLifeline(channel, Late()));
    EXPECT_EQ(Must(channel.Receive(Late())).type, ring::kRingJoined);
    EXPECT_EQ(Answer(), "OK");
    ExpectOk(channel.Send(ring::kRingEnd, payload, {}, Late()));
    EXPECT_THAT(Ask("acquire"), StartsWith("DATA_LOSS"));
    EndReader();
  }
}

// A peer that hangs up, and lives on.
class RingHangUp : public RingLoss {
 protected:
  // A caller whose deadlines are short, as an interpreter's that looks for signals,
  // waits as long for the other side's end as one whose deadline is late.
  static void ExpectToWaitASecondInAll(
      const std::function<absl::Status(absl::Time)>& call) {
    const absl::Time start = absl::Now();
    for (int i = 0; i < 3; ++i) {
      ExpectFails(absl::StatusCode::kUnavailable, call(absl::Now() + kMoment),
                  "is not known to have ended");
    }
    ExpectFails(absl::StatusCode::kUnavailable, call(Late()),
                "is not known to have ended");
    EXPECT_GE(absl::Now() - start, absl::Milliseconds(900));
    // And once.
    absl::Duration least = absl::InfiniteDuration();
    for (int i = 0; i < 5; ++i) {
      const absl::Time asked = absl::Now();
      EXPECT_TRUE(absl::IsUnavailable(call(Late())));
      least = std::min(least, absl::Now() - asked);
    }
    EXPECT_LT(least, absl::Milliseconds(900));
  }
};

TEST_F(RingHangUp, AReadersEndIsAwaitedForASecondInAll) {
  auto [mine, its] = Must(platform::Channel::Pair());
  std::thread reader([channel = &its] {
    Must(channel->Receive(Late()));
    Must(platform::ReceiveLifeline(*channel, Late()));
    ExpectOk(channel->Send(ring::kRingJoined, {}, {}, Late()));
    ExpectOk(platform::SendLifeline(*channel, Late()));
  });
  ring_ = Must(RingWriter::Open(*home_, std::move(mine),
                                {.buffers = 1, .bytes = kBytes}, Late()));
  reader.join();
  its.Close();
  ExpectToWaitASecondInAll(
      [this](absl::Time deadline) { return ring_->Finish(deadline); });
  ExpectAllIsBack();
}

TEST_F(RingHangUp, AWritersEndIsAwaitedForASecondInAll) {
  auto [mine, its] = Must(platform::Channel::Pair());
  std::future<absl::StatusOr<std::unique_ptr<RingReader>>> opened =
      std::async(std::launch::async, [&, channel = std::move(its)]() mutable {
        return RingReader::Open(device, std::move(channel), {}, Late());
      });
  ExpectOk(mine.Send(ring::kRingOffer,
                     ring::EncodeOffer({.buffers = 1,
                                        .bytes = kBytes,
                                        .pool = home_->pool_ticket(),
                                        .fences = home_->fences_ticket()}),
                     {}, Late()));
  ExpectOk(platform::SendLifeline(mine, Late()));
  const std::unique_ptr<RingReader> reader = Must(opened.get());
  EXPECT_EQ(Must(mine.Receive(Late())).type, ring::kRingJoined);
  Must(platform::ReceiveLifeline(mine, Late()));
  mine.Close();
  const Stream stream;
  ExpectToWaitASecondInAll([&](absl::Time deadline) {
    return reader->Acquire(stream.get(), deadline).status();
  });
}

// A peer that lies: it says of this process's GPU that it is done.
class RingLie : public RingLoss {
 protected:
  // What goes while its GPU still works: it waits for that.
  template <typename Side>
  static void ExpectToWaitFor(HeldStream& held, std::unique_ptr<Side> side) {
    std::future<void> gone =
        std::async(std::launch::async,
                   [side = std::move(side)]() mutable { side.reset(); });
    EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(50)),
              std::future_status::timeout);
    held.Release();
    gone.get();
  }
};

TEST_F(RingLie, AReaderAsksItsOwnGpuWhetherItIsDone) {
  const std::unique_ptr<Pool> pool = Must(Pool::Create(device, {}));
  const std::unique_ptr<FencePool> fences = Must(FencePool::Create(device, {}));
  const std::unique_ptr<Endpoint> endpoint =
      Must(Endpoint::Start(Where().endpoint));
  const Share served = Must(endpoint->Serve(*pool));
  const Share fences_served = Must(endpoint->Serve(fences->pool()));
  auto [mine, its] = Must(platform::Channel::Pair());
  std::future<absl::StatusOr<std::unique_ptr<RingReader>>> opened =
      std::async(std::launch::async, [&, channel = std::move(its)]() mutable {
        return RingReader::Open(device, std::move(channel), {}, Late());
      });
  ExpectOk(mine.Send(ring::kRingOffer,
                     ring::EncodeOffer({.buffers = 1,
                                        .bytes = kBytes,
                                        .pool = served.ticket(),
                                        .fences = fences_served.ticket()}),
                     {}, Late()));
  ExpectOk(platform::SendLifeline(mine, Late()));
  std::unique_ptr<RingReader> reader = Must(opened.get());
  EXPECT_EQ(Must(mine.Receive(Late())).type, ring::kRingJoined);
  Fence full = Must(fences->New());
  Fence free = Must(fences->New());
  const CUdeviceptr block = Must(pool->Allocate(kBytes, nullptr));
  RingItem item;
  item.number = item.lap = 1;
  item.size = kBytes;
  item.block = Must(pool->Export(block));
  item.full = Must(fences->Export(full));
  item.free = Must(fences->Export(free));
  ExpectOk(full.SignalFromHost(1));
  ExpectOk(mine.Send(ring::kRingItem, EncodeRingItem(item), {}, Late()));
  {
    HeldStream held(device);
    Results results(device, 1);
    const RingBuffer buffer = Must(reader->Acquire(held.get(), Late()));
    results.Take(buffer, held.get());
    ExpectOk(reader->Release(buffer, held.get()));
    ExpectOk(free.SignalFromHost(1));
    ExpectToWaitFor(held, std::move(reader));
    EXPECT_EQ(driver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  }
  ExpectOk(pool->Free(block, nullptr));
}

// And an honest one that says that its own is done only when it is.
TEST_F(RingLie, AReaderWhoseGpuIsNotDoneDoesNotSayThatItHasLeft) {
  child_.emplace(Child::Start("ring-reader-without-patience", {address()}));
  ring_ = Must(RingWriter::Open(*home_, Accept(),
                                {.buffers = 1, .bytes = kBytes}, Late()));
  orders_.emplace(Accept());
  const Stream stream;
  Put(stream.get());
  Put(stream.get());
  EXPECT_EQ(Answer(), "gone");
  ExpectFails(absl::StatusCode::kUnavailable,
              ring_->Acquire(stream.get(), absl::Now() + kMoment).status(),
              "not known to have ended");
  EXPECT_FALSE(stream.IsIdle()) << "it writes over what the reader copies";
  EXPECT_EQ(Ask("go on"), "0 wrong");
  stream.Sync();
  orders_->Close();
  EXPECT_EQ(child_->Wait(), 0);
  ExpectAllIsBack();
}

TEST_F(RingLie, AWriterAsksItsOwnGpuWhetherItIsDone) {
  auto [mine, its] = Must(platform::Channel::Pair());
  std::thread reader([&, channel = std::move(its)]() mutable {
    const ring::Offer offer =
        Must(ring::DecodeOffer(Must(channel.Receive(Late())).payload));
    Must(platform::ReceiveLifeline(channel, Late()));
    ExpectOk(channel.Send(ring::kRingJoined, {}, {}, Late()));
    ExpectOk(platform::SendLifeline(channel, Late()));
    const RingItem item =
        Must(DecodeRingItem(Must(channel.Receive(Late())).payload));
    const std::unique_ptr<ImportedFencePool> fences =
        Must(ImportedFencePool::Subscribe(driver(), offer.fences,
                                          {.devices = {device}}, Late()));
    for (const FenceTicket& ticket : {item.full, item.free}) {
      ExpectOk(Must(fences->Import(ticket, Late())).SignalFromHost(1));
    }
  });
  ring_ = Must(RingWriter::Open(*home_, std::move(mine),
                                {.buffers = 1, .bytes = kBytes}, Late()));
  {
    HeldStream held(device);
    Put(held.get());
    reader.join();
    EXPECT_EQ(home_->pool().statistics().live_blocks, 1u);
    ExpectToWaitFor(held, std::move(ring_));
    EXPECT_EQ(driver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  }
  ExpectAllIsBack();
}

// --- What its GPU has passed -------------------------------------------------

// Which stream a changed driver records events on.
CUstream& RecordedOn() {
  static CUstream stream = nullptr;
  return stream;
}

// As when a stream was destroyed with work on it and a new one has its value.
TEST_F(RingLoss, WorkOfAStreamIsAwaitedThoughAnotherOneHasItsValueNow) {
  platform::DriverTable table = driver().table();
  table.cuEventRecord = [](CUevent event, CUstream) {
    return TestDriver()->cuEventRecord(event, RecordedOn());
  };
  const platform::Driver changed = ChangedDriver(table);
  HeldStream held(device);
  const Stream next;
  ring::LastPoint last;
  RecordedOn() = held.get();
  ExpectOk(last.Record(changed, held.get()));
  RecordedOn() = next.get();
  for (int i = 0; i < 20; ++i) ExpectOk(last.Record(changed, held.get()));
  next.Sync();
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              last.Await(absl::Now() + kMoment), "not done yet");
  held.Release();
  ExpectOk(last.Await(Late()));
}

TEST_F(RingLoss, AnEventThatTheGpuHasPassedIsRecordedAgain) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const Stream stream;
  ring::LastPoint last;
  for (int i = 0; i < 20; ++i) {
    ExpectOk(last.Record(counted, stream.get()));
    stream.Sync();
  }
  EXPECT_EQ(faults.CallsByEntry()["cuEventCreate"], 1u);
  // So many as are not passed, and a few more, where one is of a stream that stands
  // still.
  HeldStream held(device);
  ExpectOk(last.Record(counted, held.get()));
  for (int i = 0; i < 100; ++i) {
    ExpectOk(last.Record(counted, stream.get()));
    stream.Sync();
  }
  const std::map<std::string, std::uint64_t> calls = faults.CallsByEntry();
  EXPECT_LE(calls.at("cuEventCreate") - calls.at("cuEventDestroy"), 8u);
  held.Release();
  ExpectOk(last.Await(Late()));
}

}  // namespace
}  // namespace vmm::testing
