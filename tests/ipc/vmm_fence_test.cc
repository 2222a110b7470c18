// Fences between processes: shared by ticket, and what becomes of a wait when
// one side ends or misbehaves.
#include <gmock/gmock.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/base/hex.h"
#include "platform/os/process.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/driver_faults.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/share/endpoint.h"
#include "vmm/sync/fence.h"
#include "vmm/sync/fence_pool.h"
#include "vmm/sync/internal/fence_words.h"

namespace vmm::testing {
namespace {

using ::testing::HasSubstr;
using Args = std::vector<std::string>;

constexpr absl::Duration kMoment = absl::Milliseconds(20);

std::string Hex(const FenceTicket& ticket) {
  const FenceTicketBytes bytes = EncodeFenceTicket(ticket);
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

FenceTicket FromHex(const std::string& text) {
  const std::string bytes = platform::BytesFromHex(text).value_or("");
  return Must(DecodeFenceTicket(
      {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
}

// A process that does with one fence what it is told, and answers "OK" or why
// not. args: where to dial, and the ordinal of its device.
class Peer {
 public:
  explicit Peer(const Args& args)
      : device_(Must(Device::ByOrdinal(TestDriver(), std::stoi(args[1])))),
        channel_(Dial(args[0])) {}

  int Serve() {
    for (;;) {
      absl::StatusOr<platform::Message> message = channel_.Receive(Late());
      if (!message.ok()) return ::testing::Test::HasFailure() ? 1 : 0;
      Tell(channel_, Do({message->payload.begin(), message->payload.end()}),
           kText);
    }
  }

 private:
  std::string Do(const std::string& command) {
    std::istringstream words(command);
    std::string what;
    std::string text;
    words >> what;
    if (what == "subscribe") {
      words >> text;
      absl::StatusOr<std::unique_ptr<ImportedFencePool>> pool =
          ImportedFencePool::Subscribe(TestDriver(), text,
                                       {.devices = {device_}}, Late());
      if (!pool.ok()) return pool.status().ToString();
      pool_ = *std::move(pool);
      return "OK";
    }
    if (what == "import") {
      words >> text;
      absl::StatusOr<Fence> fence = pool_->Import(FromHex(text), Late());
      if (!fence.ok()) return fence.status().ToString();
      fence_.emplace(*std::move(fence));
      return "OK";
    }
    if (what == "own") return Own();
    if (what == "sync") {
      stream_.Sync();
      return "OK";
    }
    if (what == "release") return fence_->Release().ToString();
    if (what == "query") {
      const absl::StatusOr<std::uint64_t> value = fence_->Query();
      return value.ok() ? absl::StrCat(*value) : value.status().ToString();
    }
    if (what == "abandon") return fence_->Abandon().ToString();
    std::uint64_t value = 0;
    std::uint64_t count = 0;
    words >> value >> count;
    if (what == "signal") {
      return fence_->Signal(stream_.get(), value).ToString();
    }
    if (what == "wait") return fence_->Wait(stream_.get(), value).ToString();
    if (what == "host-signal") return fence_->SignalFromHost(value).ToString();
    if (what == "host-wait")
      return fence_->WaitOnHost(value, Late()).ToString();
    if (what == "answer") {  // Even values for odd ones, all on the stream.
      for (std::uint64_t i = 0; i < count; ++i) {
        absl::Status put = fence_->Wait(stream_.get(), value + 2 * i);
        if (put.ok()) put = fence_->Signal(stream_.get(), value + 2 * i + 1);
        if (!put.ok()) return put.ToString();
      }
      return "OK";
    }
    platform::Die(absl::StrCat("a peer was told: ", command));
  }

  // Has fences of its own, and one of them.
  std::string Own() {
    own_ = Must(FencePool::Create(device_));
    endpoint_ = Must(Endpoint::Start({}));
    publication_.emplace(Must(endpoint_->Serve(own_->pool())));
    fence_.emplace(Must(own_->New()));
    return absl::StrCat(publication_->ticket(), " ",
                        Hex(Must(own_->Export(*fence_))));
  }

  const Here here_;
  const Device device_;
  platform::Channel channel_;
  PrimaryContext context_ = Must(PrimaryContext::Retain(device_));
  CurrentContext current_ = Must(context_.MakeCurrent());
  std::unique_ptr<ImportedFencePool> pool_;
  std::unique_ptr<FencePool> own_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Share> publication_;
  Stream stream_;
  std::optional<Fence> fence_;
};

int FencePeerMain(const Args& args) { return Peer(args).Serve(); }
const bool kFencePeer = RegisterChild("fence-peer", &FencePeerMain);

class FenceIpcTest : public IpcTest {
 protected:
  void SetUp() override { UsePool({}); }
  void UsePool(const FencePoolOptions& options) {
    publication_.reset();
    endpoint_.reset();
    fences_ = Must(FencePool::Create(device, options));
    EndpointOptions where;
    where.listener.directory = listener_directory();
    endpoint_ = Must(Endpoint::Start(where));
    publication_.emplace(Must(endpoint_->Serve(fences_->pool())));
  }
  Child& StartPeer(int ordinal = 0) {
    child_.emplace(
        Child::Start("fence-peer", {address(), absl::StrCat(ordinal)}));
    channel_.emplace(Accept());
    return *child_;
  }
  std::string Ask(const std::string& command) {
    Tell(*channel_, command, kText);
    return Hear(*channel_);
  }
  std::string Ask(const std::string& command, std::uint64_t value,
                  std::uint64_t count = 1) {
    return Ask(absl::StrCat(command, " ", value, " ", count));
  }
  void Connect() {
    ASSERT_EQ(Ask("subscribe " + publication_->ticket()), "OK");
  }
  std::string Import(const Fence& fence) {
    return Ask("import " + Hex(Must(fences_->Export(fence))));
  }
  // A peer with a fence of ours.
  Fence Shared(int ordinal = 0) {
    StartPeer(ordinal);
    Connect();
    Fence fence = Must(fences_->New());
    EXPECT_EQ(Import(fence), "OK");
    return fence;
  }
  // A fence of the peer's.
  Fence Theirs() {
    StartPeer();
    std::istringstream words(Ask("own"));
    std::string text;
    std::string ticket;
    words >> text >> ticket;
    theirs_ = Must(ImportedFencePool::Subscribe(driver(), text, {}, Late()));
    return Must(theirs_->Import(FromHex(ticket), Late()));
  }
  int EndPeer() {
    channel_->Close();
    return child_->Wait();
  }
  void KillPeer() {
    child_->Kill();
    EXPECT_EQ(child_->Wait(), Child::kKilled);
  }
  static void ExpectOk(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }
  static void ExpectFails(absl::StatusCode code, const absl::Status& status,
                          const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  std::unique_ptr<FencePool> fences_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Share> publication_;
  std::unique_ptr<ImportedFencePool> theirs_;
  std::optional<Child> child_;
  std::optional<platform::Channel> channel_;
};

TEST_F(FenceIpcTest, StreamsOfTwoProcessesTakeTurns) {
  constexpr std::uint64_t kTurns = 200;
  Fence fence = Shared();
  const Stream stream;
  ASSERT_EQ(Ask("answer", 1, kTurns), "OK");
  for (std::uint64_t i = 0; i < kTurns; ++i) {
    ExpectOk(fence.Signal(stream.get(), 1 + 2 * i));
    ExpectOk(fence.Wait(stream.get(), 2 + 2 * i));
    stream.Sync();
  }
  EXPECT_EQ(Must(fence.Query()), 2 * kTurns);
  EXPECT_EQ(Ask("query"), absl::StrCat(2 * kTurns));
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, StreamsOfTwoProcessesOnTwoDevicesTakeTurns) {
  if (IpcTest::Peer() == nullptr) GTEST_SKIP() << "needs two devices";
  Fence fence = Shared(1);
  const Stream stream;
  ASSERT_EQ(Ask("answer", 1, 50), "OK");
  for (std::uint64_t i = 0; i < 50; ++i) {
    ExpectOk(fence.Signal(stream.get(), 1 + 2 * i));
    ExpectOk(fence.Wait(stream.get(), 2 + 2 * i));
  }
  stream.Sync();
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, HostsAndStreamsWaitForEachOther) {
  Fence fence = Shared();
  const Stream stream;
  ExpectOk(fence.Wait(stream.get(), 1));
  EXPECT_FALSE(stream.IsIdle());
  EXPECT_EQ(Ask("host-signal", 1), "OK");
  stream.Sync();
  ExpectOk(fence.Signal(stream.get(), 2));
  EXPECT_EQ(Ask("host-wait", 2), "OK");
  EXPECT_EQ(Ask("signal", 3), "OK");
  ExpectOk(fence.WaitOnHost(3, Late()));
  EXPECT_EQ(Ask("wait", 4), "OK");
  ExpectOk(fence.SignalFromHost(4));
  EXPECT_EQ(Ask("sync"), "OK");
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, EitherSideAbandonsForBoth) {
  Fence fence = Shared();
  const Stream stream;
  ExpectOk(fence.Wait(stream.get(), 7));
  EXPECT_EQ(Ask("wait", 8), "OK");
  EXPECT_EQ(Ask("abandon"), "OK");
  stream.Sync();
  EXPECT_EQ(Ask("sync"), "OK");
  ExpectFails(absl::StatusCode::kAborted, fence.Query().status(), "value 0");
  EXPECT_THAT(Ask("host-wait", 1), HasSubstr("ABORTED"));
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, AWaitEndsWhenItsSignallerIsKilled) {
  Fence fence = Shared();
  const platform::Process peer = Must(channel_->OpenPeer());
  EXPECT_EQ(Ask("host-signal", 1), "OK");
  const Stream stream;
  ExpectOk(fence.Wait(stream.get(), 2));
  ExpectFails(absl::StatusCode::kDeadlineExceeded,
              fence.WaitOnHost(2, absl::Now() + kMoment, {.signaller = &peer}),
              "deadline");
  KillPeer();
  ExpectFails(absl::StatusCode::kUnavailable,
              fence.WaitOnHost(2, Late(), {.signaller = &peer}),
              "the fence is at 1, not 2: process");
  // What it signalled before it was killed counts.
  ExpectOk(fence.WaitOnHost(1, Late(), {.signaller = &peer}));
  absl::SleepFor(kMoment);
  EXPECT_FALSE(stream.IsIdle()) << "nobody signalled";
  ExpectOk(fence.Abandon());
  stream.Sync();
}

// The wait began before the signaller was killed.
TEST_F(FenceIpcTest, AWaitUnderWayEndsSoonAfterItsSignallerIsKilled) {
  Fence fence = Shared();
  const platform::Process peer = Must(channel_->OpenPeer());
  absl::Time killed;
  const absl::Status status =
      fence.WaitOnHost(1, Late(), {.signaller = &peer, .still_worth = [&] {
                                     if (killed == absl::Time()) {
                                       child_->Kill();
                                       killed = absl::Now();
                                     }
                                     return absl::OkStatus();
                                   }});
  ExpectFails(absl::StatusCode::kUnavailable, status, "has ended");
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
  EXPECT_EQ(child_->Wait(), Child::kKilled);
}

TEST_F(FenceIpcTest, AStoppedSignallerHoldsNoWaitBeyondItsDeadline) {
  Fence fence = Shared();
  const platform::Process peer = Must(channel_->OpenPeer());
  child_->Stop();
  EXPECT_LT(LeastLate([&](absl::Time deadline) {
              ExpectFails(absl::StatusCode::kDeadlineExceeded,
                          fence.WaitOnHost(1, deadline, {.signaller = &peer}),
                          "deadline");
            }),
            absl::Milliseconds(50));
  child_->Continue();
  EXPECT_EQ(Ask("host-signal", 1), "OK");
  ExpectOk(fence.WaitOnHost(1, Late()));
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, AFenceWhoseOwnerDiedGoesOnAndIsAbandonedByTheOthers) {
  Fence fence = Theirs();
  EXPECT_EQ(Ask("host-signal", 3), "OK");
  const Stream stream;
  ExpectOk(fence.Wait(stream.get(), 4));
  KillPeer();
  // Its memory is here as long as somebody has it.
  EXPECT_EQ(Must(fence.Query()), 3u);
  ExpectFails(
      absl::StatusCode::kUnavailable,
      fence.WaitOnHost(
          4, Late(), {.still_worth = [this] { return theirs_->connection(); }}),
      "serves this process no more");
  absl::SleepFor(kMoment);
  EXPECT_FALSE(stream.IsIdle());
  ExpectOk(fence.Abandon());
  stream.Sync();
  // No new one comes.
  ExpectFails(absl::StatusCode::kAborted, fence.Query().status(), "value 3");
}

TEST_F(FenceIpcTest, OneOfADeadOwnerCanStillBeSignalled) {
  Fence fence = Theirs();
  KillPeer();
  const Stream stream;
  ExpectOk(fence.Wait(stream.get(), 1));
  const Stream other;
  ExpectOk(fence.Signal(other.get(), 1));
  stream.Sync();
}

class Pitfall28 : public FenceIpcTest {};
TEST_F(Pitfall28, AnImporterOfAFenceWhoseOwnerIsGoneIsToldSo) {
  Fence fence = Theirs();
  const FenceTicket ticket{};
  KillPeer();
  ExpectSoon([this] { return !theirs_->connection().ok(); });
  EXPECT_TRUE(absl::IsUnavailable(theirs_->connection()))
      << theirs_->connection();
  EXPECT_TRUE(
      absl::IsInvalidArgument(theirs_->Import(ticket, Late()).status()));
}

TEST_F(FenceIpcTest, TheTicketOfAFenceThatIsGoneIsRefused) {
  StartPeer();
  Connect();
  Fence gone = Must(fences_->New());
  const std::string ticket = Hex(Must(fences_->Export(gone)));
  ExpectOk(gone.Release());
  EXPECT_THAT(Ask("import " + ticket), HasSubstr("FAILED_PRECONDITION"));
  // Also when another one has its memory.
  const Fence next = Must(fences_->New());
  EXPECT_EQ(Import(next), "OK");
  EXPECT_THAT(Ask("import " + ticket), HasSubstr("FAILED_PRECONDITION"));
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, AFenceThatAPeerHasIsNotMadeAnother) {
  Fence fence = Shared();
  EXPECT_EQ(Ask("wait", 5), "OK");
  ExpectOk(fence.Release());
  EXPECT_EQ(fences_->pool().statistics().held, kFenceBytes);
  // The peer's own copy goes on.
  EXPECT_EQ(Ask("query"), "0");
  EXPECT_EQ(Ask("host-signal", 5), "OK");
  EXPECT_EQ(Ask("sync"), "OK");
  EXPECT_EQ(Ask("release"), "OK");
  EXPECT_THAT(Ask("release"), HasSubstr("FAILED_PRECONDITION"));
  Must(fences_->pool().Trim(4 * kMiB));
  EXPECT_EQ(fences_->pool().statistics().held, 0u);
  EXPECT_EQ(EndPeer(), 0);
}

// Given back by a peer with a signal to come, it is held until that has.
TEST_F(FenceIpcTest, AFenceThatAPeersStreamIsToSignalIsNotMadeAnother) {
  Fence gate = Shared();
  EXPECT_EQ(Ask("wait", 1), "OK");  // Its stream stands still.
  Fence fence = Must(fences_->New());
  EXPECT_EQ(Import(fence), "OK");
  EXPECT_EQ(Ask("signal", 9), "OK");
  EXPECT_EQ(Ask("release"), "OK");
  ExpectOk(fence.Release());
  EXPECT_EQ(fences_->pool().statistics().held, kFenceBytes);
  Must(fences_->pool().Trim(4 * kMiB));
  EXPECT_EQ(fences_->pool().statistics().held, kFenceBytes);
  ExpectOk(gate.SignalFromHost(1));
  EXPECT_EQ(Ask("sync"), "OK");
  EXPECT_EQ(Import(gate), "OK");  // Whoever imports looks after those.
  Must(fences_->pool().Trim(4 * kMiB));
  EXPECT_EQ(fences_->pool().statistics().held, 0u);
  EXPECT_EQ(EndPeer(), 0);
}

TEST_F(FenceIpcTest, AKilledPeersFencesComeBack) {
  Fence fence = Shared();
  EXPECT_EQ(Ask("wait", 1), "OK");
  EXPECT_EQ(Ask("signal", 2), "OK");
  ExpectOk(fence.Release());
  EXPECT_EQ(fences_->pool().statistics().held, kFenceBytes);
  KillPeer();
  ExpectSoon([this] {
    Must(fences_->pool().Trim(4 * kMiB));
    return fences_->pool().statistics().held == 0;
  });
  const Fence next = Must(fences_->New());
  EXPECT_EQ(Must(next.Query()), 0u);
}

TEST_F(FenceIpcTest, ManyFencesOfOneConnection) {
  constexpr std::size_t kCount = 20'000;
  const std::unique_ptr<ImportedFencePool> here =
      Must(ImportedFencePool::Subscribe(driver(), publication_->ticket(), {},
                                        Late()));
  std::vector<Fence> ours;
  std::vector<Fence> theirs;
  for (std::size_t i = 0; i < kCount; ++i) {
    ours.push_back(Must(fences_->New()));
    theirs.push_back(
        Must(here->Import(Must(fences_->Export(ours.back())), Late())));
    ASSERT_TRUE(ours.back().SignalFromHost(i + 1).ok());
    ASSERT_EQ(Must(theirs.back().Query()), i + 1);
  }
  EXPECT_EQ(here->statistics().fences, kCount);
}

TEST_F(FenceIpcTest, ImportingOneCallsNoDriver) {
  DriverFaults faults;
  const platform::Driver counted = FaultyDriver(driver(), &faults);
  const std::unique_ptr<ImportedFencePool> here =
      Must(ImportedFencePool::Subscribe(counted, publication_->ticket(), {},
                                        Late()));
  const Fence fence = Must(fences_->New());
  const FenceTicket ticket = Must(fences_->Export(fence));
  Must(here->Import(ticket, Late()));  // The memory has come.
  EXPECT_GT(faults.calls(), 3u) << "this driver does not count";
  faults.ResetCounts();
  for (int i = 0; i < 1000; ++i) {
    Fence imported = Must(here->Import(ticket, absl::InfinitePast()));
    EXPECT_EQ(Must(imported.Query()), 0u);
  }
  EXPECT_EQ(faults.calls(), 0u)
      << ::testing::PrintToString(faults.CallsByEntry());
}

// Two strings that were mixed up, or an owner that means harm: the CPU would
// read what it has not.
TEST_F(FenceIpcTest, MemoryOfAGpuHasNoFences) {
  const std::unique_ptr<Pool> blocks = Must(Pool::Create(device, {}));
  const Share served = Must(endpoint_->Serve(*blocks));
  const CUdeviceptr block = Must(blocks->Allocate(kFenceBytes, nullptr));
  const std::unique_ptr<ImportedFencePool> here =
      Must(ImportedFencePool::Subscribe(driver(), served.ticket(), {}, Late()));
  ExpectFails(
      absl::StatusCode::kFailedPrecondition,
      here->Import(FenceOf(Must(blocks->Export(block))), Late()).status(),
      "another pool than FencePool::pool()");
}

// The owner believes that all is over, as the words say which any peer can
// write; this process's GPU has yet to come to what is on its streams.
TEST_F(FenceIpcTest, MemoryThatTheOwnerForgetsStaysMappedForWhatIsOnStreams) {
  for (const bool signals : {false, true}) {
    SCOPED_TRACE(signals);
    const std::unique_ptr<ImportedFencePool> theirs =
        Must(ImportedFencePool::Subscribe(driver(), publication_->ticket(),
                                          {.devices = {device}}, Late()));
    HeldStream held(device);
    {
      Fence fence = Must(fences_->New());
      Fence imported =
          Must(theirs->Import(Must(fences_->Export(fence)), Late()));
      Must(signals ? imported.Signal(held.get(), 1)
                   : imported.Wait(held.get(), 1));
      Must(fence.SignalFromHost(1));
    }
    ExpectSoon([this] {
      Must(fences_->pool().Trim());
      return fences_->statistics().reserved == 0;
    });
    // What is told after that has come: so it has forgotten the memory.
    Fence next = Must(fences_->New());
    Must(theirs->Import(Must(fences_->Export(next)), Late()));
    held.Release();
    EXPECT_EQ(driver()->cuStreamSynchronize(held.get()), CUDA_SUCCESS);
  }
}

// --- What a hostile peer writes ---------------------------------------------

class HostileFencePeer : public FenceIpcTest {
 protected:
  fence::Words* WordsOf(const Fence& fence) {
    here_ = Must(ImportedPool::Subscribe(
        driver(), publication_->ticket(),
        {.access = Access::kReadWrite, .host_access = Access::kReadWrite},
        Late()));
    block_.emplace(
        Must(here_->Import(BlockOf(Must(fences_->Export(fence))), Late())));
    return reinterpret_cast<fence::Words*>(
        static_cast<std::uintptr_t>(block_->address()));
  }
  std::unique_ptr<ImportedPool> here_;
  std::optional<ImportedBlock> block_;
};

TEST_F(HostileFencePeer, AValueThatIsNoneIsDataLossAndStreamsAreLetGo) {
  Fence fence = Must(fences_->New());
  const Stream stream;
  fence::Words* const words = WordsOf(fence);
  words->value.store(~std::uint64_t{0});
  for (const absl::Status& status :
       {fence.Query().status(), fence.Signal(stream.get(), 1),
        fence.Wait(stream.get(), 1), fence.SignalFromHost(1),
        fence.WaitOnHost(1, Late())}) {
    ExpectFails(absl::StatusCode::kDataLoss, status, "no value that it can");
  }
  words->value.store(0);
  ExpectOk(fence.Wait(stream.get(), 1));
  words->value.store(~std::uint64_t{0});
  ExpectOk(fence.Abandon());
  stream.Sync();
}

TEST_F(HostileFencePeer, MemoryThatIsUsedUpIsNotMadeAFence) {
  Fence fence = Must(fences_->New());
  fence::Words* const words = WordsOf(fence);
  const std::uint64_t before = fences_->pool().statistics().live_blocks;
  words->value.store(fence::kLastBase + 1);
  block_.reset();
  ExpectOk(fence.Release());
  const Fence next = Must(fences_->New());
  EXPECT_EQ(Must(next.Query()), 0u);
  EXPECT_EQ(fences_->pool().statistics().live_blocks, before + 1)
      << "it was handed out again";
}

TEST_F(HostileFencePeer, ABaseThatNoFenceHasIsDataLoss) {
  const Fence fence = Must(fences_->New());
  fence::Words* const words = WordsOf(fence);
  words->base.store(~std::uint64_t{0} - 5);
  const std::unique_ptr<ImportedFencePool> imported =
      Must(ImportedFencePool::Subscribe(driver(), publication_->ticket(), {},
                                        Late()));
  ExpectFails(absl::StatusCode::kDataLoss,
              imported->Import(Must(fences_->Export(fence)), Late()).status(),
              "which no fence does");
  EXPECT_EQ(imported->statistics().fences, 0u);
}

}  // namespace
}  // namespace vmm::testing
