// A block of a pool that one process shares with another, until it is handed
// out again.
#include <gmock/gmock.h>

#include <array>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/kill/scenes.h"
#include "tests/support/steps.h"
#include "vmm/pool/imported_pool.h"
#include "vmm/pool/pool.h"
#include "vmm/share/endpoint.h"

namespace vmm::testing {
namespace {

// Four blocks fill the pool, so that memory which comes back is seen at once:
// there is no other.
constexpr std::uint64_t kBytes = kMiB;
constexpr std::uint64_t kSeen = 64 << 10;  // Of a block, written and checked.
constexpr std::uint64_t kOwners = 1;
constexpr std::uint64_t kImporters = 2;
constexpr std::uint64_t kStillImporters = 3;  // After the owner has freed it.
constexpr std::uint64_t kNext = 4;
constexpr std::uint64_t kOthers = 7;
// How long memory is asked for that a process has which hung up and lives.
constexpr absl::Duration kMoment = absl::Milliseconds(15);
// Until its end is proven, 2 s at least where it is not at once.
constexpr absl::Duration kProofAfterEnd = absl::Seconds(10);

constexpr char kImported[] = "imported";
constexpr char kReleasing[] = "releasing";  // From now on it may be given back.
constexpr char kReleased[] = "released";

class Owner {
 public:
  explicit Owner(Party& me)
      : me_(me),
        pool_(Must(Pool::Create(me.device(), {.first_segment_size = 4 * kMiB,
                                              .max_segment_size = 4 * kMiB,
                                              .cap = 4 * kMiB}))),
        endpoint_(Must(
            Endpoint::Start({.listener = {.directory = me.directory()}}))) {
    publication_.emplace(Must(endpoint_->Serve(*pool_)));
    for (CUdeviceptr& other : others_) other = Must(Allocate());
    block_ = Must(Allocate());
    contents_.emplace(others_[0], kSeen, std::vector{kOthers});
    contents_->Write(kOthers);
  }

  // The part itself.
  absl::Status ShareBlocks(bool free_early) {
    Contents contents(block_, kSeen, {kOwners});
    contents.Write(kOwners);
    const PoolTicketBytes ticket = EncodePoolTicket(
        Must(me_.Now("Pool::Export", [&] { return pool_->Export(block_); })));
    absl::Status done = me_.Tell(publication_->ticket());
    if (done.ok()) done = me_.Tell(ToHex(ticket));
    contents.SetSeeds({kOwners, kImporters});
    if (done.ok()) done = me_.Hear().status();
    if (free_early && done.ok()) {
      contents.SetSeeds({kOwners, kImporters, kStillImporters});
      done = Free();
      // The importer has it, unless it has ended. Asked in this order, for it may
      // end between the two, and what is free stays so.
      const bool is_held = pool_->statistics().held == kBytes;
      again_ = AllocateIfFree(absl::InfinitePast());
      EXPECT_TRUE(again_ != 0 || is_held);
      if (done.ok()) done = me_.Tell("freed");
    }
    while (done.ok() && !me_.HasHeard(kReleased)) done = me_.Hear().status();
    if (done.ok()) contents.Expect({free_early ? kStillImporters : kImporters});
    return done;
  }

  // Whatever has become of the importer: its block comes back when it has given
  // it back or has ended, and not before.
  void ExpectAllComesBack() {
    me_.HearTheRest();
    if (!freed_) {
      EXPECT_TRUE(Free().ok());
    }
    if (again_ == 0) again_ = AllocateIfFree(absl::Now() + kMoment);
    if (again_ == 0) {
      me_.PeerIsLost();
      EXPECT_TRUE(me_.peer().WaitForExit(Late()).ok());
      // It is known to have ended: nothing is waited for any more, but for a
      // proof that is not there yet.
      again_ = AllocateIfFree(absl::InfinitePast());
      if (again_ == 0) again_ = AllocateOnceProven();
      if (again_ == 0) return;
    }
    EXPECT_EQ(again_, block_) << "all others are taken";
    {
      Contents contents(again_, kSeen, {});
      contents.Write(kNext);
      contents_->Expect({kOthers});
    }
    contents_.reset();
    EXPECT_TRUE(pool_->Free(again_, nullptr).ok());
    for (CUdeviceptr other : others_) {
      EXPECT_TRUE(pool_->Free(other, nullptr).ok());
    }
    me_.PeerIsLost();
    ExpectSoon([this] {
      const absl::StatusOr<std::uint64_t> trimmed =
          me_.Now("Pool::Trim", [&] { return pool_->Trim(); });
      const PoolStatistics now = pool_->statistics();
      return trimmed.ok() && now.peers == 0 && now.reserved == 0 &&
             now.held == 0;
    });
    const absl::Status whole = pool_->CheckInvariants();
    EXPECT_TRUE(whole.ok()) << whole;
    publication_.reset();
    endpoint_.reset();
  }

