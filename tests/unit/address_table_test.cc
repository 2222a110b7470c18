// AddressTable: found is what was inserted, and looking takes no longer the
// more was erased.
#include "vmm/pool/internal/address_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/how_many.h"

namespace vmm::pool {
namespace {

constexpr CUdeviceptr kBase = CUdeviceptr{1} << 40;

class AddressTableTest : public ::testing::Test {
 protected:
  Block* Make(CUdeviceptr address) {
    Block* const block = &records_.emplace_back();
    block->address = address;
    return block;
  }

  AddressTable table_;

 private:
  std::deque<Block> records_;
};

TEST_F(AddressTableTest, FindsWhatIsThereAndNothingElse) {
  std::mt19937_64 random(7);
  std::unordered_map<CUdeviceptr, Block*> expected;
  std::vector<Block*> live;
  for (int i = 0; i < 300'000; ++i) {
    const CUdeviceptr address = kBase + 256 * (random() % 20'000);
    const auto found = expected.find(address);
    ASSERT_EQ(table_.Find(address),
              found == expected.end() ? nullptr : found->second)
        << i;
    if (found == expected.end()) {
      Block* const block = Make(address);
      table_.Insert(block);
      expected.emplace(address, block);
    } else {
      table_.Erase(found->second);
      expected.erase(found);
    }
    ASSERT_EQ(table_.size(), expected.size());
  }
  for (const auto& [address, block] : expected) {
    EXPECT_EQ(table_.Find(address), block);
  }
  EXPECT_EQ(table_.Find(0), nullptr);
}

// The time of 10,000 looks for what is not there.
absl::Duration FastestLooks(const AddressTable& table,
                            std::mt19937_64& random) {
  absl::Duration fastest = absl::InfiniteDuration();
  for (int round = 0; round < 10; ++round) {
    std::uint64_t found = 0;
    const absl::Time begun = absl::Now();
    for (int i = 0; i < 10'000; ++i) {
      const CUdeviceptr address =
          kBase + 1 + random() % (std::uint64_t{1} << 36);
      if (table.Find(address) != nullptr) ++found;
    }
    fastest = std::min(fastest, absl::Now() - begun);
    EXPECT_EQ(found, 0u);
  }
  return fastest;
}

// With marks left by what was erased, one look is as long as the table once no
// cell is without one: a few hundred thousand operations then take minutes.
TEST_F(AddressTableTest, IsAsFastAfterMillionsOfOperations) {
  constexpr std::size_t kLive = 3000;
  const std::uint64_t operations =
      testing::HowMany("VMMSHARE_MODEL_OPERATIONS", 2'000'000);
  std::mt19937_64 random(11);
  std::vector<Block*> live;
  CUdeviceptr next = kBase;
  for (std::size_t i = 0; i < kLive; ++i) {
    live.push_back(Make(next += 4096));
    table_.Insert(live.back());
  }
  for (std::uint64_t i = 0; i < operations; ++i) {
    Block*& block = live[random() % kLive];
    table_.Erase(block);
    block->address = next += 256 * (1 + random() % 64);
    table_.Insert(block);
  }
  // By looking for what is not there: such a look ends at an empty cell. The fastest
  // of several, beside whatever else the machine does.
  const absl::Duration after = FastestLooks(table_, random);
  AddressTable fresh;
  for (Block* block : live) {
    fresh.MakeRoom();
    fresh.Insert(block);
  }
  EXPECT_LT(after, 20 * FastestLooks(fresh, random));
  for (const Block* block : live) EXPECT_EQ(table_.Find(block->address), block);
}

// A reader may miss what moves past it, but never finds what is not there, and
// always finds what is when it asks again with nobody changing the table.
TEST_F(AddressTableTest, ReadersNeverFindAnotherBlock) {
  std::vector<Block*> fixed;
  for (int i = 0; i < 64; ++i) {
    fixed.push_back(Make(kBase + 4096u * static_cast<unsigned>(i)));
    table_.Insert(fixed.back());
  }
  std::atomic<bool> done = false;
  std::atomic<std::uint64_t> wrong = 0;
  std::thread reader([&] {
    std::mt19937_64 random(3);
    while (!done.load(std::memory_order_relaxed)) {
      const std::size_t i = random() % fixed.size();
      const Block* const found =
          table_.Find(kBase + 4096u * static_cast<unsigned>(i));
      if (found != nullptr && found != fixed[i]) ++wrong;
    }
  });
  std::mt19937_64 random(5);
  std::vector<Block*> moving;
  for (int i = 0; i < 200; ++i) {
    moving.push_back(
        Make(kBase + (1u << 24) + 256u * static_cast<unsigned>(i)));
    table_.Insert(moving.back());
  }
  for (int i = 0; i < 200'000; ++i) {
    Block* const block = moving[random() % moving.size()];
    table_.Erase(block);
    table_.Insert(block);
  }
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);
  for (const Block* block : fixed) {
    EXPECT_EQ(table_.Find(block->address), block);
  }
}

}  // namespace
}  // namespace vmm::pool
