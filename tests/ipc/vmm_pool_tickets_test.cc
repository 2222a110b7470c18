// Tickets that lie, and an owner that does.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/ipc/lifeline.h"
#include "tests/gpu/changed_driver.h"
#include "tests/gpu/held_stream.h"
#include "tests/gpu/stream.h"
#include "tests/ipc/hostile_owner.h"
#include "tests/ipc/pool_ipc_test.h"
#include "tests/support/emulator.h"
#include "tests/support/how_many.h"
#include "tests/support/syscall_faults.h"
#include "vmm/pool/internal/share_protocol.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/subscription.h"
#include "vmm/share/internal/protocol.h"
#include "vmm/sync/fence_pool.h"

namespace vmm::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
using Args = std::vector<std::string>;

class PoolTickets : public PoolIpcTest {
 protected:
  void SetUp() override {
    PoolIpcTest::SetUp();
    publication_.emplace(Serve());
    peer_ = Subscribe(*publication_);
    // The one in the middle is what the tests ask for.
    blocks_ = TakePatterns(3, 70000, 1);
    tickets_ = Must(pool_->ExportAll(blocks_));
    ticket_ = tickets_[1];
    Must(peer_->Import(ticket_, Late()));  // Their segment has come.
  }
  void TearDown() override {
    // Nothing that was refused has left a hold.
    EXPECT_EQ(peer_->statistics().imported, 0u);
    FreeAll(blocks_);
    EXPECT_EQ(pool_->statistics().held, 0u);
    peer_.reset();
    publication_.reset();
    ExpectAllIsFree();
  }
  absl::Status Import(const PoolTicket& ticket) {
    // Nothing that is refused here may wait for a segment.
    return peer_->Import(ticket, absl::InfinitePast()).status();
  }
  // As it comes from elsewhere.
  absl::Status ImportBytes(absl::Span<const std::uint8_t> bytes) {
    const absl::StatusOr<PoolTicket> ticket = DecodePoolTicket(bytes);
    return ticket.ok() ? Import(*ticket) : ticket.status();
  }
  void ExpectStillGood() {
    const ImportedBlock block = Must(peer_->Import(ticket_, Late()));
    ExpectPattern(block.address(), block.size(), 2);
  }

  std::optional<Share> publication_;
  std::unique_ptr<ImportedPool> peer_;
  std::vector<CUdeviceptr> blocks_;
  std::vector<PoolTicket> tickets_;
  PoolTicket ticket_;
};

TEST_F(PoolTickets, AnyBitFlippedIsARefusal) {
  const PoolTicketBytes good = EncodePoolTicket(ticket_);
  ASSERT_TRUE(ImportBytes(good).ok());
  for (std::size_t bit = 0; bit < 8 * kPoolTicketBytes; ++bit) {
    PoolTicketBytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    const absl::Status status = ImportBytes(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(status) ||
                absl::IsFailedPrecondition(status) ||
                absl::IsUnimplemented(status))
        << "bit " << bit << ": " << status;
  }
  // While the block is held the answers are those of another path.
  const ImportedBlock held = Must(peer_->Import(ticket_, Late()));
  for (std::size_t bit = 0; bit < 8 * kPoolTicketBytes; ++bit) {
    PoolTicketBytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    EXPECT_FALSE(ImportBytes(bytes).ok()) << "held, bit " << bit;
  }
  EXPECT_EQ(peer_->statistics().imported, 1u);
}

TEST_F(PoolTickets, CutAtAnyByteOrWithOneMoreIsNone) {
  const PoolTicketBytes good = EncodePoolTicket(ticket_);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(ImportBytes(absl::MakeConstSpan(good).first(size)).code(),
              Code::kInvalidArgument)
        << size;
  }
  std::vector<std::uint8_t> longer(good.begin(), good.end());
  longer.push_back(0);
  EXPECT_EQ(ImportBytes(longer).code(), Code::kInvalidArgument);
  ExpectStillGood();
}

TEST_F(PoolTickets, ForgedFieldsContradictTheOwnersRecord) {
  const auto changed = [this](auto change) {
    PoolTicket forged = ticket_;
    change(forged);
    // By way of its bytes, as it would come.
    return ImportBytes(EncodePoolTicket(forged));
  };
  using T = PoolTicket;
  for (const absl::Status& status : {
           // Segments that are not there, or not its.
           changed([](T& t) { t.segment += 1; }),
           changed([](T& t) { t.segment = 0xffffffff; }),
           // The neighbours' bytes, and bytes outside of the segment.
           changed([this](T& t) { t.offset = tickets_[0].offset; }),
           changed([this](T& t) { t.size = tickets_[2].offset + 70000; }),
           changed([](T& t) { t.size = 4 * kMiB; }),
           changed([](T& t) { t.offset = 4 * kMiB; }),
           changed([](T& t) { t.offset = 4 * kMiB - 1; }),
           changed([](T& t) { t.size = 1; }),
           changed([](T& t) { t.offset = 0xfffffffffff00000; }),
           changed([](T& t) {
             t.offset = 0;
             t.size = ~std::uint64_t{0};
           }),
       }) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("contradicts"));
  }
  // Slots and generations of other blocks, of none, and of later ones.
  for (const absl::Status& status : {
           changed([this](T& t) { t.slot = tickets_[0].slot; }),
           changed([](T& t) { t.slot = kPoolSlots - 1; }),
           changed([](T& t) { t.generation += 1; }),
           changed([](T& t) { t.generation += 100; }),
           changed([](T& t) { t.generation = ~std::uint64_t{0}; }),
       }) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("freed the block"));
  }
  // What no owner writes.
  for (const absl::Status& status : {
           changed([](T& t) { t.segment = 0; }),
           changed([](T& t) { t.slot = kPoolSlots; }),
           changed([](T& t) { t.generation = 0; }),
           changed([](T& t) { t.size = 0; }),
           changed([](T& t) { t.offset = ~std::uint64_t{0}; }),
       }) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
  }
  // The same without their bytes: Import() is given any values.
  PoolTicket forged = ticket_;
  forged.slot = 0xffffffff;
  EXPECT_EQ(Import(forged).code(), Code::kInvalidArgument);
  forged = ticket_;
  forged.generation = 0;
  EXPECT_EQ(Import(forged).code(), Code::kInvalidArgument);
  ExpectStillGood();
}

TEST_F(PoolTickets, OfAnotherPoolOrDomainAreRefused) {
  const std::unique_ptr<Pool> other =
      Must(Pool::Create(device, SmallSegments()));
  const CUdeviceptr block = Must(other->Allocate(70000, nullptr));
  const absl::Status of_other = Import(Must(other->Export(block)));
  EXPECT_EQ(of_other.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(of_other.message()),
              HasSubstr("is of another sharing domain"));
  const CUdeviceptr second = Take(70000, pool_->NewDomain());
  EXPECT_EQ(Import(Export(second)).code(), Code::kInvalidArgument);
  Free(second);
  // The domain's id alone makes it no ticket of this one.
  PoolTicket forged = Must(other->Export(block));
  forged.domain = ticket_.domain;
  forged.generation += 100;
  EXPECT_EQ(Import(forged).code(), Code::kFailedPrecondition);
  ExpectStillGood();
  Must(other->Free(block, nullptr));
}

TEST_F(PoolTickets, OfAFreedBlockAreRefusedWhileItIsHeldAndAfterwards) {
  std::optional<ImportedBlock> held = Must(peer_->Import(ticket_, Late()));
  Free(blocks_[1]);
  EXPECT_EQ(Import(ticket_).code(), Code::kFailedPrecondition);
  ExpectPattern(held->address(), held->size(), 2);
  held.reset();
  EXPECT_EQ(Import(ticket_).code(), Code::kFailedPrecondition);
  blocks_[1] = Take(70000);
  EXPECT_EQ(Import(ticket_).code(), Code::kFailedPrecondition);
  ticket_ = Export(blocks_[1]);
  WritePattern(blocks_[1], 70000, 2);
  ExpectStillGood();
}

using PoolSlots = PoolIpcTest;

