// Rings between two processes: what comes through, and how far the writer runs
// ahead of its reader.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/fill_graph.h"
#include "tests/gpu/held_stream.h"
#include "tests/ipc/ring_both_sides.h"
#include "tests/ipc/ring_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/queue/ring.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A machine that many tests run on may be as late as this.
constexpr absl::Duration kLate = absl::Seconds(1);

int RingReaderMain(const std::vector<std::string>& args) {
  return ReaderProcess(args).Serve();
}
const bool kRingReader = RegisterChild("ring-reader", &RingReaderMain);

TEST_F(RingTest, ItemsOfManyLapsComeInOrderWithWhatWasWritten) {
  constexpr std::uint64_t kItems = 100;
  OpenRing(3);
  const Stream stream;
  Order(absl::StrCat("consume ", kItems));
  for (std::uint64_t i = 0; i < kItems; ++i) Put(stream.get());
  ExpectOk(ring_->Finish(Late()));
  EXPECT_EQ(Answer(), absl::StrCat(kItems, " came, 0 wrong"));
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, ItemsComeToAnotherDevice) {
  if (IpcTest::Peer() == nullptr) GTEST_SKIP() << "needs two devices";
  OpenRing(2, 1);
  const Stream stream;
  Order("consume 20");
  for (int i = 0; i < 20; ++i) Put(stream.get());
  ExpectOk(ring_->Finish(Late()));
  EXPECT_EQ(Answer(), "20 came, 0 wrong");
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, ItemsOfSeveralStreamsNeedNoOrderBetweenThem) {
  OpenRing(4);
  const Stream streams[3];
  Order("consume 60");
  for (int i = 0; i < 60; ++i) Put(streams[i % 3].get());
  ExpectOk(ring_->Finish(Late()));
  EXPECT_EQ(Answer(), "60 came, 0 wrong");
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, AReaderIsToldSizeAndTagAndThatThereAreNoMore) {
  OpenRing(2);
  const Stream stream;
  RingBuffer buffer = Must(ring_->Acquire(stream.get(), Late()));
  EXPECT_EQ(buffer.size, kBytes);
  buffer.size = 17;
  buffer.tag = 1234567890123456789;
  ExpectOk(ring_->Publish(buffer, stream.get(), Late()));
  EXPECT_EQ(Ask("acquire"), "OK 1 17 1234567890123456789");
  EXPECT_EQ(Ask("await"), "OK");
  EXPECT_THAT(Ask("try"), StartsWith("DEADLINE_EXCEEDED"));
  EXPECT_EQ(Ask("release"), "OK");
  ExpectOk(ring_->Finish(Late()));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Ask("acquire"), StartsWith("OUT_OF_RANGE: the writer has"));
  }
  EXPECT_EQ(Ask("finish"), "OK");
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              ring_->Acquire(stream.get(), Late()).status(), "finished");
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, AReadersStreamWaitsForTheWritersStream) {
  OpenRing(2);
  HeldStream held(device);
  const RingBuffer buffer = Must(ring_->Acquire(held.get(), Late()));
  FillItem(buffer, held.get());
  ExpectOk(ring_->Publish(buffer, held.get(), Late()));
  // The host is told at once; the stream goes on when the contents are there.
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
  absl::SleepFor(kMoment);
  EXPECT_EQ(Ask("idle"), "busy");
  held.Release();
  EXPECT_EQ(Ask("await"), "OK");
  EXPECT_EQ(Ask("release"), "OK");
  ExpectOk(ring_->Finish(Late()));
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, AWritersStreamWaitsUntilTheReaderHasGivenBack) {
  OpenRing(2);
  const Stream stream;
  Put(stream.get());
  Put(stream.get());
  stream.Sync();
  Put(stream.get());  // In the first buffer again.
  absl::SleepFor(kMoment);
  EXPECT_FALSE(stream.IsIdle());
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
  EXPECT_FALSE(stream.IsIdle());
  EXPECT_EQ(Ask("release"), "OK");
  stream.Sync();
  Order("consume 2");  // Its own count begins at 1.
  EXPECT_THAT(Answer(), StartsWith("not item 1"));
  KillReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, TheWritersHostIsTwoLapsAheadAndWaitsThereInVain) {
  OpenRing(2);
  const Stream stream;
  for (int i = 0; i < 4; ++i) Put(stream.get());
  EXPECT_LT(LeastLate([&](absl::Time deadline) {
              ExpectFails(absl::StatusCode::kDeadlineExceeded,
                          ring_->Acquire(stream.get(), deadline).status(),
                          "the buffer of item 5 is not given back");
            }),
            kLate);
  // Nothing is lost by it.
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
  EXPECT_EQ(Ask("release"), "OK");
  EXPECT_EQ(Put(stream.get()).number, 5u);
  for (int i = 2; i <= 5; ++i) {
    EXPECT_THAT(Ask("acquire"), StartsWith(absl::StrCat("OK ", i, " ")));
    EXPECT_EQ(Ask("release"), "OK");
  }
  ExpectOk(ring_->Finish(Late()));
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, AStoppedReaderMakesNoCallLaterThanItsDeadline) {
  OpenRing(1);
  const Stream stream;
  Put(stream.get());
  child_->Stop();
  Put(stream.get());
  EXPECT_LT(LeastLate([&](absl::Time deadline) {
              ExpectFails(absl::StatusCode::kDeadlineExceeded,
                          ring_->Acquire(stream.get(), deadline).status(),
                          "deadline");
            }),
            kLate);
  EXPECT_LT(LeastLate([&](absl::Time deadline) {
              ExpectFails(absl::StatusCode::kDeadlineExceeded,
                          ring_->Finish(deadline), "item 2 is not given back");
            }),
            kLate);
  child_->Continue();
  EXPECT_EQ(Ask("consume 2"), "2 came, 0 wrong");
  ExpectOk(ring_->Finish(Late()));
  EndReader();
  ExpectAllIsBack();
}

