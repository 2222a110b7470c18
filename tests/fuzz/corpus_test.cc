// The fuzz entries on a fixed set of mutated inputs, in every test run.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "platform/os/os_handle.h"
#include "tests/fuzz/entries.h"
#include "tests/fuzz/mutators.h"
#include "tests/support/how_many.h"
#include "tests/support/open_handles.h"
#include "vmm/weights/manifest.h"

namespace vmm::fuzz {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

// Runs the entry on its seeds, and on `executions` inputs made of them: of which
// VMMSHARE_FUZZ_EVERY takes one in so many.
void Fuzz(const std::string& name, std::uint64_t executions) {
  executions /=
      std::max<std::uint64_t>(1, testing::HowMany("VMMSHARE_FUZZ_EVERY", 1));
  for (const Entry& entry : Entries()) {
    if (entry.name != name) continue;
    ASSERT_FALSE(entry.seeds.empty());
    for (const Bytes& seed : entry.seeds) entry.run(seed);
    const testing::ExpectNoNewHandles no_new_handles;
    Numbers numbers(20261121);
    for (std::uint64_t i = 0; i < executions; ++i) {
      Bytes bytes = Mutated(entry.seeds, numbers);
      if (entry.mutate != nullptr && i % 2 == 0) {
        const Bytes& seed = entry.seeds[numbers.Below(entry.seeds.size())];
        bytes = entry.mutate(seed, numbers);
        if (i % 4 == 0) bytes = entry.mutate(bytes, numbers);
      }
      entry.run(bytes);
    }
    std::printf(
        "fuzz executions of %s: %llu\n", name.c_str(),
        static_cast<unsigned long long>(executions + entry.seeds.size()));
    return;
  }
  ADD_FAILURE() << "no fuzz entry " << name;
}

TEST(FuzzCorpus, TicketsKeepTheirPromises) { Fuzz("ticket", 60000); }
TEST(FuzzCorpus, TicketStringsKeepTheirPromises) {
  Fuzz("ticket_string", 30000);
}
TEST(FuzzCorpus, FabricTicketsKeepTheirPromises) {
  Fuzz("fabric_ticket", 60000);
}
TEST(FuzzCorpus, ImportsByPoolTicketsKeepTheirPromises) {
  Fuzz("pool_import", 60000);
}
TEST(FuzzCorpus, MessagesKeepTheirPromises) { Fuzz("message", 60000); }
TEST(FuzzCorpus, TheOffsetHeapKeepsItsPromises) { Fuzz("offset_heap", 10000); }
// Runs that each make two ends of a channel: a pipe's cost ten times a
// socket's.
std::uint64_t RunsOverAChannel() {
  return platform::kNativeHandleIsPosixFd ? 40000 : 4000;
}

TEST(FuzzCorpus, TheReceiverKeepsItsPromises) {
  Fuzz("receive", RunsOverAChannel());
}
TEST(FuzzCorpus, PoolTicketsKeepTheirPromises) { Fuzz("pool_ticket", 60000); }
TEST(FuzzCorpus, PoolStringsKeepTheirPromises) { Fuzz("pool_string", 30000); }
TEST(FuzzCorpus, PoolMessagesKeepTheirPromises) { Fuzz("pool_message", 40000); }
TEST(FuzzCorpus, SubscribersKeepTheirPromises) {
  Fuzz("pool_owner", RunsOverAChannel());
}
TEST(FuzzCorpus, TicketsOfEventsKeepTheirPromises) { Fuzz("ipc_event", 60000); }
TEST(FuzzCorpus, BarriersKeepTheirPromises) { Fuzz("barrier", 40000); }
TEST(FuzzCorpus, RingItemsKeepTheirPromises) { Fuzz("ring_item", 60000); }
TEST(FuzzCorpus, FenceTicketsKeepTheirPromises) { Fuzz("fence_ticket", 60000); }
TEST(FuzzCorpus, ShareTablesKeepTheirPromises) { Fuzz("pool_table", 40000); }
TEST(FuzzCorpus, RequestsToAKeeperKeepTheirPromises) {
  Fuzz("keeper_request", 60000);
}
TEST(FuzzCorpus, AnswersOfAKeeperKeepTheirPromises) {
  Fuzz("keeper_answer", 60000);
}
TEST(FuzzCorpus, RecordsOfAKeeperKeepTheirPromises) {
  Fuzz("keeper_record", 60000);
}
TEST(FuzzCorpus, ManifestsOfTensorSetsKeepTheirPromises) {
  Fuzz("tensor_manifest", 60000);
}
TEST(FuzzCorpus, HeadersOfSafetensorsKeepTheirPromises) {
  Fuzz("safetensors", 60000);
}
TEST(FuzzCorpus, TrailersOfTensorSetsKeepTheirPromises) {
  Fuzz("tensor_trailer", 60000);
}
TEST(FuzzCorpus, CardsOfRanksKeepTheirPromises) { Fuzz("job_card", 40000); }
TEST(FuzzCorpus, RowsOfRanksKeepTheirPromises) { Fuzz("job_row", 40000); }

// What `mutate` makes of an entry's first seed: how many inputs `decode` takes
// though they are not the seed, how many it refuses.
struct Tally {
  int taken = 0;
  int refused = 0;
  std::set<std::string> reasons;
};
template <typename Decode>
Tally TallyOf(const std::string& name, const Decode& decode) {
  const auto& entries = Entries();
  const auto entry =
      std::find_if(entries.begin(), entries.end(),
                   [&](const Entry& each) { return each.name == name; });
  Tally tally;
  Numbers numbers(1);
  for (int i = 0; i < 20000; ++i) {
    const Bytes bytes = entry->mutate(entry->seeds[0], numbers);
    const absl::Status status = decode(bytes);
    if (!status.ok()) {
      ++tally.refused;
      tally.reasons.insert(std::string(status.message()));
    } else if (bytes != entry->seeds[0]) {
      ++tally.taken;
    }
  }
  return tally;
}

TEST(FuzzMutators, MakeManifestsThatAreReadAndThatAreRefusedForWhatTheySay) {
  const Tally tally = TallyOf("tensor_manifest", [](const Bytes& bytes) {
    return DecodeManifest(bytes).status();
  });
  EXPECT_GT(tally.taken, 1000);
  EXPECT_GT(tally.refused, 1000);
  for (const std::string& reason : tally.reasons) {
    EXPECT_THAT(reason,
                Not(AnyOf(HasSubstr("checksum is another"), HasSubstr("is cut"),
                          HasSubstr("does not begin"))));
  }
  EXPECT_GT(tally.reasons.size(), 100u);
}

TEST(FuzzMutators, MakeHeadersOfFilesThatAreReadAndThatAreRefused) {
  const Tally tally = TallyOf("safetensors", [](const Bytes& bytes) {
    const std::string json(bytes.begin() + 2, bytes.end());
    const std::uint64_t data = bytes[0] | std::uint64_t{bytes[1]} << 8;
    return DecodeSafetensorsHeader(json, 8 + json.size() + data).status();
  });
  EXPECT_GT(tally.taken, 100);
  EXPECT_GT(tally.refused, 1000);
  EXPECT_GT(tally.reasons.size(), 100u);
}

TEST(FuzzMutators, KeepOperationsWhole) {
  Bytes seed(42);
  seed[0] = 7;
  Numbers numbers(1);
  bool longer = false, shorter = false;
  for (int i = 0; i < 1000; ++i) {
    const Bytes bytes = MutateOperations(seed, numbers);
    ASSERT_EQ(bytes.size() % 4, 2u);
    EXPECT_TRUE(std::equal(seed.begin(), seed.begin() + 2, bytes.begin()));
    longer |= bytes.size() > 42;
    shorter |= bytes.size() < 42;
  }
  EXPECT_TRUE(longer);
  EXPECT_TRUE(shorter);
}

TEST(FuzzMutators, TakeAnyBytes) {
  Numbers numbers(1);
  for (std::size_t size = 0; size < 300; ++size) {
    Bytes bytes(size);
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(numbers.Next());
    }
    for (const Entry& entry : Entries()) {
      if (entry.mutate == nullptr) continue;
      entry.run(entry.mutate(bytes, numbers));
      // And what begins well.
      Bytes cut = entry.seeds[0];
      cut.resize(std::min(cut.size(), size));
      entry.run(entry.mutate(cut, numbers));
    }
  }
}

}  // namespace
}  // namespace vmm::fuzz