// All slots of the domain but that of one freed block are taken for good.
TEST_F(PoolSlots, TheSlotThatAPeerGaveBackLastServesTheNextBlock) {
  constexpr std::uint64_t kSize = 256;
  UsePool({.sharing = TestSharing(),
           .first_segment_size = 2 * kPoolSlots * kSize,
           .max_segment_size = 2 * kPoolSlots * kSize});
  const Share publication = Serve();
  const std::unique_ptr<ImportedPool> peer = Subscribe(publication);
  const CUdeviceptr freed = Take(kSize);
  std::optional<ImportedBlock> held = Must(peer->Import(Export(freed), Late()));
  Free(freed);
  for (std::uint32_t taken = 1; taken < kPoolSlots; ++taken) {
    Export(Take(kSize));
  }
  const CUdeviceptr next = Take(kSize);
  EXPECT_EQ(pool_->Export(next).status().code(), Code::kResourceExhausted);
  held.reset();
  const absl::StatusOr<PoolTicket> exported = pool_->Export(next);
  EXPECT_TRUE(exported.ok()) << exported.status();
}

TEST_F(PoolTickets, OneStaleAmongManyLeavesNoneOfThemHeld) {
  // More than are looked at together, so that some were imported already when
  // the stale one is met, wherever it is.
  const std::vector<CUdeviceptr> many = TakePatterns(50, 4096, 9);
  std::vector<PoolTicket> tickets = Must(pool_->ExportAll(many));
  for (std::size_t stale : {0, 15, 16, 24, 49}) {
    std::vector<PoolTicket> asked = tickets;
    asked[stale].generation += 100;
    EXPECT_EQ(peer_->ImportAll(asked, Late()).status().code(),
              Code::kFailedPrecondition)
        << stale;
    EXPECT_EQ(peer_->statistics().imported, 0u) << stale;
  }
  EXPECT_EQ(Must(peer_->ImportAll(tickets, Late())).size(), many.size());
  FreeAll(many);
  EXPECT_EQ(pool_->statistics().held, 0u);
}

TEST_F(PoolTickets, StringsThatNameNoPoolAreToldApart) {
  const auto subscribe = [this](const std::string& text) {
    return ImportedPool::Subscribe(driver(), text, {}, Late()).status();
  };
  EXPECT_EQ(subscribe("").code(), Code::kInvalidArgument);
  EXPECT_EQ(subscribe("vmmshare-pool:2:").code(), Code::kInvalidArgument);
  const std::string good = publication_->ticket();
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string text = good;
    text[at] = text[at] == 'A' ? 'B' : 'A';
    const absl::Status status = subscribe(text);
    EXPECT_TRUE(absl::IsInvalidArgument(status) ||
                absl::IsUnimplemented(status))
        << at << ": " << status;
    EXPECT_FALSE(subscribe(good.substr(0, at)).ok()) << at;
  }
  // Well-formed, with a key of nothing; and with that of another domain.
  AddressedPool other = Must(ParsePoolString(good));
  other.invitation.key.secret[3] ^= 1;
  EXPECT_EQ(subscribe(FormatPoolString(other)).code(), Code::kNotFound);
  other = Must(ParsePoolString(good));
  other.domain.bytes[3] ^= 1;
  EXPECT_EQ(subscribe(FormatPoolString(other)).code(), Code::kInvalidArgument);
  // Withdrawn: those that have subscribed stay so.
  publication_.reset();
  EXPECT_EQ(subscribe(good).code(), Code::kNotFound);
  EXPECT_TRUE(peer_->connection().ok());
  ExpectStillGood();
}

TEST_F(PoolTickets, APoolIsServedOnlyIfItShares) {
  ServableDomain unknown = pool_->InDomain(SharingDomain{7});
  EXPECT_EQ(endpoint_->Serve(unknown).status().code(), Code::kInvalidArgument);
  PoolOptions options = SmallSegments();
  options.sharing = SharePolicy::Private();
  const std::unique_ptr<Pool> closed = Must(Pool::Create(device, options));
  EXPECT_EQ(endpoint_->Serve(*closed).status().code(),
            Code::kFailedPrecondition);
}

TEST_F(PoolTickets, ADomainIsNotServedWhosePoolHasEnded) {
  std::unique_ptr<Pool> pool = Must(Pool::Create(device, SmallSegments()));
  ServableDomain domain = pool->InDomain(SharingDomain::kFirst);
  pool.reset();
  const absl::Status status = endpoint_->Serve(domain).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has ended")) << status;
}

// The program may serve a domain on one thread and end the pool on another.
TEST_F(PoolTickets, APoolEndsWhileItsDomainIsServed) {
  for (int round = 0; round < 20; ++round) {
    std::unique_ptr<Pool> pool = Must(Pool::Create(device, SmallSegments()));
    ASSERT_TRUE(pool->Reserve(64 * kMiB, nullptr).ok());
    ServableDomain domain = pool->InDomain(SharingDomain::kFirst);
    absl::Status status;
    std::thread serves([&] { status = endpoint_->Serve(domain).status(); });
    pool.reset();
    serves.join();
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
  }
}

TEST_F(PoolTickets, BlocksGivenBackAfterAStreamWaitForIt) {
  std::vector<ImportedBlock> blocks = Must(peer_->ImportAll(tickets_, Late()));
  const absl::Status released =
      peer_->ReleaseAllAfter(std::move(blocks), nullptr);
  ASSERT_TRUE(released.ok()) << released;
  ExpectSoon([this] { return peer_->statistics().imported == 0; });
  EXPECT_EQ(peer_->statistics().releasing, 0u);
}

TEST_F(PoolTickets, WithoutAContextBlocksStayTheCallers) {
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxPopCurrent(&context), CUDA_SUCCESS);
  {
    ImportedBlock block = Must(peer_->Import(ticket_, Late()));
    const absl::Status released =
        peer_->ReleaseAfter(std::move(block), nullptr);
    EXPECT_FALSE(released.ok());
    // Not moved from: that is the promise.
    // NOLINTNEXTLINE(bugprone-use-after-move)
    EXPECT_EQ(block.size(), 70000u);
    EXPECT_EQ(peer_->statistics().imported, 1u);
  }
  ASSERT_EQ(driver()->cuCtxPushCurrent(context), CUDA_SUCCESS);
}

// The driver is not asked of either: a value that it has not issued may crash it.
TEST_F(PoolTickets, BehindWhatIsNoOneStreamBlocksStayTheCallers) {
  ImportedBlock block = Must(peer_->Import(ticket_, Late()));
  for (CUstream none : {AllStreams(), CU_STREAM_PER_THREAD}) {
    EXPECT_EQ(peer_->ReleaseAfter(std::move(block), none).code(),
              Code::kInvalidArgument);
    // Not moved from: that is the promise.
    // NOLINTNEXTLINE(bugprone-use-after-move)
    EXPECT_EQ(block.size(), 70000u);
  }
  EXPECT_EQ(peer_->statistics().imported, 1u);
}

