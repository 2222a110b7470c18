// The owner frees a block at the moment at which a peer imports it, over and
// over. Whoever wins, the block is not handed on while the peer holds it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/emulator.h"
#include "tests/support/must.h"
#include "tests/support/share_race.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::pool {
namespace {

using testing::Must;
using testing::RaceFigures;
using testing::RaceMemory;

DomainId Domain() {
  DomainId domain;
  domain.bytes.fill(5);
  return domain;
}

std::unique_ptr<SharedTableView> ViewOf(const ShareTable& table, PeerId peer) {
  return Must(SharedTableView::Open(table.table_handle(),
                                    table.holds_handle(peer), table.domain()));
}

TEST(ShareRace, ABlockThatIsHeldIsNeverHandedOn) {
  if (testing::IsEmulated()) GTEST_SKIP() << testing::kEmulatorReorders;
  ShareTable table = Must(ShareTable::Create(Domain()));
  const auto view = ViewOf(table, Must(table.AddPeer()));
  const auto memory = std::make_unique<RaceMemory>();
  platform::Mutex calls;
  RaceFigures peer;
  std::thread thread([&] { peer = testing::RacePeer(*view, *memory, calls); });
  const RaceFigures owner =
      testing::RaceOwner(table, *memory, testing::kRaceRounds);
  thread.join();
  testing::ExpectAFairRace(owner, peer);
}

// Two threads of one peer use the same block: the last release of one must not
// take the hold from under the other's acquire.
TEST(ShareRace, ThreadsOfOnePeerShareAHold) {
  if (testing::IsEmulated()) GTEST_SKIP() << testing::kEmulatorReorders;
  ShareTable table = Must(ShareTable::Create(Domain()));
  const auto view = ViewOf(table, Must(table.AddPeer()));
  const auto memory = std::make_unique<RaceMemory>();
  platform::Mutex calls;
  RaceFigures one, two;
  std::thread first([&] { one = testing::RacePeer(*view, *memory, calls); });
  std::thread second([&] { two = testing::RacePeer(*view, *memory, calls); });
  const RaceFigures owner =
      testing::RaceOwner(table, *memory, testing::kRaceRounds / 2);
  first.join();
  second.join();
  one.acquired += two.acquired;
  one.refused += two.refused;
  one.broken += two.broken;
  testing::ExpectAFairRace(owner, one);
}

}  // namespace
}  // namespace vmm::pool
