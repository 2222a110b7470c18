// What the CPU does with a fence's memory, a hostile peer's writes included.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "vmm/sync/internal/fence_words.h"

namespace vmm::fence {
namespace {

constexpr std::uint64_t kTag = 0x1234567812345678;

// Memory as a pool hands it out: with anything in it.
std::unique_ptr<Words> Dirty() {
  constexpr std::uint64_t kAnything = 0xa5a5a5a5a5a5a5a5;
  auto words = std::make_unique<Words>();
  words->value.store(kAnything);
  words->tag.store(kAnything);
  words->base.store(kAnything);
  words->abandoned.store(kAnything);
  return words;
}

TEST(FenceWords, AreZeroWhereThePoolHadNoFenceBefore) {
  const std::unique_ptr<Words> words = Dirty();
  EXPECT_EQ(Renew(*words, kTag), 0u);
  const Progress now = Look(*words, 0);
  EXPECT_EQ(now.value, 0u);
  EXPECT_FALSE(now.abandoned);
  EXPECT_FALSE(now.corrupt);
}

TEST(FenceWords, CountOnWhereTheLastFenceEnded) {
  const std::unique_ptr<Words> words = Dirty();
  Renew(*words, kTag);
  words->value.store(41);
  EXPECT_EQ(Renew(*words, kTag), 41u);
  EXPECT_EQ(words->value.load(), 41u) << "a late wait would stand still";
  EXPECT_EQ(Look(*words, 41).value, 0u);
}

TEST(FenceWords, AnAbandonedFenceKeepsItsValueAndSatisfiesEveryWait) {
  const std::unique_ptr<Words> words = Dirty();
  Renew(*words, kTag);
  words->value.store(7);
  Abandon(*words, 0);
  EXPECT_EQ(words->value.load(), kSpan);
  Progress now = Look(*words, 0);
  EXPECT_TRUE(now.abandoned);
  EXPECT_EQ(now.value, 7u);
  Abandon(*words, 0);
  now = Look(*words, 0);
  EXPECT_EQ(now.value, 7u);
  // The next one begins above every wait that the last one can have.
  EXPECT_EQ(Renew(*words, kTag), kSpan);
  EXPECT_EQ(Look(*words, kSpan).value, 0u);
  EXPECT_FALSE(Look(*words, kSpan).abandoned);
}

TEST(FenceWords, ASignalThatComesAfterTheEndCountsAndIsPutRight) {
  const std::unique_ptr<Words> words = Dirty();
  Renew(*words, kTag);
  words->value.store(7);
  Abandon(*words, 0);
  words->value.store(9);  // As a stream does.
  EXPECT_EQ(Look(*words, 0).value, 9u);
  EXPECT_EQ(words->value.load(), kSpan);
  // Not looked at, it is hidden from the next fence all the same.
  words->value.store(11);
  EXPECT_EQ(Renew(*words, kTag), kSpan);
  EXPECT_EQ(words->value.load(), kSpan);
}

TEST(FenceWords, OnlyGrowWhoeverRaisesThem) {
  const std::unique_ptr<Words> words = Dirty();
  Renew(*words, kTag);
  std::atomic<int> raised = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t first : {1, 2, 3, 4}) {
    threads.emplace_back([&, first] {
      std::uint64_t last = 0;
      for (std::uint64_t value = first; value <= 4000; value += 4) {
        if (Raise(words->value, value)) ++raised;
        const std::uint64_t now = words->value.load();
        EXPECT_GE(now, value);
        EXPECT_GE(now, last);
        last = now;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(words->value.load(), 4000u);
  EXPECT_GT(raised.load(), 0);
  EXPECT_FALSE(Raise(words->value, 4000));
}

// Each goes for the next number, which only one of them can have raised it to:
// until it was the other one often enough, or there is one processor for both.
TEST(FenceWords, AreRaisedByOneOfThoseThatTryAtOnce) {
  std::atomic<std::uint64_t> word = 0;
  std::atomic<std::uint64_t> raised = 0;
  std::atomic<std::uint64_t> lost = 0;
  for (int round = 0; round < 400 && lost.load() < 2000; ++round) {
    std::atomic<int> ready = 0;
    const auto raise = [&] {
      ++ready;
      while (ready.load() < 2) std::this_thread::yield();
      for (int i = 0; i < 10'000; ++i) {
        ++(Raise(word, word.load() + 1) ? raised : lost);
      }
    };
    std::thread other(raise);
    raise();
    other.join();
    ASSERT_EQ(raised.load(), word.load());
  }
}

TEST(FenceWords, WearOutRatherThanRunOver) {
  const std::unique_ptr<Words> words = Dirty();
  Renew(*words, kTag);
  std::uint64_t base = 0;
  int fences = 0;
  while (base <= kLastBase) {
    Abandon(*words, base);
    const std::uint64_t next = Renew(*words, kTag);
    ASSERT_GT(next, base);
    base = next;
    ++fences;
  }
  EXPECT_GT(fences, 30000);
  EXPECT_LT(base, std::uint64_t{1} << 63);
  // The last fence stays abandoned: nothing is made of its memory any more.
  const std::uint64_t last = words->base.load();
  EXPECT_LE(last, kLastBase);
  EXPECT_TRUE(Look(*words, last).abandoned);
  EXPECT_EQ(Renew(*words, kTag), base);
}

TEST(FenceWords, AreRenewedUpToTheLastBase) {
  for (const std::uint64_t more : {0, 1}) {
    const std::unique_ptr<Words> words = Dirty();
    Renew(*words, kTag);
    words->value.store(kLastBase + more);
    EXPECT_EQ(Renew(*words, kTag), kLastBase + more);
    EXPECT_EQ(words->base.load(), more == 0 ? kLastBase : 0u);
  }
}

// Pitfall 29: what was used before must not come to mean something else.
TEST(Pitfall29, NoValueOfAFormerFenceIsAboveTheNextOnesBase) {
  const std::unique_ptr<Words> words = Dirty();
  std::uint64_t base = Renew(*words, kTag);
  for (std::uint64_t i = 1; i < 1000; ++i) {
    const std::uint64_t last = base + i % 7;
    words->value.store(last);
    if (i % 3 == 0) Abandon(*words, base);
    const std::uint64_t next = Renew(*words, kTag);
    ASSERT_GE(next, last);
    ASSERT_EQ(words->value.load(), next);
    base = next;
  }
}

TEST(FenceWords, WhatAHostilePeerWritesIsAValueOrCorrupt) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t bases[] = {0, 5, kSpan, kLastBase};
  const std::uint64_t telling[] = {0,         1,        4,
                                   kSpan - 1, kSpan,    kSpan + 1,
                                   kLastBase, kMax / 2, kMax / 2 + 1,
                                   kMax - 1,  kMax,     2 * kSpan};
  for (std::uint64_t base : bases) {
    for (std::uint64_t value : telling) {
      for (std::uint64_t abandoned : telling) {
        const std::unique_ptr<Words> words = Dirty();
        words->value.store(value);
        words->abandoned.store(abandoned);
        const Progress now = Look(*words, base);
        EXPECT_LT(now.value, kSpan);
        EXPECT_TRUE(!now.corrupt || now.value == 0) << now.value;
        EXPECT_EQ(now.abandoned, abandoned != 0);
        Abandon(*words, base);
        EXPECT_EQ(words->value.load(), base + kSpan) << "a stream would wait";
        words->tag.store(kTag);
        words->base.store(telling[value % 12]);
        const std::uint64_t next = Renew(*words, kTag);
        if (next > kLastBase) continue;
        EXPECT_EQ(Look(*words, next).value, 0u);
      }
    }
  }
}

TEST(FenceWords, WhatIsAbandonedAboveItsEndHasItsLastValue) {
  for (const std::uint64_t above : {0, 1, 2, 5}) {
    const std::unique_ptr<Words> words = Dirty();
    Renew(*words, kTag);
    words->value.store(kSpan + above);
    Abandon(*words, 0);
    const Progress now = Look(*words, 0);
    EXPECT_TRUE(now.abandoned);
    EXPECT_FALSE(now.corrupt) << above;
    EXPECT_EQ(now.value, kSpan - 1) << above;
  }
}

TEST(FenceWords, LookingNeverHangsOnAPeerThatNeverStopsWriting) {
  const std::unique_ptr<Words> words = Dirty();
  Renew(*words, kTag);
  std::atomic<bool> stop = false;
  std::thread hostile([&] {
    std::uint64_t value = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      words->value.store(++value % kSpan, std::memory_order_relaxed);
    }
  });
  Abandon(*words, 0);
  for (int i = 0; i < 10000; ++i) EXPECT_TRUE(Look(*words, 0).abandoned);
  stop = true;
  hostile.join();
}

// Between two threads the first signal wins, and the end is the end.
TEST(FenceWords, SignalsAndTheEndRaceAndNothingIsLost) {
  for (int round = 0; round < 500; ++round) {
    const std::unique_ptr<Words> words = Dirty();
    Renew(*words, kTag);
    std::atomic<int> ready = 0;
    std::thread signaller([&] {
      ++ready;
      while (ready.load() < 2) std::this_thread::yield();
      for (std::uint64_t value = 1; value <= 20; ++value) {
        words->value.store(value);
      }
    });
    ++ready;
    while (ready.load() < 2) std::this_thread::yield();
    Abandon(*words, 0);
    signaller.join();
    const Progress now = Look(*words, 0);
    ASSERT_TRUE(now.abandoned);
    ASSERT_EQ(words->value.load(), kSpan);
    // Either the end found it, or it came later and was put right.
    ASSERT_EQ(now.value, 20u);
  }
}

}  // namespace
}  // namespace vmm::fence