// The program may end the stream then.
TEST_F(PoolTickets, ABlockThatIsHeldWhenItsStreamIsReleasedWaitsForNoStream) {
  CUstream stream = nullptr;
  ASSERT_EQ(driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  const CUdeviceptr block = Must(pool_->Allocate(kMiB, stream));
  std::optional<ImportedBlock> theirs =
      Must(peer_->Import(Must(pool_->Export(block)), Late()));
  Must(pool_->Free(block, stream));
  EXPECT_GT(pool_->statistics().held, 0u);
  Must(pool_->ReleaseStream(stream, Late()));
  ASSERT_EQ(driver()->cuStreamDestroy(stream), CUDA_SUCCESS);
  theirs.reset();
  Must(pool_->Trim());
  EXPECT_EQ(pool_->statistics().held, 0u);
  EXPECT_EQ(pool_->statistics().last_error, absl::OkStatus());
}

// What a driver is to do before it answers how far an event is. Once.
std::function<void()>& AtEventQuery() {
  static std::function<void()> call;
  return call;
}
// The first device of a driver that does it.
Device DeviceThatIsAsked() {
  platform::DriverTable table = TestDriver().table();
  table.cuEventQuery = [](CUevent event) {
    if (const auto call = std::exchange(AtEventQuery(), nullptr)) call();
    return TestDriver()->cuEventQuery(event);
  };
  return Must(Device::ByOrdinal(ChangedDriver(table), 0));
}

// A driver may have that question wait for another thread's call.
TEST_F(PoolTickets,
       BlocksAreImportedWhileADriverIsAskedWhetherAStreamHasPassed) {
  const Device its = DeviceThatIsAsked();
  const std::unique_ptr<ImportedPool> peer = Must(ImportedPool::Subscribe(
      its.driver(), publication_->ticket(), {}, Late()));
  ImportedBlock first = Must(peer->Import(tickets_[0], Late()));
  std::promise<void> asked;
  std::promise<void> answers;
  AtEventQuery() = [&] {
    asked.set_value();
    answers.get_future().wait_for(std::chrono::seconds(10));
  };
  Must(peer->ReleaseAfter(std::move(first), nullptr));
  asked.get_future().wait();
  const absl::Time begin = absl::Now();
  EXPECT_EQ(peer->statistics().releasing, 1u);
  const absl::StatusOr<ImportedBlock> second =
      peer->Import(ticket_, absl::InfinitePast());
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  answers.set_value();
  ExpectSoon([&peer] { return peer->statistics().releasing == 0; });
}

// With a driver that takes as long to be asked as another block takes to come.
TEST_F(PoolTickets, BlocksGoBackWhileOthersComeToBeReleased) {
  const Device its = DeviceThatIsAsked();
  const std::unique_ptr<ImportedPool> peer = Must(ImportedPool::Subscribe(
      its.driver(), publication_->ticket(), {}, Late()));
  const Stream stream;
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  const auto release = [&] {
    Must(peer->ReleaseAfter(Must(peer->Import(ticket_, Late())), stream.get()));
  };
  constexpr std::size_t kQuestions = 50;
  std::size_t questions = 0;
  std::atomic<std::uint64_t> most = 0;
  std::promise<void> done;
  const std::function<void()> at_each = [&] {
    most = std::max<std::uint64_t>(most, peer->statistics().imported);
    if (++questions == kQuestions) return done.set_value();
    AtEventQuery() = at_each;
    EXPECT_EQ(driver()->cuCtxPushCurrent(context), CUDA_SUCCESS);
    release();
    EXPECT_EQ(driver()->cuCtxPopCurrent(&context), CUDA_SUCCESS);
    stream.Sync();
  };
  AtEventQuery() = at_each;
  release();
  done.get_future().wait();
  ExpectSoon([&peer] { return peer->statistics().releasing == 0; });
  EXPECT_LT(most, kQuestions / 2);
}

// Has what comes on `stream` wait for all that is on `other`.
void BeBehind(CUstream stream, CUstream other) {
  const platform::Driver driver = TestDriver();
  CUevent event = nullptr;
  EXPECT_EQ(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventRecord(event, other), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventDestroy(event), CUDA_SUCCESS);
}

// A block of a pool of its own, freed on a stream that is held while a peer has it.
class PoolTicketsOfAHeldStream : public PoolTickets {
 protected:
  void SetUp() override {
    PoolTickets::SetUp();
    if (!driver().Need<&platform::DriverTable::cuStreamWaitValue64>().ok()) {
      GTEST_SKIP() << "this driver cannot hold a stream";
    }
  }
  void FreeWhatAPeerHas(std::uint64_t size, std::uint64_t cap = 0) {
    held_.emplace(device);
    own_ = Must(Pool::Create(DeviceThatIsAsked(), SmallSegments(cap)));
    share_ = Must(endpoint_->Serve(*own_));
    subscriber_ = Subscribe(*share_);
    block_ = Must(own_->Allocate(size, held_->get()));
    theirs_ = Must(subscriber_->Import(Must(own_->Export(block_)), Late()));
    Must(own_->Free(block_, held_->get()));
  }

  std::optional<HeldStream> held_;
  std::unique_ptr<Pool> own_;
  std::optional<Share> share_;
  std::unique_ptr<ImportedPool> subscriber_;
  CUdeviceptr block_ = 0;
  std::optional<ImportedBlock> theirs_;
};

// While ReleaseStream() waits, and somebody looks at the pool. The program may
// end the stream when it returns.
TEST_F(PoolTicketsOfAHeldStream, ABlockGivenBackMeanwhileWaitsForNoStream) {
  FreeWhatAPeerHas(kMiB);
  EXPECT_EQ(own_->statistics().held, kMiB);
  bool is_called = false;
  AtEventQuery() = [&] {
    is_called = true;
    theirs_.reset();
    const PoolStatistics now = own_->statistics();
    EXPECT_EQ(now.held, 0u);
    EXPECT_EQ(now.pending, kMiB);
    held_->Release();
  };
  Must(own_->ReleaseStream(held_->get(), Late()));
  ASSERT_TRUE(is_called);
  EXPECT_EQ(own_->statistics().held, 0u);
  EXPECT_EQ(own_->statistics().pending, 0u) << "it asks after the stream";
  EXPECT_EQ(own_->CheckInvariants(), absl::OkStatus());
}

// Nor for its end: the stream itself has it at once.
TEST_F(PoolTicketsOfAHeldStream, ABlockGivenBackMeanwhileServesItsStream) {
  FreeWhatAPeerHas(4 * kMiB, 4 * kMiB);
  CUdeviceptr again = 0;
  AtEventQuery() = [&] {
    theirs_.reset();
    again = Must(own_->Allocate(4 * kMiB, held_->get()));
    held_->Release();
  };
  Must(own_->ReleaseStream(held_->get(), Late()));
  EXPECT_EQ(again, block_);
  Must(own_->Free(again, held_->get()));
  Must(own_->ReleaseStream(held_->get(), Late()));
  EXPECT_EQ(own_->CheckInvariants(), absl::OkStatus());
}

// Two threads release a stream that goes on. One of them has done so when a block
// is freed behind work that the other does not wait for.
TEST_F(PoolTicketsOfAHeldStream, WhatIsFreedBetweenTwoReleasesWaits) {
  own_ = Must(Pool::Create(DeviceThatIsAsked(), SmallSegments()));
  held_.emplace(device);
  const Stream stream;
  const CUdeviceptr first = Must(own_->Allocate(4 * kMiB, stream.get()));
  const CUdeviceptr second = Must(own_->Allocate(4 * kMiB, stream.get()));
  Must(own_->Free(first, stream.get()));
  AtEventQuery() = [&] {
    Must(own_->ReleaseStream(stream.get(), Late()));
    BeBehind(stream.get(), held_->get());
    Must(own_->Free(second, stream.get()));
    Must(own_->Trim());
  };
  Must(own_->ReleaseStream(stream.get(), Late()));
  EXPECT_EQ(own_->statistics().pending, 4 * kMiB);
  EXPECT_EQ(Must(own_->Trim()), 0u) << "the GPU may still use it";
  held_->Release();
  stream.Sync();
  EXPECT_EQ(Must(own_->Trim()), 4 * kMiB);
}

// Of a domain that is made while it waits a release knows nothing, whatever
// another one, which gives up, has noted there.
TEST_F(PoolTicketsOfAHeldStream, ABlockOfADomainThatIsMadeMeanwhileWaits) {
  own_ = Must(Pool::Create(DeviceThatIsAsked(), SmallSegments()));
  held_.emplace(device);
  const Stream stream;
  AtEventQuery() = [&] {
    const SharingDomain made = own_->NewDomain();
    ServableDomain servable = own_->InDomain(made);
    share_ = Must(endpoint_->Serve(servable));
    subscriber_ = Subscribe(*share_);
    block_ = Must(own_->Allocate(4 * kMiB, stream.get(), {.domain = made}));
    theirs_ = Must(subscriber_->Import(Must(own_->Export(block_)), Late()));
    BeBehind(stream.get(), held_->get());
    Must(own_->Free(block_, stream.get()));
    EXPECT_EQ(own_->ReleaseStream(stream.get(), absl::InfinitePast()).code(),
              Code::kDeadlineExceeded);
  };
  Must(own_->ReleaseStream(stream.get(), Late()));
  theirs_.reset();
  EXPECT_EQ(Must(own_->Trim()), 0u) << "the GPU may still use it";
  EXPECT_EQ(own_->statistics().pending, 4 * kMiB);
  held_->Release();
  stream.Sync();
  EXPECT_EQ(Must(own_->Trim()), 4 * kMiB);
  EXPECT_EQ(own_->CheckInvariants(), absl::OkStatus());
}

// The same when ReleaseStream() gives up: then it waits for its stream.
TEST_F(PoolTicketsOfAHeldStream, ABlockGivenBackWaitsForOneThatIsNotReleased) {
  FreeWhatAPeerHas(kMiB);
  AtEventQuery() = [&] { theirs_.reset(); };
  EXPECT_EQ(own_->ReleaseStream(held_->get(), absl::Now()).code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(own_->statistics().pending, kMiB);
  // The stream itself has it again.
  const CUdeviceptr again = Must(own_->Allocate(kMiB, held_->get()));
  EXPECT_EQ(again, block_);
  Must(own_->Free(again, held_->get()));
  held_->Release();
  Must(own_->ReleaseStream(held_->get(), Late()));
  EXPECT_EQ(own_->statistics().pending, 0u);
}

// Nothing is refused that can serve when the stream has been released.
TEST_F(PoolTicketsOfAHeldStream, AtTheCapABlockGivenBackMeanwhileServes) {
  FreeWhatAPeerHas(4 * kMiB, 4 * kMiB);
  const Stream other;
  CUcontext context = nullptr;
  ASSERT_EQ(driver()->cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::future<absl::StatusOr<CUdeviceptr>> served;
  AtEventQuery() = [&] {
    theirs_.reset();
    served = std::async(std::launch::async, [&] {
      EXPECT_EQ(driver()->cuCtxSetCurrent(context), CUDA_SUCCESS);
      return own_->Allocate(4 * kMiB, other.get());
    });
    // It ends only when the stream is released, unless it is refused.
    served.wait_for(std::chrono::milliseconds(200));
    held_->Release();
  };
  Must(own_->ReleaseStream(held_->get(), Late()));
  ASSERT_TRUE(served.valid());
  const absl::StatusOr<CUdeviceptr> second = served.get();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, block_);
  Must(own_->Free(*second, other.get()));
  Must(own_->ReleaseStream(other.get(), Late()));
  EXPECT_EQ(own_->CheckInvariants(), absl::OkStatus());
}

// While ReleaseStream() waits, the stream gets more work, and a block that a
// peer has is freed behind it.
TEST_F(PoolTickets, ABlockThatIsFreedWhileItsStreamIsReleasedWaitsForIt) {
  if (!driver().Need<&platform::DriverTable::cuStreamWaitValue64>().ok()) {
    GTEST_SKIP() << "this driver cannot hold a stream";
  }
  HeldStream held(device);
  const Stream stream;
  const Stream other;
  const std::unique_ptr<Pool> pool =
      Must(Pool::Create(DeviceThatIsAsked(), SmallSegments()));
  const Share publication = Must(endpoint_->Serve(*pool));
  const std::unique_ptr<ImportedPool> peer = Subscribe(publication);
  // A whole segment each, so that nothing else is free.
  const CUdeviceptr block = Must(pool->Allocate(4 * kMiB, stream.get()));
  std::optional<ImportedBlock> theirs =
      Must(peer->Import(Must(pool->Export(block)), Late()));
  bool is_called = false;
  AtEventQuery() = [&] {
    is_called = true;
    BeBehind(stream.get(), held.get());
    Must(pool->Free(block, stream.get()));
  };
  Must(pool->ReleaseStream(stream.get(), Late()));
  ASSERT_TRUE(is_called);
  EXPECT_FALSE(stream.IsIdle());
  theirs.reset();
  const CUdeviceptr second = Must(pool->Allocate(4 * kMiB, other.get()));
  EXPECT_NE(second, block) << "the GPU may still use it";
  held.Release();
  stream.Sync();
  const CUdeviceptr third = Must(pool->Allocate(4 * kMiB, other.get()));
  EXPECT_EQ(third, block);
  Must(pool->Free(second, other.get()));
  Must(pool->Free(third, other.get()));
  Must(pool->ReleaseStream(stream.get(), Late()));
  Must(pool->ReleaseStream(other.get(), Late()));
  EXPECT_EQ(pool->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(pool->statistics().last_error, absl::OkStatus());
}

// Whether a driver has no memory: until something is unmapped.
bool is_full = false;

// Nobody calls the pool again that has it.
TEST_F(PoolTickets, WhatAPeerHasGivenBackServesAnotherPoolOfTheProcess) {
  platform::DriverTable table = TestDriver().table();
  table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, std::size_t size,
                         const CUmemAllocationProp* props,
                         unsigned long long flags) {
    if (is_full) return CUDA_ERROR_OUT_OF_MEMORY;
    return TestDriver()->cuMemCreate(handle, size, props, flags);
  };
  table.cuMemUnmap = [](CUdeviceptr at, std::size_t size) {
    is_full = false;
    return TestDriver()->cuMemUnmap(at, size);
  };
  const Device its = Must(Device::ByOrdinal(ChangedDriver(table), 0));
  const std::unique_ptr<Pool> first = Must(Pool::Create(its, SmallSegments()));
  const std::unique_ptr<Pool> second = Must(Pool::Create(its, SmallSegments()));
  const Share publication = Must(endpoint_->Serve(*first));
  // On the unchanged driver: what it unmaps frees no memory.
  const std::unique_ptr<ImportedPool> peer = Subscribe(publication);
  const CUdeviceptr block = Must(first->Allocate(kMiB, nullptr));
  std::optional<ImportedBlock> theirs =
      Must(peer->Import(Must(first->Export(block)), Late()));
  Must(first->Free(block, nullptr));
  theirs.reset();
  is_full = true;
  const absl::StatusOr<CUdeviceptr> served = second->Allocate(kMiB, nullptr);
  is_full = false;
  EXPECT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(first->statistics().reserved, 0u);
}

TEST_F(PoolTickets, AllThatAPeerHasIsRecalledAndNothingElse) {
  pool_->NewDomain();  // In which nobody has anything.
  const CUdeviceptr own = Must(pool_->Allocate(kMiB, nullptr));
  const ImportedBlock block = Must(peer_->Import(ticket_, Late()));
  pool_->RecallAll(absl::Now() + absl::Minutes(1));
  ExpectSoon([this] { return !peer_->Recalled().empty(); });
  const std::vector<RecalledBlock> recalled = peer_->Recalled();
  ASSERT_EQ(recalled.size(), 1u);
  EXPECT_EQ(recalled[0].address, block.address());
  Must(pool_->Recall({own}, absl::Now()));  // Nobody was ever given it.
  EXPECT_EQ(peer_->Recalled().size(), 1u);
  Must(pool_->Free(own, nullptr));
}

// --- An owner that lies ------------------------------------------------------

TEST_F(HostileOwner, RecordsOutsideOfTheirSegmentAreRefused) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> bad = {
      {kGranule, 1},
      {0, kGranule + 1},
      {kGranule - 256, 257},
      {~std::uint64_t{0} - 256, 256},
      {256, ~std::uint64_t{0} - 256}};
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, kGranule));
        for (const auto& [offset, size] : bad) {
          Must(table.Publish(1, offset, size));
        }
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
        channel.WaitForHangUp(Late()).IgnoreError();
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  std::uint32_t slot = 0;
  {
    const ImportedBlock good =
        Must(pool->Import(TicketOf({slot, slot + 1}, 1, 0, kGranule), Late()));
    ExpectPattern(good.address(), good.size(), 5);
  }
  for (const auto& [offset, size] : bad) {
    ++slot;
    const absl::Status status =
        pool->Import(TicketOf({slot, slot + 1}, 1, offset, size), Late())
            .status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("ends outside of its segment"));
  }
  EXPECT_EQ(pool->statistics().imported, 0u);
}