TEST_F(RingTest, WhatIsNotHeldCannotBePublishedOrReleased) {
  OpenRing(1);
  const Stream stream;
  RingBuffer buffer = Must(ring_->Acquire(stream.get(), Late()));
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              ring_->Acquire(stream.get(), Late()).status(),
              "item 1 was acquired and is not published");
  ExpectFails(absl::StatusCode::kFailedPrecondition, ring_->Finish(Late()),
              "item 1 was acquired and is not published");
  RingBuffer wrong = buffer;
  wrong.size = kBytes + 1;
  ExpectFails(absl::StatusCode::kInvalidArgument,
              ring_->Publish(wrong, stream.get(), Late()), "262145 bytes");
  wrong = buffer;
  wrong.number = 2;
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              ring_->Publish(wrong, stream.get(), Late()), "item 2 is not");
  wrong = buffer;
  wrong.address += kBytes;
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              ring_->Publish(wrong, stream.get(), Late()), "item 1 is not");
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              ring_->Publish({}, stream.get(), Late()), "item 0 is not");
  ExpectOk(ring_->Publish(buffer, stream.get(), Late()));
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              ring_->Publish(buffer, stream.get(), Late()), "already");
  EXPECT_THAT(Ask("release"), HasSubstr("item 0 is not acquired"));
  EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
  EXPECT_THAT(Ask("finish"), HasSubstr("item 1 is not released"));
  EXPECT_EQ(Ask("release"), "OK");
  EXPECT_THAT(Ask("release"), HasSubstr("released already"));
  EXPECT_THAT(Ask("await"), HasSubstr("item 1 is not acquired"));
  ExpectOk(ring_->Finish(Late()));
  EndReader();
  ExpectAllIsBack();
}

// Its stream waits for it, so a writer may have published that already.
TEST_F(RingTest, AReaderThatHoldsAllBuffersIsToldToReleaseOneAndLosesNoItem) {
  const Stream writing, reading;
  RingSides sides = Must(
      OpenBothSides(device, Where(), {.buffers = 2, .bytes = kBytes}, Late()));
  for (int i = 1; i <= 3; ++i) {
    const RingBuffer out = Must(sides.writer->Acquire(writing.get(), Late()));
    FillItem(out, writing.get());
    ExpectOk(sides.writer->Publish(out, writing.get(), Late()));
  }
  const RingBuffer first = Must(sides.reader->Acquire(reading.get(), Late()));
  const RingBuffer second = Must(sides.reader->Acquire(reading.get(), Late()));
  for (int i = 0; i < 2; ++i) {
    ExpectFails(absl::StatusCode::kFailedPrecondition,
                sides.reader->Acquire(reading.get(), Late()).status(),
                "item 1 is acquired and not released; item 3");
  }
  // The one that is held is the first all the same.
  ExpectOk(sides.reader->Await(first, Late()));
  ExpectOk(sides.reader->Release(first, reading.get()));
  const RingBuffer third = Must(sides.reader->Acquire(reading.get(), Late()));
  EXPECT_EQ(third.number, 3u);
  EXPECT_EQ(third.address, first.address);
  ExpectOk(sides.reader->Await(third, Late()));
  Results results(device, 1);
  results.Take(third, reading.get());
  ExpectOk(sides.reader->Release(second, reading.get()));
  ExpectOk(sides.reader->Release(third, reading.get()));
  ExpectOk(sides.writer->Finish(Late()));
  ExpectOk(sides.reader->Finish(Late()));
  reading.Sync();
  EXPECT_EQ(results.Wrong(), 0u);
}

