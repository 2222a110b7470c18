// Values of one round after another under the same keys of PMIx.
#include "fabric/pmix_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "tests/support/must.h"

namespace vmm::testing {
namespace {

using fabric::Bytes;
using fabric::PmixRounds;
using ::testing::HasSubstr;

using Store = std::map<std::string, Bytes>;

void PutInto(Store& store, PmixRounds& rounds, const std::string& name,
             const Bytes& value) {
  for (auto& [key, bytes] : rounds.Put(name, value)) store[key] = bytes;
}

PmixRounds::Lookup In(const Store& store) {
  return [&store](const std::string& key) -> absl::StatusOr<Bytes> {
    const auto found = store.find(key);
    if (found == store.end()) return absl::NotFoundError(key);
    return found->second;
  };
}

Bytes Word(std::size_t size, int seed) {
  Bytes word(size);
  for (std::size_t i = 0; i < size; ++i) {
    word[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(seed));
  }
  return word;
}

TEST(PmixRounds, GivesBackValuesOfAnySize) {
  PmixRounds rounds;
  Store store;
  for (std::size_t size = 0; size < 2100; ++size) {
    PutInto(store, rounds, "word", Word(size, 1));
    rounds.End();
    ASSERT_EQ(Must(rounds.Get("word", In(store))), Word(size, 1)) << size;
  }
  PutInto(store, rounds, "large", Word(3 << 20, 2));
  EXPECT_EQ(Must(rounds.Get("large", In(store))), Word(3 << 20, 2));
}

// What OpenPMIx needs, and what makes the thousandth round as cheap as the
// first.
TEST(PmixRounds, PutsTheSameKeysAgainAndNoneInAnotherSize) {
  PmixRounds rounds;
  Store store;
  for (int round = 0; round < 1000; ++round) {
    const Bytes word = Word(static_cast<std::size_t>(round * 37 % 5000), round);
    for (const std::string name : {"a", "b"}) {
      for (auto& [key, bytes] :
           rounds.Put(name + std::to_string(round), word)) {
        const auto [at, fresh] = store.try_emplace(key, bytes);
        if (!fresh) {
          ASSERT_EQ(at->second.size(), bytes.size()) << key;
          at->second = bytes;
        }
      }
    }
    rounds.End();
  }
  // Two rounds of two values, of four pieces: 512 + 1,024 + 2,048 + 4,096.
  EXPECT_EQ(store.size(), 2u * 2u * 4u);
}

TEST(PmixRounds, ARankAheadTakesNothingFromOneThatStillReads) {
  PmixRounds slow;
  PmixRounds fast;
  Store store;
  for (int round = 0; round < 10; ++round) {
    const std::string name = std::to_string(round);
    slow.Put(name, {});
    PutInto(store, fast, name, Word(700, round));
    slow.End();
    fast.End();
    // The fast one is at the next fence already.
    PutInto(store, fast, std::to_string(round + 1), Word(700, round + 1));
    ASSERT_EQ(Must(slow.Get(name, In(store))), Word(700, round));
    // And what it put does not count twice.
    fast = PmixRounds(slow);
  }
}

TEST(PmixRounds, ARankThatHasNotComeIsNotFound) {
  PmixRounds mine;
  PmixRounds other;
  Store store;
  for (int round = 0; round < 3; ++round) {
    const std::string name = std::to_string(round);
    PutInto(store, other, name, Word(700, round));
    mine.Put(name, {});
    mine.End();
    other.End();
  }
  mine.Put("3", {});
  const absl::Status status = mine.Get("3", In(store)).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("it is in round 1, and this rank in round 3"));
}

TEST(PmixRounds, ARankThatMakesAnotherCallIsToldApart) {
  PmixRounds mine;
  PmixRounds other;
  Store store;
  PutInto(store, other, "vmmshare.0.card.0", Word(10, 1));
  mine.Put("vmmshare.0.ticket.0", {});
  const absl::Status status =
      mine.Get("vmmshare.0.ticket.0", In(store)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("it has put vmmshare.0.card.0 where this rank put "
                        "vmmshare.0.ticket.0"));
}

TEST(PmixRounds, KeepsThePlacesOfTwoRoundsOnly) {
  PmixRounds rounds;
  rounds.Put("0", {});
  EXPECT_TRUE(rounds.Has("0"));
  rounds.End();
  rounds.Put("1", {});
  EXPECT_TRUE(rounds.Has("0"));
  rounds.End();
  EXPECT_FALSE(rounds.Has("0"));
  EXPECT_TRUE(rounds.Has("1"));
  EXPECT_TRUE(rounds.present().empty());
}

// A peer may put what it likes: every answer is a value or an error.
TEST(PmixRounds, WhatAPeerDamagedIsAnErrorOrAnotherValue) {
  PmixRounds rounds;
  Store store;
  PutInto(store, rounds, "word", Word(600, 1));
  ASSERT_EQ(store.size(), 2u);
  int refused = 0;
  for (auto& [key, bytes] : store) {
    for (std::size_t bit = 0; bit < 8 * 30; ++bit) {
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      refused += rounds.Get("word", In(store)).ok() ? 0 : 1;
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    }
    const Bytes whole = bytes;
    for (std::size_t size = 0; size < whole.size(); ++size) {
      bytes.resize(size);
      EXPECT_TRUE(absl::IsDataLoss(rounds.Get("word", In(store)).status()));
    }
    bytes = whole;
  }
  // Of the first piece 12 + 6 bytes say what it is, of the second 12.
  EXPECT_GE(refused, 8 * (12 + 6 + 12) - 16);
  EXPECT_EQ(Must(rounds.Get("word", In(store))), Word(600, 1));
}

}  // namespace
}  // namespace vmm::testing