// Two segments side by side, and blocks that begin in the first one.
TEST_F(HostileOwner, ABlockOfSeveralSegmentsIsWholeOrRefused) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "none lies beside another";
  const Allocation low = MakePattern(kGranule, 5);
  const Allocation high = MakePattern(kGranule, 6);
  constexpr std::uint64_t kSize = 8 * kGranule;
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Must(table.Publish(1, 0, 2 * kGranule));
    Must(table.Publish(1, kGranule - 256, 2 * kGranule));
    Must(table.Publish(1, 256, kSize));
    Must(table.Publish(1, 256, ~std::uint64_t{0} - 256));
    Must(table.Publish(1, kGranule, 256));
    Must(table.Publish(3, 0, kGranule + 256));
    Welcome(channel, table, peer);
    Must(pool::SendNotice(channel, SegmentOf(low, 1, {7, 0, kSize}), Late()));
    AwaitGoOn();
    Must(pool::SendNotice(channel, SegmentOf(high, 2, {7, kGranule, kSize}),
                          Late()));
    // Where something is, nothing else can be; nor is what lies by itself beside
    // anything.
    Must(pool::SendNotice(channel, SegmentOf(low, 4, {7, kGranule, kSize}),
                          Late()));
    Must(pool::SendNotice(channel, SegmentOf(low, 3), Late()));
    AwaitGoOn();
    Must(pool::SendNotice(channel, pool::ForgetSegment{2}, Late()));
    Must(pool::SendNotice(channel, pool::ForgetSegment{1}, Late()));
    Must(pool::SendNotice(channel, pool::Closed(), Late()));
  });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const auto import = [&](std::uint32_t slot, std::uint32_t segment,
                          std::uint64_t offset, std::uint64_t size,
                          absl::Time until) {
    return pool->Import(TicketOf({slot, slot + 1}, segment, offset, size),
                        until);
  };
  // The first of the two has come.
  ExpectSoon([&] { return pool->statistics().segments == 1; });
  EXPECT_EQ(import(0, 1, 0, 2 * kGranule, absl::InfinitePast()).status().code(),
            Code::kDeadlineExceeded);
  const platform::Channel second = GoOn();
  std::optional<ImportedBlock> block =
      Must(import(0, 1, 0, 2 * kGranule, Late()));
  ExpectPattern(block->address(), kGranule, 5);
  ExpectPattern(block->address() + kGranule, kGranule, 6);
  // Of the third nothing comes.
  EXPECT_EQ(import(1, 1, kGranule - 256, 2 * kGranule,
                   absl::Now() + absl::Milliseconds(20))
                .status()
                .code(),
            Code::kDeadlineExceeded);
  for (const absl::Status& status :
       {import(2, 1, 256, kSize, Late()).status(),
        import(3, 1, 256, ~std::uint64_t{0} - 256, Late()).status(),
        import(4, 1, kGranule, 256, Late()).status(),
        import(5, 3, 0, kGranule + 256, Late()).status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("ends outside of its segment"));
  }
  const platform::Channel third = GoOn();
  ExpectSoon([&] { return !pool->connection().ok(); });
  EXPECT_EQ(pool->statistics().segments, 3u) << "two stay for the block";
  ExpectPattern(block->address() + kGranule, kGranule, 6);
  block.reset();
  EXPECT_EQ(pool->statistics().segments, 1u);
  EXPECT_EQ(pool->statistics().imported, 0u);
}