// Of a driver that cannot record what is on the stream.
TEST_F(RingTest, AReleaseThatFailsGivesNothingBackAndOneThatDoesIsOk) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const Stream stream;
  RingSides sides =
      Must(OpenBothSides(Must(Device::ByOrdinal(failing, 0)), Where(),
                         {.buffers = 1, .bytes = kBytes}, Late()));
  const RingBuffer out = Must(sides.writer->Acquire(stream.get(), Late()));
  ExpectOk(sides.writer->Publish(out, stream.get(), Late()));
  const RingBuffer in = Must(sides.reader->Acquire(stream.get(), Late()));
  stream.Sync();
  HeldStream held(device);
  const DriverFault fault = {
      .point = {.times = FaultPoint::kForEver, .this_thread_only = true},
      .entry = "cuEventRecord",
      .result = CUDA_ERROR_UNKNOWN};
  faults.Arm(fault);
  const absl::Status told = sides.reader->Release(in, held.get());
  EXPECT_GT(faults.Disarm().fired, 0u);
  EXPECT_THAT(std::string(told.message()), HasSubstr("cuEventRecord"));
  ExpectOk(sides.reader->Await(in, Late()));  // It is still acquired.
  // The signal is on its way when the second one fails.
  DriverFault after_the_signal = fault;
  after_the_signal.point.nth = 1;
  faults.Arm(after_the_signal);
  ExpectOk(sides.reader->Release(in, held.get()));
  EXPECT_GT(faults.Disarm().fired, 0u);
  ExpectFails(absl::StatusCode::kFailedPrecondition,
              sides.reader->Release(in, held.get()), "released already");
  // What is not recorded is waited for by its fence.
  std::future<void> gone =
      std::async(std::launch::async, [&] { sides.reader.reset(); });
  EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  held.Release();
  gone.get();
}

// Its value is another stream on each thread.
TEST_F(RingTest, AStreamThatIsEachThreadsOwnIsRefused) {
  const Stream stream;
  RingSides sides = Must(
      OpenBothSides(device, Where(), {.buffers = 1, .bytes = kBytes}, Late()));
  const auto refused = [](const absl::Status& status) {
    ExpectFails(absl::StatusCode::kInvalidArgument, status,
                "another stream on each thread");
  };
  refused(sides.writer->Acquire(CU_STREAM_PER_THREAD, Late()).status());
  const RingBuffer out = Must(sides.writer->Acquire(stream.get(), Late()));
  refused(sides.writer->Publish(out, CU_STREAM_PER_THREAD, Late()));
  ExpectOk(sides.writer->Publish(out, stream.get(), Late()));
  refused(sides.reader->Acquire(CU_STREAM_PER_THREAD, Late()).status());
  const RingBuffer in = Must(sides.reader->Acquire(stream.get(), Late()));
  refused(sides.reader->Release(in, CU_STREAM_PER_THREAD));
  ExpectOk(sides.reader->Release(in, stream.get()));
  ExpectOk(sides.writer->Finish(Late()));
  ExpectOk(sides.reader->Finish(Late()));
}

TEST_F(RingTest, AThreadWithoutAContextHasTheDefaultStreamOfTheRingsDevice) {
  RingSides sides = Must(
      OpenBothSides(device, Where(), {.buffers = 2, .bytes = kBytes}, Late()));
  std::thread([&] {
    for (int i = 0; i < 5; ++i) {
      const RingBuffer buffer = Must(sides.writer->Acquire(nullptr, Late()));
      ExpectOk(sides.writer->Publish(buffer, nullptr, Late()));
      const RingBuffer got = Must(sides.reader->Acquire(nullptr, Late()));
      ExpectOk(sides.reader->Await(got, Late()));
      ExpectOk(sides.reader->Release(got, nullptr));
      CUcontext current = nullptr;
      EXPECT_EQ(driver()->cuCtxGetCurrent(&current), CUDA_SUCCESS);
      EXPECT_EQ(current, nullptr);
    }
    ExpectOk(sides.writer->Finish(Late()));
  }).join();
}

