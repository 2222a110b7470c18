// The fuzz entries on a fixed set of mutated inputs, in every test run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "platform/os/os_handle.h"
#include "tests/fuzz/entries.h"
#include "tests/support/open_handles.h"

namespace vmm::fuzz {
namespace {

// splitmix64: the same numbers on every machine.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t Below(std::size_t limit) {
    return limit == 0 ? 0 : static_cast<std::size_t>(Next() % limit);
  }

 private:
  std::uint64_t state_;
};

Bytes Mutated(const std::vector<Bytes>& seeds, Numbers& numbers) {
  Bytes bytes = seeds[numbers.Below(seeds.size())];
  const std::size_t changes = numbers.Below(6);
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = numbers.Below(bytes.size() + 1);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto byte = static_cast<std::uint8_t>(numbers.Next());
    switch (numbers.Below(7)) {
      case 0:  // Cut.
        bytes.erase(place, bytes.end());
        break;
      case 1:  // Flip one bit.
        if (place != bytes.end())
          *place ^= static_cast<std::uint8_t>(1 << byte % 8);
        break;
      case 2:  // Any byte.
        if (place != bytes.end()) *place = byte;
        break;
      case 3:  // A byte of those that hide mistakes.
        if (place != bytes.end()) {
          constexpr std::uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xff};
          *place = kTelling[byte % 5];
        }
        break;
      case 4:  // Insert.
        bytes.insert(place, byte);
        break;
      case 5: {  // Repeat what is there.
        const std::size_t size =
            numbers.Below(std::min<std::size_t>(64, bytes.size() - at) + 1);
        const Bytes piece(place, place + static_cast<std::ptrdiff_t>(size));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                     piece.begin(), piece.end());
        break;
      }
      case 6: {  // The end of another one.
        const Bytes& other = seeds[numbers.Below(seeds.size())];
        const std::size_t from = numbers.Below(other.size() + 1);
        bytes.insert(bytes.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.end());
        break;
      }
    }
  }
  return bytes;
}

std::uint64_t Fuzz(const std::string& name, std::uint64_t executions) {
  for (const Entry& entry : Entries()) {
    if (entry.name != name) continue;
    for (const Bytes& seed : entry.seeds) entry.run(seed);
    const testing::ExpectNoNewHandles no_new_handles;
    Numbers numbers(20261121);
    for (std::uint64_t i = 0; i < executions; ++i) {
      entry.run(Mutated(entry.seeds, numbers));
    }
    std::printf(
        "fuzz executions of %s: %llu\n", name.c_str(),
        static_cast<unsigned long long>(executions + entry.seeds.size()));
    return executions + entry.seeds.size();
  }
  ADD_FAILURE() << "no fuzz entry " << name;
  return 0;
}

TEST(FuzzCorpus, TicketsKeepTheirPromises) {
  EXPECT_GT(Fuzz("ticket", 60000), 60000u);
}
TEST(FuzzCorpus, TicketStringsKeepTheirPromises) {
  EXPECT_GT(Fuzz("ticket_string", 30000), 30000u);
}
TEST(FuzzCorpus, FabricTicketsKeepTheirPromises) {
  EXPECT_GT(Fuzz("fabric_ticket", 60000), 60000u);
}
TEST(FuzzCorpus, ImportsByPoolTicketsKeepTheirPromises) {
  EXPECT_GT(Fuzz("pool_import", 60000), 60000u);
}
TEST(FuzzCorpus, MessagesKeepTheirPromises) {
  EXPECT_GT(Fuzz("message", 60000), 60000u);
}
TEST(FuzzCorpus, TheOffsetHeapKeepsItsPromises) {
  EXPECT_GT(Fuzz("offset_heap", 10000), 10000u);
}
// Runs that each make two ends of a channel: a pipe's cost ten times a
// socket's.
std::uint64_t RunsOverAChannel() {
  return platform::kNativeHandleIsPosixFd ? 40000 : 4000;
}

TEST(FuzzCorpus, TheReceiverKeepsItsPromises) {
  EXPECT_GT(Fuzz("receive", RunsOverAChannel()), RunsOverAChannel());
}
TEST(FuzzCorpus, PoolTicketsKeepTheirPromises) {
  EXPECT_GT(Fuzz("pool_ticket", 60000), 60000u);
}
TEST(FuzzCorpus, PoolStringsKeepTheirPromises) {
  EXPECT_GT(Fuzz("pool_string", 30000), 30000u);
}
TEST(FuzzCorpus, PoolMessagesKeepTheirPromises) {
  EXPECT_GT(Fuzz("pool_message", 40000), 40000u);
}
TEST(FuzzCorpus, SubscribersKeepTheirPromises) {
  EXPECT_GT(Fuzz("pool_owner", RunsOverAChannel()), RunsOverAChannel());
}
TEST(FuzzCorpus, TicketsOfEventsKeepTheirPromises) {
  EXPECT_GT(Fuzz("ipc_event", 60000), 60000u);
}
TEST(FuzzCorpus, BarriersKeepTheirPromises) {
  EXPECT_GT(Fuzz("barrier", 40000), 40000u);
}
TEST(FuzzCorpus, RingItemsKeepTheirPromises) {
  EXPECT_GT(Fuzz("ring_item", 60000), 60000u);
}
TEST(FuzzCorpus, FenceTicketsKeepTheirPromises) {
  EXPECT_GT(Fuzz("fence_ticket", 60000), 60000u);
}
TEST(FuzzCorpus, ShareTablesKeepTheirPromises) {
  EXPECT_GT(Fuzz("pool_table", 40000), 40000u);
}
TEST(FuzzCorpus, RequestsToAKeeperKeepTheirPromises) {
  EXPECT_GT(Fuzz("keeper_request", 60000), 60000u);
}
TEST(FuzzCorpus, AnswersOfAKeeperKeepTheirPromises) {
  EXPECT_GT(Fuzz("keeper_answer", 60000), 60000u);
}
TEST(FuzzCorpus, RecordsOfAKeeperKeepTheirPromises) {
  EXPECT_GT(Fuzz("keeper_record", 60000), 60000u);
}
TEST(FuzzCorpus, ManifestsOfTensorSetsKeepTheirPromises) {
  EXPECT_GT(Fuzz("tensor_manifest", 60000), 60000u);
}
TEST(FuzzCorpus, HeadersOfSafetensorsKeepTheirPromises) {
  EXPECT_GT(Fuzz("safetensors", 60000), 60000u);
}
TEST(FuzzCorpus, TrailersOfTensorSetsKeepTheirPromises) {
  EXPECT_GT(Fuzz("tensor_trailer", 60000), 60000u);
}
TEST(FuzzCorpus, CardsOfRanksKeepTheirPromises) {
  EXPECT_GT(Fuzz("job_card", 40000), 40000u);
}
TEST(FuzzCorpus, RowsOfRanksKeepTheirPromises) {
  EXPECT_GT(Fuzz("job_row", 40000), 40000u);
}

}  // namespace
}  // namespace vmm::fuzz