TEST_F(HostileOwner, ARangeThatChangesItsSizeEndsTheConnection) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "there are no ranges";
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Welcome(channel, table, peer);
    Must(pool::SendNotice(channel, SegmentOf(memory, 1, {1, 0, 4 * kGranule}),
                          Late()));
    Must(pool::SendNotice(
        channel, SegmentOf(memory, 2, {1, kGranule, 8 * kGranule}), Late()));
  });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  ExpectSoon([&] { return !pool->connection().ok(); });
  EXPECT_EQ(pool->connection().code(), Code::kDataLoss);
  EXPECT_THAT(std::string(pool->connection().message()),
              HasSubstr("range 1 has 8388608 bytes, and now 16777216"));
}

// Its blocks may have parts of several segments, and whoever has one looks at one
// place of it.
TEST_F(HostileOwner, HostMemoryBesideADevicesEndsTheConnection) {
  if (driver().version() < 12020) {
    GTEST_SKIP() << "memory of the host came with CUDA 12.2";
  }
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "there are no ranges";
  const Allocation memory = MakePattern(kGranule, 5);
  const Allocation of_host = HostMemory();
  for (const bool host_first : {false, true}) {
    const Allocation& first = host_first ? of_host : memory;
    const Allocation& second = host_first ? memory : of_host;
    const std::string text =
        Start([&](platform::Channel& channel, pool::ShareTable& table,
                  pool::PeerId peer) {
          Must(table.Publish(1, 0, 2 * kGranule));
          Welcome(channel, table, peer);
          const pool::SegmentPlace low = {1, 0, 4 * kGranule};
          const pool::SegmentPlace high = {1, kGranule, 4 * kGranule};
          Must(pool::SendNotice(channel, SegmentOf(first, 1, low), Late()));
          Must(pool::SendNotice(channel, SegmentOf(second, 2, high), Late()));
        });
    std::unique_ptr<ImportedPool> pool = Must(Dial(text));
    EXPECT_FALSE(
        pool->Import(TicketOf({0, 1}, 1, 0, 2 * kGranule), Late()).ok());
    ExpectSoon([&] { return !pool->connection().ok(); });
    EXPECT_EQ(pool->connection().code(), Code::kDataLoss);
    EXPECT_THAT(std::string(pool->connection().message()),
                HasSubstr(host_first ? "the host, and now of a device"
                                     : "a device, and now of the host"));
    pool.reset();
    owner_.join();
  }
}

// The CPUs have no access to it, and the driver says that it is theirs.
TEST_F(HostileOwner, HostMemoryThatIsSaidToBeADevicesIsRefused) {
  if (driver().version() < 12020) {
    GTEST_SKIP() << "memory of the host came with CUDA 12.2";
  }
  const Allocation of_host = HostMemory();
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Must(table.Publish(1, 0, 4096));
    Welcome(channel, table, peer);
    protocol::Outgoing outgoing =
        Must(protocol::MakeOutgoing(of_host.shareable()));
    auto lying = std::make_shared<pool::SharedSegment>();
    lying->number = 1;
    lying->handle = Must(outgoing.handle(0));
    lying->ticket = std::move(outgoing.ticket);
    lying->ticket.host_numa_node.reset();
    Must(pool::SendNotice(
        channel, std::shared_ptr<const pool::SharedSegment>(std::move(lying)),
        Late()));
  });
  const std::unique_ptr<ImportedPool> pool = Must(ImportedPool::Subscribe(
      driver(), text, {.host_access = Access::kRead}, Late()));
  const absl::Status refused =
      pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("on host NUMA node 0"));
}

TEST_F(HostileOwner, AddressesWithoutEndAreNotTaken) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "there are no ranges";
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Must(table.Publish(5, 0, 4096));
    Must(table.Publish(6, 0, 4096));
    Welcome(channel, table, peer);
    for (std::uint32_t number = 1; number <= 5; ++number) {
      Must(pool::SendNotice(
          channel, SegmentOf(memory, number, {number, 0, pool::kMaxRangeSize}),
          Late()));
    }
    Must(pool::SendNotice(channel, SegmentOf(memory, 6), Late()));
    channel.WaitForHangUp(Late()).IgnoreError();
  });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const absl::Status status =
      pool->Import(TicketOf({0, 1}, 5, 0, 4096), Late()).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
  Must(pool->Import(TicketOf({1, 2}, 6, 0, 4096), Late()));
  EXPECT_LE(pool->statistics().segments, 5u);
}

TEST_F(HostileOwner, ASegmentThatNeverComesIsWaitedForWithADeadline) {
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(9, 0, 4096));
        Welcome(channel, table, peer);
        // Until the importer has given up once.
        AwaitGoOn();
        channel.Close();
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const PoolTicket ticket = TicketOf({0, 1}, 9, 0, 4096);
  EXPECT_EQ(pool->Import(ticket, absl::Now() + absl::Milliseconds(20))
                .status()
                .code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(pool->Import(ticket, absl::InfinitePast()).status().code(),
            Code::kDeadlineExceeded);
  const platform::Channel go_on = GoOn();
  // One that waits is woken by the hang-up.
  EXPECT_EQ(pool->Import(ticket, absl::InfiniteFuture()).status().code(),
            Code::kUnavailable);
}