// Each launch would wait for the same item, and the work behind it is not done.
TEST_F(RingTest, NothingIsAcquiredNorGivenOnOnACapturedStream) {
  if (!FillGraph::Supported()) GTEST_SKIP() << "this driver has no graphs";
  const Stream writing, reading;
  RingSides sides = Must(
      OpenBothSides(device, Where(), {.buffers = 1, .bytes = kBytes}, Late()));
  const auto is_refused =
      [&](const Stream& on, const std::function<absl::Status()>& call,
          absl::StatusCode code = absl::StatusCode::kFailedPrecondition) {
        ASSERT_EQ(driver()->cuStreamBeginCapture(
                      on.get(), CU_STREAM_CAPTURE_MODE_RELAXED),
                  CUDA_SUCCESS);
        for (int i = 0; i < 2; ++i) {
          ExpectFails(code, call(),
                      code == absl::StatusCode::kFailedPrecondition
                          ? "is being captured into a graph"
                          : "");
        }
        CUgraph graph = nullptr;
        ASSERT_EQ(driver()->cuStreamEndCapture(on.get(), &graph), CUDA_SUCCESS);
        CUgraphExec made = nullptr;
        ASSERT_EQ(driver()->cuGraphInstantiate(&made, graph, 0), CUDA_SUCCESS);
        EXPECT_EQ(driver()->cuGraphDestroy(graph), CUDA_SUCCESS);
        // Nothing is in it that waits.
        EXPECT_EQ(driver()->cuGraphLaunch(made, on.get()), CUDA_SUCCESS);
        ExpectSoon([&] { return on.IsIdle(); });
        EXPECT_EQ(driver()->cuGraphExecDestroy(made), CUDA_SUCCESS);
      };
  const auto acquire_out = [&] {
    return sides.writer->Acquire(writing.get(), Late()).status();
  };
  is_refused(writing, acquire_out);
  RingBuffer out = Must(sides.writer->Acquire(writing.get(), Late()));
  // Who looks whether an item has come is told that first.
  is_refused(
      reading,
      [&] {
        return sides.reader->Acquire(reading.get(), absl::InfinitePast())
            .status();
      },
      absl::StatusCode::kDeadlineExceeded);
  // It stays acquired, and the ring goes on.
  is_refused(writing,
             [&] { return sides.writer->Publish(out, writing.get(), Late()); });
  ExpectOk(sides.writer->Publish(out, writing.get(), Late()));
  is_refused(reading, [&] {
    return sides.reader->Acquire(reading.get(), Late()).status();
  });
  RingBuffer in = Must(sides.reader->Acquire(reading.get(), Late()));
  EXPECT_EQ(in.number, 1u);
  // The next is in the same buffer, which the reader has.
  is_refused(writing, acquire_out);
  is_refused(reading, [&] { return sides.reader->Release(in, reading.get()); });
  out = Must(sides.writer->Acquire(writing.get(), Late()));
  EXPECT_EQ(out.number, 2u);
  ExpectOk(sides.reader->Release(in, reading.get()));
  ExpectOk(sides.writer->Publish(out, writing.get(), Late()));
  in = Must(sides.reader->Acquire(reading.get(), Late()));
  EXPECT_EQ(in.number, 2u);
  ExpectOk(sides.reader->Release(in, reading.get()));
  ExpectOk(sides.writer->Finish(Late()));
  ExpectOk(sides.reader->Finish(Late()));
}

TEST_F(RingTest, ARingOfNoBuffersIsAnInvalidArgument) {
  for (const RingOptions& options :
       {RingOptions{.buffers = 0, .bytes = 1}, RingOptions{.bytes = 0},
        RingOptions{.buffers = kMaxRingBuffers + 1, .bytes = 1}}) {
    auto [ours, theirs] = Must(platform::Channel::Pair());
    ExpectFails(
        absl::StatusCode::kInvalidArgument,
        RingWriter::Open(*home_, std::move(ours), options, Late()).status(),
        "expected 1 to 64");
  }
}

TEST_F(RingTest, MakingItsBuffersEndsAtTheDeadline) {
  auto [ours, theirs] = Must(platform::Channel::Pair());
  ExpectFails(
      absl::StatusCode::kDeadlineExceeded,
      RingWriter::Open(*home_, std::move(ours), {.buffers = 64, .bytes = 1},
                       absl::InfinitePast())
          .status(),
      "of a ring's 64 buffers of 1 bytes 1 were made");
}