 private:
  absl::StatusOr<CUdeviceptr> Allocate() {
    return pool_->Allocate(kBytes, nullptr);
  }
  absl::Status Free() {
    freed_ = true;
    return me_.Now("Pool::Free", [&] { return pool_->Free(block_, nullptr); });
  }
  // The block once more, or 0.
  CUdeviceptr AllocateIfFree(absl::Time until) {
    do {
      absl::StatusOr<CUdeviceptr> again =
          me_.Now("Pool::Allocate", [&] { return Allocate(); });
      if (again.ok()) {
        EXPECT_TRUE(!ImporterHasIt() || me_.PeerHasEnded())
            << "a block was handed out that a living process has";
        return *again;
      }
      EXPECT_TRUE(absl::IsResourceExhausted(again.status())) << again.status();
    } while (absl::Now() < until);
    return 0;
  }
  // Once, in some thousands of kills on a busy machine, the lifeline of a process
  // that had ended was mapped still: then the pool says so, and has the block
  // back 2 s later.
  CUdeviceptr AllocateOnceProven() {
    const std::vector<BlockLease> leases = pool_->Leases();
    EXPECT_EQ(leases.size(), 1u) << "and yet the block has not come back";
    for (const BlockLease& one : leases) {
      EXPECT_EQ(one.lease.state, LeaseState::kQuarantined);
      EXPECT_THAT(one.lease.reason, ::testing::HasSubstr("GPU context"));
      std::cout << "the block comes late: " << one.lease.Describe() << "\n";
    }
    const CUdeviceptr again = AllocateIfFree(absl::Now() + kProofAfterEnd);
    EXPECT_NE(again, 0u);
    return again;
  }
  // For certain. It says so before it begins to give it back.
  bool ImporterHasIt() const {
    return me_.HasHeard(kImported) && !me_.HasHeard(kReleasing);
  }

  Party& me_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Share> publication_;
  std::array<CUdeviceptr, 3> others_{};
  CUdeviceptr block_ = 0;
  CUdeviceptr again_ = 0;  // What was handed out after it was freed.
  bool freed_ = false;
  std::optional<Contents> contents_;  // Of the first of the others.
};

absl::Status Own(Party& me, bool free_early) {
  Owner owner(me);
  const absl::Status done = owner.ShareBlocks(free_early);
  owner.ExpectAllComesBack();
  return done;
}

absl::Status Import(Party& me, bool freed_early) {
  absl::StatusOr<std::string> text = me.Hear();
  if (!text.ok()) return text.status();
  absl::StatusOr<std::string> bytes = me.Hear();
  if (!bytes.ok()) return bytes.status();
  const PoolTicket ticket = Must(DecodePoolTicket(FromHex(*bytes)));
  absl::StatusOr<std::unique_ptr<ImportedPool>> pool =
      me.Try("ImportedPool::Subscribe", Again::kYes, [&](absl::Time deadline) {
        return ImportedPool::Subscribe(
            me.driver(), *text, {.access = Access::kReadWrite}, deadline);
      });
  if (!pool.ok()) return pool.status();
  MarkStep("before it imports");
  absl::StatusOr<ImportedBlock> imported = me.Try(
      "ImportedPool::Import", Again::kYes,
      [&](absl::Time deadline) { return (*pool)->Import(ticket, deadline); });
  if (!imported.ok()) return imported.status();
  std::optional<ImportedBlock> block(*std::move(imported));
  MarkStep("after it imported");
  absl::Status done;
  {
    Contents contents(block->address(), kSeen, {kOwners});
    contents.Expect({kOwners});
    contents.Write(kImporters);
    done = me.Tell(kImported);
    if (done.ok() && freed_early) {
      done = me.Hear().status();
      contents.Expect({kImporters});
      contents.Write(kStillImporters);
    }
  }
  // What comes next must have been said. If it cannot be, nobody hears.
  const absl::Status told = me.Tell(kReleasing);
  MarkStep("before it gives back");
  block.reset();
  MarkStep("after it gave back");
  if (done.ok()) done = told.ok() ? me.Tell(kReleased) : told;
  // The end of its owner makes no difference to what is mapped.
  EXPECT_EQ((*pool)->statistics().imported, 0u);
  return done;
}

}  // namespace

absl::Status OwnBlock(Party& me) { return Own(me, false); }
absl::Status ImportBlock(Party& me) { return Import(me, false); }
absl::Status OwnBlockFreedEarly(Party& me) { return Own(me, true); }
absl::Status ImportBlockFreedEarly(Party& me) { return Import(me, true); }

}  // namespace vmm::testing