// Its thread is refused a wait once, and then hears of the owner all the same.
TEST_F(HostileOwner, WhatASubscriberLackedOnceIsNotWhyALaterSegmentIsLate) {
  if (!SyscallFaultsSupported()) GTEST_SKIP() << "no system call can be failed";
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Must(table.Publish(1, 0, 4096));
    Must(table.Publish(9, 0, 4096));
    Welcome(channel, table, peer);
    Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
    // Until a block of it is held.
    AwaitGoOn();
    for (int i = 0; i < 2; ++i) {
      Must(pool::SendNotice(
          channel, pool::RecallBlocks{absl::Seconds(60), {{1, 0, 1, 0, 4096}}},
          Late()));
    }
  });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  {
    const ImportedBlock block =
        Must(pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()));
    std::promise<void> twice;
    int times = 0;
    pool->Watch({.recalled = [&](absl::Span<const RecalledBlock>) {
      if (++times == 2) return twice.set_value();
      ArmSyscallFault({.point = {.this_thread_only = true},
                       .only_error = ENOMEM,
                       .only_call = "ppoll"});
    }});
    const platform::Channel go_on = GoOn();
    EXPECT_EQ(twice.get_future().wait_for(std::chrono::seconds(30)),
              std::future_status::ready);
    EXPECT_EQ(DisarmSyscallFault().fired, 1u);
    pool->Watch({});
  }
  const absl::Status late =
      pool->Import(TicketOf({1, 2}, 9, 0, 4096), absl::InfinitePast()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), EndsWith("has not come yet"));
}

TEST_F(HostileOwner, ASegmentSentTwiceEndsTheConnectionNotTheBlocks) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, kGranule));
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const ImportedBlock block =
      Must(pool->Import(TicketOf({0, 1}, 1, 0, kGranule), Late()));
  ExpectSoon([&] { return !pool->connection().ok(); });
  EXPECT_EQ(pool->connection().code(), Code::kDataLoss);
  EXPECT_THAT(std::string(pool->connection().message()),
              HasSubstr("sent segment 1 twice"));
  ExpectPattern(block.address(), block.size(), 5);
}

TEST_F(HostileOwner, ASegmentForgottenWhileABlockIsHeldStaysMapped) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, kGranule));
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
        AwaitGoOn();
        Must(pool::SendNotice(channel, pool::ForgetSegment{1}, Late()));
        Must(pool::SendNotice(channel, pool::ForgetSegment{77}, Late()));
        Must(pool::SendNotice(channel, pool::Closed(), Late()));
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  std::optional<ImportedBlock> block =
      Must(pool->Import(TicketOf({0, 1}, 1, 0, kGranule), Late()));
  const platform::Channel go_on = GoOn();
  ExpectSoon([&] { return !pool->connection().ok(); });
  EXPECT_EQ(pool->connection().code(), Code::kUnavailable);
  EXPECT_EQ(pool->statistics().segments, 1u);
  ExpectPattern(block->address(), block->size(), 5);
  block.reset();
  EXPECT_EQ(pool->statistics().segments, 0u) << "gone with its last block";
}

TEST_F(HostileOwner, ARecallOutsideOfItsSegmentEndsTheConnection) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> bad = {
      {kGranule, 1},
      {2 * kGranule, 0},
      {256, kGranule},
      {256, ~std::uint64_t{0} - 100}};
  for (const auto& [offset, size] : bad) {
    const std::string text =
        Start([&](platform::Channel& channel, pool::ShareTable& table,
                  pool::PeerId peer) {
          Must(table.Publish(1, 0, kGranule));
          Welcome(channel, table, peer);
          Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
          AwaitGoOn();
          Must(pool::SendNotice(
              channel,
              pool::RecallBlocks{absl::Seconds(9), {{1, 0, 1, offset, size}}},
              Late()));
        });
    const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
    const ImportedBlock block =
        Must(pool->Import(TicketOf({0, 1}, 1, 0, kGranule), Late()));
    const platform::Channel go_on = GoOn();
    ExpectSoon([&] { return !pool->connection().ok(); });
    EXPECT_EQ(pool->connection().code(), Code::kDataLoss);
    EXPECT_THAT(std::string(pool->connection().message()),
                HasSubstr("of segment 1 back, which has"));
    EXPECT_TRUE(pool->Recalled().empty());
    ExpectPattern(block.address(), block.size(), 5);
    owner_.join();
  }
}

TEST_F(HostileOwner, ARecallOfWhatIsNotHeldIsPassedOver) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, 4096));
        Must(table.Publish(1, 4096, 4096));
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
        AwaitGoOn();
        // Another generation of what is held; what is not held; the block as one of
        // a segment that never came; the block.
        Must(pool::SendNotice(channel,
                              pool::RecallBlocks{absl::Seconds(9),
                                                 {{1, 0, 9, 0, 4096},
                                                  {1, 1, 2, 4096, 4096},
                                                  {7, 0, 1, 0, 4096},
                                                  {1, 0, 1, 0, 4096}}},
                              Late()));
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const ImportedBlock block =
      Must(pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()));
  std::atomic<std::size_t> told = 0;
  pool->Watch({.recalled = [&](absl::Span<const RecalledBlock> blocks) {
    told += blocks.size();
  }});
  const platform::Channel go_on = GoOn();
  ExpectSoon([&] { return told > 0; });
  EXPECT_EQ(told, 1u);
  const std::vector<RecalledBlock> recalled = pool->Recalled();
  ASSERT_EQ(recalled.size(), 1u);
  EXPECT_EQ(recalled[0].address, block.address());
  EXPECT_EQ(recalled[0].size, 4096u);
  EXPECT_TRUE(pool->connection().ok());
}

TEST_F(HostileOwner, WhatHappenedBeforeAnybodyWatchedIsToldToWhoWatches) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, 4096));
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
        AwaitGoOn();
        Must(pool::SendNotice(
            channel, pool::RecallBlocks{absl::Seconds(9), {{1, 0, 1, 0, 4096}}},
            Late()));
        Must(pool::SendNotice(channel, pool::Closed(), Late()));
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const ImportedBlock block =
      Must(pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()));
  const platform::Channel go_on = GoOn();
  ExpectSoon([&] { return !pool->connection().ok(); });
  std::vector<RecalledBlock> recalled;
  std::vector<absl::Status> ends;
  pool->Watch({});
  pool->Watch(
      {.disconnected = [&](const absl::Status& why) { ends.push_back(why); }});
  pool->Watch({.recalled = [&](absl::Span<const RecalledBlock> blocks) {
    recalled.insert(recalled.end(), blocks.begin(), blocks.end());
  }});
  ASSERT_EQ(recalled.size(), 1u);
  EXPECT_EQ(recalled[0].address, block.address());
  // Twice, if it came in between.
  EXPECT_GE(ends.size(), 1u);
  EXPECT_THAT(ends, ::testing::Each(pool->connection()));
  EXPECT_EQ(pool->connection().code(), Code::kUnavailable);
}

TEST_F(HostileOwner, OfManyBlocksOneWithoutASegmentLeavesNoneImported) {
  const Allocation memory = MakePattern(kGranule, 5);
  std::atomic<std::size_t> held = 9;
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        for (const std::uint32_t segment : {1, 9, 1}) {
          Must(table.Publish(segment, 0, 4096));
        }
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
        AwaitGoOn();
        held = table.HoldsOf(peer);
        channel.Close();
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const std::vector<PoolTicket> tickets = {TicketOf({0, 1}, 1, 0, 4096),
                                           TicketOf({1, 2}, 9, 0, 4096),
                                           TicketOf({2, 3}, 1, 0, 4096)};
  Must(pool->Import(tickets[0], Late()));  // Its segment has come.
  const absl::Status late =
      pool->ImportAll(tickets, absl::InfinitePast()).status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late;
  EXPECT_THAT(late.message(), HasSubstr("of segment 9"));
  EXPECT_EQ(pool->statistics().imported, 0u);
  const platform::Channel go_on = GoOn();
  ExpectSoon([&] { return !pool->connection().ok(); });
  EXPECT_EQ(held, 0u);
}

// As of a pool of fences: streams here may still wait for what is there.
TEST_F(HostileOwner, WhatIsKeptThoughItWasForgottenIsCounted) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, 4096));
        Welcome(channel, table, peer);
        for (const std::uint32_t number : {1, 2}) {
          Must(pool::SendNotice(channel, SegmentOf(memory, number), Late()));
        }
        AwaitGoOn();
        for (const std::uint32_t number : {1, 2}) {
          Must(pool::SendNotice(channel, pool::ForgetSegment{number}, Late()));
        }
        Must(pool::SendNotice(channel, pool::Closed(), Late()));
      });
  const std::unique_ptr<pool::Subscription> pool = SubscribeAndKeep(text);
  ExpectSoon([&] { return pool->statistics().segments == 2; });
  std::optional<ImportedBlock> block =
      Must(pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()));
  const CUdeviceptr at = block->address();
  block.reset();
  const platform::Channel go_on = GoOn();
  ExpectSoon([&] { return !pool->connection().ok(); });
  // Of the other one nothing was imported.
  EXPECT_EQ(pool->statistics().segments, 1u);
  EXPECT_EQ(pool->statistics().mapped, kGranule);
  EXPECT_EQ(pool->weakness(), "");
  ExpectPattern(at, 4096, 5);
}