// Of a driver that has no memory for more.
TEST_F(RingTest, WithoutMemoryForABufferOrItsFencesNothingIsTaken) {
  DriverFaults faults;
  const platform::Driver failing = FaultyDriver(driver(), &faults);
  const std::unique_ptr<RingHome> home =
      Must(RingHome::Create(Must(Device::ByOrdinal(failing, 0)), Where()));
  faults.Arm(
      {.point = {.times = FaultPoint::kForEver}, .entry = "cuMemCreate"});
  std::vector<Fence> fences;
  for (absl::StatusOr<Fence> one = home->fences().New(); one.ok();
       one = home->fences().New()) {
    fences.push_back(*std::move(one));
  }
  ASSERT_GT(fences.size(), 2u);
  // There is room for no fence, for one, and for both and no buffer.
  for (int room = 0; room < 3; ++room) {
    auto [ours, theirs] = Must(platform::Channel::Pair());
    ExpectFails(absl::StatusCode::kResourceExhausted,
                RingWriter::Open(*home, std::move(ours),
                                 {.buffers = 1, .bytes = 64 * kMiB}, Late())
                    .status(),
                "cuMemCreate(");
    EXPECT_EQ(home->fences().statistics().fences, fences.size());
    EXPECT_EQ(home->pool().statistics().live, 0u);
    ExpectOk(fences.back().Release());
    fences.pop_back();
  }
  EXPECT_GE(faults.Disarm().fired, 3u);
}

TEST_F(RingTest, LettingGoEndsItForBothSides) {
  for (const bool by_reader : {true, false}) {
    OpenRing(1);
    const Stream stream;
    Put(stream.get());
    Put(stream.get());
    EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
    EXPECT_FALSE(stream.IsIdle());
    if (by_reader) {
      EXPECT_EQ(Ask("let-go"), "OK");
    } else {
      ring_->LetGo();
    }
    stream.Sync();
    const absl::Status status = ring_->Acquire(stream.get(), Late()).status();
    ExpectFails(absl::StatusCode::kAborted, status, "let go");
    EXPECT_EQ(ring_->Finish(Late()), status);
    // It has acquired an item, and goes without having released it.
    EXPECT_EQ(Ask("sync"), "OK");
    EndReader();
    ExpectAllIsBack();
  }
}

TEST_F(RingTest, LettingGoReachesAReaderThatWaitsForAnItem) {
  for (const int items : {0, 1}) {
    OpenRing(2);
    const Stream stream;
    for (int i = 0; i < items; ++i) {
      Put(stream.get());
      EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
      EXPECT_EQ(Ask("release"), "OK");
    }
    Order("acquire");
    ring_->LetGo();
    const std::string answer = Answer();
    EXPECT_THAT(answer, StartsWith("ABORTED: the ring was let go"));
    EXPECT_EQ(Ask("acquire"), answer);
    EndReader();
    ExpectAllIsBack();
  }
}

TEST_F(RingTest, LettingGoReachesAReaderThatWaitsForContents) {
  for (const std::string waits : {"await", "finish"}) {
    OpenRing(2);
    HeldStream held(device);
    Put(held.get());
    EXPECT_THAT(Ask("acquire"), StartsWith("OK 1 "));
    if (waits == "finish") {
      EXPECT_EQ(Ask("release"), "OK");
    }
    Order(waits);
    ring_->LetGo();
    EXPECT_THAT(Answer(), StartsWith("ABORTED"));
    EXPECT_EQ(Ask("sync"), "OK");
    held.Release();
    EndReader();
    ExpectAllIsBack();
  }
}

// Of what it has not acquired the reader knows no fence.
TEST_F(RingTest, LettingGoReachesAWriterWhoseItemsNobodyHasAcquired) {
  for (const std::string waits : {"acquire", "publish", "finish"}) {
    SCOPED_TRACE(waits);
    OpenRing(1);
    const Stream stream;
    Put(stream.get());
    const RingBuffer second = Must(ring_->Acquire(stream.get(), Late()));
    if (waits != "publish") {
      ExpectOk(ring_->Publish(second, stream.get(), Late()));
    }
    EXPECT_FALSE(stream.IsIdle());
    EXPECT_EQ(Ask("let-go"), "OK");
    absl::Status status;
    if (waits == "acquire") {
      status = ring_->Acquire(stream.get(), Late()).status();
    } else if (waits == "publish") {
      status = ring_->Publish(second, stream.get(), Late());
    } else {
      status = ring_->Finish(Late());
    }
    ExpectFails(absl::StatusCode::kAborted, status, "the ring was let go");
    stream.Sync();
    EndReader();
    ExpectAllIsBack();
  }
}

}  // namespace
}  // namespace vmm::testing
