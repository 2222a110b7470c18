// A race between the owner of a shared block, who frees it, and a peer that
// imports it, for threads and for processes.
//
// All rounds use one slot. When the owner believes that it may hand the block
// on, it spoils the canary at once; a peer that holds the block must never see
// that. Wrong memory orders show in optimized builds only: without
// optimization GCC takes every order for sequentially consistent.
#ifndef VMMSHARE_TESTS_SUPPORT_SHARE_RACE_H_
#define VMMSHARE_TESTS_SUPPORT_SHARE_RACE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "platform/base/check.h"
#include "platform/base/mutex.h"
#include "tests/support/must.h"
#include "vmm/pool/internal/share_table.h"
#include "vmm/pool/internal/shared_table_view.h"

namespace vmm::testing {

inline constexpr std::uint64_t kRaceRounds = 300'000;

// A block that the peer imports together with that of the race, at times.
inline constexpr pool::SlotRef kLasting = {2, 3};

// Where both sides look. All zero before the race; may be shared memory.
struct RaceMemory {
  alignas(64) std::atomic<std::uint64_t> posted{};  // Generation to try.
  alignas(64) std::atomic<std::uint64_t> seen{};    // By a peer.
  alignas(64) std::atomic<std::uint64_t> canary{};  // Generation, or spoilt.
  alignas(64) std::atomic<std::uint64_t> done{};
};

struct RaceFigures {
  std::uint64_t handed_on = 0;  // Owner: not held, used again at once.
  std::uint64_t deferred = 0;   // Owner: held, waited for.
  std::uint64_t acquired = 0;   // Peer.
  std::uint64_t refused = 0;    // Peer.
  std::uint64_t broken = 0;     // Peer: its block was handed on.
};

// Burns a time that differs from call to call, so that the two sides meet at
// every offset.
class Jitter {
 public:
  std::uint32_t Below(std::uint32_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ % limit);
  }
  void Wait(std::uint32_t most) {
    for (std::uint32_t i = Below(most); i > 0; --i) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

// Waits for `holds()`, letting others run.
template <typename Condition>
void RaceWait(Condition holds) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (std::uint32_t i = 1; !holds(); ++i) {
    if (i % 128 == 0) std::this_thread::yield();
    if (i % 65536 == 0) {
      platform::Check(absl::Now() < deadline, "the other side has stopped");
    }
  }
}

inline RaceFigures RaceOwner(pool::ShareTable& table, RaceMemory& memory,
                             std::uint64_t rounds) {
  constexpr std::uint64_t kSpoilt = ~std::uint64_t{0};
  RaceFigures figures;
  Jitter jitter;
  const std::uint32_t slot = Must(table.Publish(1, 0, 64)).slot;
  // One that nobody tries, whose hold is in the same cache line.
  const std::uint32_t beside = Must(table.Publish(1, 0, 64)).slot;
  // One that is there for as long as the race.
  const pool::SlotRef lasting = Must(table.Publish(1, 0, 64));
  platform::Check(lasting.slot == kLasting.slot &&
                      lasting.generation == kLasting.generation,
                  "not the slot that the peer takes for one that lasts");
  table.Withdraw(beside);
  table.Withdraw(slot);
  table.Recycle(slot);
  // On a busy machine each round may cost both sides their time slices.
  const absl::Time enough = absl::Now() + absl::Seconds(5);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    if (i % 256 == 0 && absl::Now() > enough) break;
    const pool::SlotRef ref = Must(table.Publish(1, 0, 64));
    platform::Check(ref.slot == slot && slot == 0, "not the slot of the race");
    memory.canary.store(ref.generation, std::memory_order_relaxed);
    memory.posted.store(ref.generation, std::memory_order_release);
    RaceWait([&] { return memory.seen.load() >= ref.generation; });
    // With the line of the hold in both caches, the peer's store takes longer
    // than this side's load: only their order keeps the two apart.
    for (std::uint32_t n = jitter.Below(40); n > 0; --n) {
      platform::Check(!table.Held(beside), "a slot nobody tried is held");
    }
    table.Withdraw(ref.slot);
    if (table.Held(ref.slot)) {
      ++figures.deferred;
      RaceWait([&] { return !table.Held(ref.slot); });
    } else {
      ++figures.handed_on;
    }
    memory.canary.store(kSpoilt, std::memory_order_relaxed);
    table.Recycle(ref.slot);
  }
  memory.done.store(1);
  return figures;
}

// `calls` orders those of all threads that use the view.
inline RaceFigures RacePeer(pool::SharedTableView& view, RaceMemory& memory,
                            platform::Mutex& calls) {
  RaceFigures figures;
  Jitter jitter;
  PoolTicket ticket = {view.domain(), 1, 0, 0, 0, 64};
  const PoolTicket lasting = {view.domain(),       1, kLasting.slot,
                              kLasting.generation, 0, 64};
  bool several = false;
  const auto acquire = [&] {
    several = jitter.Below(2) == 0;
    const PoolTicket lot[] = {lasting, ticket, lasting, ticket};
    const platform::MutexLock lock(calls);
    return several ? view.Acquire(lot).ok() : view.Acquire(ticket).ok();
  };
  const auto release = [&] {
    const platform::MutexLock lock(calls);
    for (int i = several ? 2 : 1; i > 0; --i) view.Release(ticket.slot);
    for (int i = several ? 2 : 0; i > 0; --i) view.Release(lasting.slot);
  };
  while (memory.done.load() == 0) {
    RaceWait([&] {
      return memory.posted.load(std::memory_order_acquire) !=
                 ticket.generation ||
             memory.done.load() != 0;
    });
    ticket.generation = memory.posted.load(std::memory_order_acquire);
    memory.seen.store(ticket.generation);
    // Again and again until the owner has freed it.
    while (acquire()) {
      ++figures.acquired;
      bool whole =
          memory.canary.load(std::memory_order_relaxed) == ticket.generation;
      jitter.Wait(400);
      whole &=
          memory.canary.load(std::memory_order_relaxed) == ticket.generation;
      figures.broken += !whole;
      // Should there be no processor left for the owner: it gets this one,
      // now with the block held, now without.
      if (jitter.Below(32) == 0) std::this_thread::yield();
      release();
      if (jitter.Below(32) == 0) std::this_thread::yield();
      jitter.Wait(100);
    }
    ++figures.refused;
  }
  return figures;
}

inline void ExpectAFairRace(const RaceFigures& owner, const RaceFigures& peer) {
  std::printf(
      "race: handed on %llu, deferred %llu; acquired %llu, refused %llu, "
      "broken %llu\n",
      static_cast<unsigned long long>(owner.handed_on),
      static_cast<unsigned long long>(owner.deferred),
      static_cast<unsigned long long>(peer.acquired),
      static_cast<unsigned long long>(peer.refused),
      static_cast<unsigned long long>(peer.broken));
  EXPECT_EQ(peer.broken, 0u) << "a block was handed on while it was held";
  // Each side has won: it was a race.
  EXPECT_GT(owner.handed_on, 0u);
  EXPECT_GT(owner.deferred, 0u);
  EXPECT_GT(peer.acquired, 0u);
  EXPECT_GT(peer.refused, 0u);
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_SHARE_RACE_H_