// An owner may have other memory come where some was that is kept here.
TEST_F(HostileOwner, WhatComesWhereForgottenMemoryIsKeptLiesElsewhere) {
  if (IsTestOfLegacyIpc()) GTEST_SKIP() << "there are no ranges";
  const Allocation old = MakePattern(kGranule, 5);
  const Allocation next = MakePattern(kGranule, 6);
  constexpr std::uint64_t kSize = 4 * kGranule;
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Must(table.Publish(1, 0, 4096));
    Must(table.Publish(2, 0, 4096));
    Welcome(channel, table, peer);
    Must(pool::SendNotice(channel, SegmentOf(old, 1, {1, 0, kSize}), Late()));
    AwaitGoOn();
    Must(pool::SendNotice(channel, pool::ForgetSegment{1}, Late()));
    Must(pool::SendNotice(channel, SegmentOf(next, 2, {1, 0, kSize}), Late()));
  });
  const std::unique_ptr<pool::Subscription> pool = SubscribeAndKeep(text);
  std::optional<ImportedBlock> first =
      Must(pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()));
  const CUdeviceptr at = first->address();
  first.reset();
  const platform::Channel go_on = GoOn();
  const ImportedBlock second =
      Must(pool->Import(TicketOf({1, 2}, 2, 0, 4096), Late()));
  ExpectPattern(second.address(), 4096, 6);
  ExpectPattern(at, 4096, 5);
  EXPECT_EQ(pool->statistics().segments, 2u);
}

TEST_F(HostileOwner, AFenceWhereNoneCanBeIsRefused) {
  if (driver().version() < 12020) {
    GTEST_SKIP() << "memory of the host came with CUDA 12.2";
  }
  const Allocation memory = Must(Allocation::Create(
      device, {.size = kGranule,
               .host_numa_node = 0,
               .also = {{Location::HostNuma(0), Access::kReadWrite}}}));
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, kFenceBytes / 2, kFenceBytes));
        Welcome(channel, table, peer);
        Must(pool::SendNotice(channel, SegmentOf(memory, 1), Late()));
      });
  const std::unique_ptr<ImportedFencePool> fences =
      Must(ImportedFencePool::Subscribe(driver(), text, {}, Late()));
  const absl::Status refused =
      fences->Import({domain_, 1, 0, 1, kFenceBytes / 2}, Late()).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("at no fence's place"));
  EXPECT_EQ(fences->statistics().fences, 0u);
}

TEST_F(HostileOwner, AWelcomeWithOtherMemoryIsRefused) {
  // The hold table in place of the share table, and the other way round.
  EXPECT_EQ(Dial(Start([&](platform::Channel& channel, pool::ShareTable& table,
                           pool::PeerId peer) {
              Must(pool::SendWelcome(
                  channel,
                  {Must(platform::Duplicate(table.holds_handle(peer))),
                   Must(platform::Duplicate(table.table_handle()))},
                  Late()));
            }))
                .status()
                .code(),
            Code::kInvalidArgument);
  owner_.join();
  // A table that peers may not write, for their holds.
  EXPECT_EQ(Dial(Start([&](platform::Channel& channel, pool::ShareTable& table,
                           pool::PeerId) {
              Must(pool::SendWelcome(
                  channel,
                  {Must(platform::Duplicate(table.table_handle())),
                   Must(platform::Duplicate(table.table_handle()))},
                  Late()));
            }))
                .status()
                .code(),
            Code::kInvalidArgument);
  owner_.join();
  // Another domain's.
  const absl::Status other = Dial(Start([&](platform::Channel& channel,
                                            pool::ShareTable&, pool::PeerId) {
                               DomainId id;
                               id.bytes.fill(8);
                               pool::ShareTable table =
                                   Must(pool::ShareTable::Create(id));
                               const pool::PeerId peer = Must(table.AddPeer());
                               Welcome(channel, table, peer);
                             })).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("is of sharing domain"));
}

TEST_F(HostileOwner, WhatIsNoWelcomeEndsTheSubscription) {
  EXPECT_EQ(Dial(Start([&](platform::Channel& channel, pool::ShareTable&,
                           pool::PeerId) {
              Must(pool::SendNotice(channel, pool::Closed(), Late()));
            }))
                .status()
                .code(),
            Code::kDataLoss);
  owner_.join();
  const absl::Status refused =
      Dial(Start([&](platform::Channel& channel, pool::ShareTable&,
                     pool::PeerId) {
        Must(protocol::SendError(channel, protocol::kAbort,
                                 absl::AbortedError("no"), Late()));
      })).status();
  EXPECT_EQ(refused.code(), Code::kAborted) << refused;
  owner_.join();
  EXPECT_EQ(Dial(Start([&](platform::Channel& channel, pool::ShareTable&,
                           pool::PeerId) { channel.Close(); }))
                .status()
                .code(),
            Code::kUnavailable);
}

TEST_F(HostileOwner, SegmentsWithoutEndThatCannotBeMappedEndTheSubscription) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Welcome(channel, table, peer);
        const protocol::Outgoing outgoing =
            Must(protocol::MakeOutgoing(memory.shareable()));
        absl::Status sent;
        for (std::uint32_t number = 1; sent.ok() && number <= 1025; ++number) {
          auto wrong = std::make_shared<pool::SharedSegment>();
          wrong->number = number;
          wrong->ticket = outgoing.ticket;
          wrong->handle = Must(platform::Duplicate(table.table_handle()));
          sent = pool::SendNotice(
              channel,
              pool::Notice(
                  std::shared_ptr<const pool::SharedSegment>(std::move(wrong))),
              Late());
        }
        Must(sent);
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  ExpectSoon([&] { return !pool->connection().ok(); });
  EXPECT_THAT(
      std::string(pool->connection().message()),
      HasSubstr("more than 1024 segments of the pool cannot be mapped"));
}

std::size_t ResidentBytes() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * 4096;
}

