// The book of leases by itself. What an endpoint makes of it is in
// vmm_endpoint_leases_test.cc.
#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "platform/ipc/lifeline.h"
#include "platform/ipc/peer_watch.h"
#include "tests/ipc/vmm_ipc_test.h"
#include "tests/support/open_handles.h"
#include "vmm/share/internal/lease_book.h"
#include "vmm/share/internal/protocol.h"

namespace vmm::testing {
namespace {

using platform::PeerEnd;
using platform::PeerWatch;
using Entry = LeaseBook::Entry;
using Ids = std::vector<MemoryId>;

MemoryId Memory(std::uint64_t number) { return {{}, number, 1}; }

// Sends its lifeline to two, and lives until it is killed.
int LiveUntilKilled(const std::vector<std::string>& args) {
  platform::Channel first = Dial(args[0]);
  Must(platform::SendLifeline(first, Late()));
  platform::Channel second = Dial(args[0]);
  Must(platform::SendLifeline(second, Late()));
  Must(first.WaitForHangUp(Late()));
  return 0;
}
const bool kLiveUntilKilled =
    RegisterChild("live-until-killed", &LiveUntilKilled);

class LeaseBookTest : public IpcTest {
 protected:
  // A process that may be given something.
  struct Peer {
    Child child;
    platform::Channel channel;
    // Open for as long: on Windows a peer that hangs up at once may fail what has
    // arrived.
    platform::Channel second_channel;
    std::optional<PeerWatch> of_book;  // Until it has an entry.
    PeerWatch of_test;
  };
  Peer NewPeer() {
    Child child = Child::Start("live-until-killed", {address()});
    platform::Channel first = Accept();
    PeerWatch of_book = Must(PeerWatch::Receive(first, Late()));
    platform::Channel second = Accept();
    PeerWatch of_test = Must(PeerWatch::Receive(second, Late()));
    return {std::move(child), std::move(first), std::move(second),
            std::move(of_book), std::move(of_test)};
  }
  static absl::StatusOr<Entry> Add(LeaseBook& book, Peer& peer) {
    return book.Add(peer.channel.peer(), *std::exchange(peer.of_book, {}),
                    {{Memory(1), 64}, {Memory(2), 64}});
  }
  // Not by the book's watch: what the book finds out is tested.
  static void End(Peer& peer) {
    peer.child.Kill();
    ExpectSoon([&] { return peer.of_test.Look() == PeerEnd::kProven; });
  }

  LeaseBook book_{PeerLimits{100, 100, 100}};
};

TEST_F(LeaseBookTest, WhoHasEndedHoldsNothingThoughItsSessionStands) {
  Peer peer = NewPeer();
  const Entry entry = Must(Add(book_, peer));
  EXPECT_FALSE(book_.HasEnded(entry));
  EXPECT_TRUE(Must(book_.Return(entry, Ids{Memory(1)})));
  EXPECT_TRUE(
      absl::IsInvalidArgument(book_.Return(entry, Ids{Memory(1)}).status()));
  EXPECT_EQ(book_.List().size(), 1u);
  End(peer);
  EXPECT_TRUE(book_.HasEnded(entry));
  EXPECT_TRUE(book_.List().empty());
  // Whoever has its connection now says what it likes.
  for (const std::uint64_t number : {1, 2, 3}) {
    EXPECT_FALSE(Must(book_.Return(entry, Ids{Memory(number)}))) << number;
  }
}

TEST_F(LeaseBookTest, AWaitFindsOutThatAHolderHasEnded) {
  Peer peer = NewPeer();
  Must(Add(book_, peer));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      book_.WaitUntilReturned(Memory(1), absl::InfinitePast())));
  End(peer);
  const absl::Status back = book_.WaitUntilReturned(Memory(1), Late());
  EXPECT_TRUE(back.ok()) << back;
}

TEST_F(LeaseBookTest, AListFindsOutThatAHolderHasEnded) {
  Peer peer = NewPeer();
  Must(Add(book_, peer));
  EXPECT_EQ(book_.List().size(), 2u);
  End(peer);
  EXPECT_TRUE(book_.List().empty());
}

TEST_F(LeaseBookTest, WhoHasEndedCountsUntilItsSessionHasEndedToo) {
  LeaseBook book(PeerLimits{1, 1, 1});
  Peer first = NewPeer();
  Peer second = NewPeer();
  Peer third = NewPeer();
  const Entry entry = Must(Add(book, first));
  EXPECT_TRUE(absl::IsResourceExhausted(Add(book, second).status()));
  book.Detach(entry);
  EXPECT_TRUE(book.Tidy());
  End(first);
  const Entry last = Must(Add(book, third));
  End(third);
  Peer fourth = NewPeer();
  EXPECT_TRUE(absl::IsResourceExhausted(Add(book, fourth).status()));
  book.Remove(last);
  Peer fifth = NewPeer();
  Must(Add(book, fifth));
}

TEST_F(LeaseBookTest, NothingIsKeptOpenOfWhoHungUpAndEnded) {
  Peer first = NewPeer();
  Peer second = NewPeer();
  const Entry ends_first = Must(Add(book_, first));
  const Entry hangs_up_first = Must(Add(book_, second));
  EXPECT_FALSE(book_.Tidy());
  book_.Detach(hangs_up_first);
  EXPECT_TRUE(book_.Tidy());
  End(first);
  std::size_t before = OpenHandleCount();
  book_.Detach(ends_first);
  EXPECT_LT(OpenHandleCount(), before);
  End(second);
  before = OpenHandleCount();
  EXPECT_FALSE(book_.Tidy());
  EXPECT_LT(OpenHandleCount(), before);
}

TEST_F(LeaseBookTest, ARecallIsSentOnceUntilItIsForAnEarlierTime) {
  Peer peer = NewPeer();
  const Entry entry = Must(Add(book_, peer));
  auto [ours, theirs] = Must(platform::Channel::Pair());
  const auto hear = [&theirs = theirs] {
    return Must(protocol::DecodeRecall(Must(theirs.Receive(Late()))));
  };
  const absl::Time now = absl::Now();
  book_.Attach(entry, ours);
  for (int i = 0; i < 3; ++i) {
    book_.Recall(Memory(2), now + absl::Hours(10));
  }
  book_.Recall(Memory(2), now + absl::Hours(11));
  book_.Recall(std::nullopt, now + absl::Hours(5));
  book_.Recall(Memory(1), now + absl::Hours(5));
  book_.Detach(entry);
  book_.Recall(std::nullopt, now + absl::Hours(1));
  const protocol::Recall first = hear();
  EXPECT_EQ(first.ids, Ids{Memory(2)});
  EXPECT_GT(first.within, absl::Hours(9));
  const protocol::Recall second = hear();
  EXPECT_EQ(second.ids, (Ids{Memory(1), Memory(2)}));
  EXPECT_LE(second.within, absl::Hours(5));
  ours.Close();
  EXPECT_TRUE(absl::IsUnavailable(theirs.Receive(Late()).status()));
}

}  // namespace
}  // namespace vmm::testing