TEST_F(HostileOwner, SegmentsWithoutEndThatCanBeMappedEndItToo) {
  if (!platform::kNativeHandleIsPosixFd) {
    GTEST_SKIP() << "the same code everywhere; here it takes minutes";
  }
  if (HowMany("VMMSHARE_ENDLESS", 1) == 0) {
    GTEST_SKIP() << "VMMSHARE_ENDLESS=0: it takes minutes with a sanitizer";
  }
  const Allocation memory = MakePattern(kGranule, 5);
  std::uint32_t sent = 0;
  const std::string text = Start([&](platform::Channel& channel,
                                     pool::ShareTable& table,
                                     pool::PeerId peer) {
    Welcome(channel, table, peer);
    const protocol::Outgoing outgoing =
        Must(protocol::MakeOutgoing(memory.shareable()));
    auto shared = std::make_shared<pool::SharedSegment>();
    shared->ticket = outgoing.ticket;
    shared->handle = Must(outgoing.handle(0));
    do {
      shared->number = ++sent;
    } while (
        sent < 1u << 20 &&
        pool::SendNotice(
            channel,
            pool::Notice(std::shared_ptr<const pool::SharedSegment>(shared)),
            Late())
            .ok());
  });
  const std::size_t before = ResidentBytes();
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (pool->connection().ok() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  // The host-memory driver has a descriptor for each: there may be fewer.
  EXPECT_THAT(std::string(pool->connection().message()),
              ::testing::AnyOf(
                  HasSubstr("the pool's owner sent more than 16384 segments"),
                  HasSubstr("more than 1024 segments of the pool cannot be")));
  EXPECT_LE(pool->statistics().segments, 16384u);
  // An emulator keeps something for each page.
  if (IsEmulated()) return;
  // A GPU's driver keeps some 6 KiB for each mapping.
  EXPECT_LT(ResidentBytes(), before + (OnHostMemoryDriver() ? 64 : 256) * kMiB);
}

TEST_F(HostileOwner, AHandleThatIsNoMemoryFailsItsSegmentAlone) {
  const Allocation memory = MakePattern(kGranule, 5);
  const std::string text =
      Start([&](platform::Channel& channel, pool::ShareTable& table,
                pool::PeerId peer) {
        Must(table.Publish(1, 0, 4096));
        Must(table.Publish(2, 0, kGranule));
        Welcome(channel, table, peer);
        protocol::Outgoing outgoing =
            Must(protocol::MakeOutgoing(memory.shareable()));
        auto wrong = std::make_shared<pool::SharedSegment>();
        wrong->number = 1;
        wrong->ticket = std::move(outgoing.ticket);
        wrong->handle = Must(platform::Duplicate(table.table_handle()));
        Must(pool::SendNotice(
            channel,
            pool::Notice(
                std::shared_ptr<const pool::SharedSegment>(std::move(wrong))),
            Late()));
        Must(pool::SendNotice(channel, SegmentOf(memory, 2), Late()));
        channel.WaitForHangUp(Late()).IgnoreError();
      });
  const std::unique_ptr<ImportedPool> pool = Must(Dial(text));
  const absl::Status bad =
      pool->Import(TicketOf({0, 1}, 1, 0, 4096), Late()).status();
  EXPECT_FALSE(bad.ok());
  EXPECT_THAT(std::string(bad.message()), HasSubstr("segment 1 of the pool"));
  const ImportedBlock block =
      Must(pool->Import(TicketOf({1, 2}, 2, 0, kGranule), Late()));
  ExpectPattern(block.address(), block.size(), 5);
  EXPECT_TRUE(pool->connection().ok());
}

// --- A subscriber that breaks the protocol -----------------------------------

class HostileSubscriber : public PoolIpcTest {
 protected:
  platform::Channel Dial() {
    return Must(platform::Channel::Connect(endpoint_->address(), {}, Late()));
  }
  void ExpectHangUp(const platform::Channel& channel) {
    EXPECT_TRUE(channel.WaitForHangUp(Late()).ok());
  }
};

TEST_F(HostileSubscriber, AWordBesideAGoodbyeEndsItsSession) {
  const Share publication = Serve();
  platform::Channel channel = Dial();
  AskAndBeGranted(channel, publication.ticket());
  Must(pool::ReceiveWelcome(channel, Late()));
  Must(channel.Send(pool::kClosed, {}, {}, Late()));
  ExpectHangUp(channel);
  ExpectSoon([this] { return endpoint_->statistics().failed == 1; });
  EXPECT_EQ(endpoint_->statistics().last_error.code(), Code::kDataLoss);
  // It may use what it got for as long as its process lives.
  EXPECT_EQ(pool_->statistics().peers, 0u);
}

// What a subscriber of one domain knows of another: a ticket of a block.
TEST_F(HostileSubscriber, ATicketOfAnotherDomainDoesNotSubscribeToIt) {
  const SharingDomain theirs = pool_->NewDomain();
  const Share mine = Serve();
  const Share secret = Serve(theirs);
  const PoolTicket seen = Export(Take(kMiB, theirs));
  ShareKey key;
  key.secret = seen.domain.bytes;
  key.place = InvitationIn(secret.ticket()).key.place;
  platform::Channel guessing = Dial();
  Must(protocol::SendOpen(guessing, {key}, Late()));
  EXPECT_EQ(protocol::ReceiveGranted(guessing, Late()).status().code(),
            Code::kNotFound);
  // With the text for the own domain, changed to name the other.
  AddressedPool forged = Must(ParsePoolString(mine.ticket()));
  forged.domain = seen.domain;
  EXPECT_FALSE(
      ImportedPool::Subscribe(driver(), FormatPoolString(forged), {}, Late())
          .ok());
  ExpectSoon([this] { return pool_->statistics().peers == 0; });
  EXPECT_TRUE(
      ImportedPool::Subscribe(driver(), secret.ticket(), {}, Late()).ok());
}

TEST_F(HostileSubscriber, ADomainThatIsSharedForReadingIsNotWritten) {
  const Share share = Serve(SharingDomain::kFirst, {.access = Access::kRead});
  const ImportOptions writing = {.access = Access::kReadWrite};
  EXPECT_EQ(ImportedPool::Subscribe(driver(), share.ticket(), writing, Late())
                .status()
                .code(),
            Code::kPermissionDenied);
  AddressedPool bolder = Must(ParsePoolString(share.ticket()));
  bolder.invitation.access = Access::kReadWrite;
  EXPECT_EQ(ImportedPool::Subscribe(driver(), FormatPoolString(bolder), writing,
                                    Late())
                .status()
                .code(),
            Code::kPermissionDenied);
  EXPECT_TRUE(
      ImportedPool::Subscribe(driver(), share.ticket(), {}, Late()).ok());
}

// Subscribes, hangs up without a goodbye, and lives until it is killed.
int SubscribeAndHangUp(const Args& args) {
  platform::Channel boss = Dial(args[0]);
  {
    platform::Channel channel = Dial(args[1]);
    AskAndBeGranted(channel, args[2]);
    Must(pool::ReceiveWelcome(channel, Late()));
  }
  Tell(boss);
  Must(boss.WaitForHangUp(Late()));
  return 0;
}
const bool kSubscribeAndHangUp =
    RegisterChild("subscribe-and-hang-up", &SubscribeAndHangUp);

TEST_F(HostileSubscriber, ThoseThatHungUpWithoutAGoodbyeAreBounded) {
  const Share publication = Serve();
  constexpr std::uint64_t kMost = 64;  // As in vmm/pool/internal/domain.cc.
  for (std::uint64_t i = 0; i < kMost; ++i) {
    platform::Channel channel = Dial();
    AskAndBeGranted(channel, publication.ticket());
    Must(pool::ReceiveWelcome(channel, Late()));
    channel.Close();
    ExpectSoon([&] { return endpoint_->statistics().served == i + 1; });
  }
  platform::Channel channel = Dial();
  AskAndBeGranted(channel, publication.ticket());
  const absl::Status refused = pool::ReceiveWelcome(channel, Late()).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr(" has 64 lost subscriptions of the pool's owner's, the "
                "limit of one process. Each hung up without a goodbye"));
  // Another process has room all the same.
  Child other =
      Child::Start("subscribe-and-hang-up",
                   {address(), endpoint_->address(), publication.ticket()});
  platform::Channel told = Accept();
  Hear(told);
  told.Close();
  EXPECT_EQ(other.Wait(), 0);
}

TEST_F(HostileSubscriber, OfOneThatHungUpAndDiedNothingIsKeptThoughNobodyAsks) {
  const Share publication = Serve();
  std::uint64_t served = 0;
  const auto subscribe_and_die = [&] {
    Child child =
        Child::Start("subscribe-and-hang-up",
                     {address(), endpoint_->address(), publication.ticket()});
    platform::Channel channel = Accept();
    Hear(channel);
    ++served;
    ExpectSoon([&] { return endpoint_->statistics().served == served; });
    child.Kill();
  };
  // Once before: what the test itself needs for it.
  subscribe_and_die();
  Must(pool_->WaitUntilAllReturned(Late()));  // Forgets it.
  const std::size_t before = OpenHandleCount();
  for (int i = 0; i < 3; ++i) subscribe_and_die();
  ExpectSoon([&] { return OpenHandleCount() <= before; });
}

TEST_F(HostileSubscriber, OneThatHangsUpAtAnyPointLeavesNothingBehind) {
  const Share publication = Serve();
  const CUdeviceptr block = Take(kMiB);
  for (int i = 0; i < 20; ++i) {
    platform::Channel channel = Dial();
    AskAndBeGranted(channel, publication.ticket());
    if (i % 2 == 0) Must(pool::ReceiveWelcome(channel, Late()));
    Must(pool::SendBye(channel, Late()));
    channel.Close();
  }
  ExpectSoon([this] {
    return endpoint_->statistics().served + endpoint_->statistics().failed ==
           20;
  });
  EXPECT_EQ(pool_->statistics().peers, 0u);
  Free(block);
  ExpectAllIsFree();
}

}  // namespace
}  // namespace vmm::testing
