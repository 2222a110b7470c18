// What is fuzzed: every function that reads bytes of a peer, and arithmetic
// that all memory depends on.
//
// An entry takes any bytes and dies (platform::Check) when the code under test
// breaks a promise. libFuzzer calls it (entry_fuzzer.cc), and the ordinary test
// run too, on mutations that are the same each time (corpus_test.cc).
#ifndef VMMSHARE_TESTS_FUZZ_ENTRIES_H_
#define VMMSHARE_TESTS_FUZZ_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace vmm::fuzz {

using Bytes = std::vector<std::uint8_t>;
using Input = absl::Span<const std::uint8_t>;

// A ticket as it is, and once more with magic, length and checksum put right.
void FuzzTicket(Input input);
// A ticket string, and the input as the bytes within one.
void FuzzTicketString(Input input);
// A pool ticket that is tried on a share table.
void FuzzPoolImport(Input input);
// A fabric ticket, and the input as ticket and handles within one.
void FuzzFabricTicket(Input input);
// The first two bytes are the type of a message, the rest its payload: read as
// a request, as a refusal and as the frame around both.
void FuzzMessage(Input input);
// A script of messages, played by a hostile sender to ReceiveAll(). Each has
// two bytes: what to send, and how many handles and tickets with it.
void FuzzReceive(Input input);

// The first two bytes are the size of an OffsetHeap, then each four are an
// operation; judged by the model of tests/unit/offset_heap_model.h.
void FuzzOffsetHeap(Input input);

// A pool ticket as it is, and once more with magic and version put right.
void FuzzPoolTicket(Input input);
// A pool's string, and the input as the bytes within one.
void FuzzPoolString(Input input);
// Two bytes are the type of a message and one its handles, the rest its
// payload: read as every message of a pool's two sides.
void FuzzPoolMessage(Input input);
// A script of messages, played by a hostile owner to a subscriber.
void FuzzPoolOwner(Input input);
// A script of records that a hostile owner writes into the table that its
// peers map, and of tickets given to such a peer.
void FuzzPoolTable(Input input);

// A fence ticket as it is, and once more with magic and version put right.
void FuzzFenceTicket(Input input);
// An item of a ring as it is, and once more with its tickets' magics put right;
// and the input as the offer of a ring.
void FuzzRingItem(Input input);
// The offer of a barrier, and word of a member that has gone.
void FuzzBarrier(Input input);
// The ticket of an event as it is, and once more with its checksum put right.
void FuzzIpcEvent(Input input);

// The first two bytes are the type of a message, the rest its payload: read as
// a request to a keeper.
void FuzzKeeperRequest(Input input);
// A keeper's answers: that it attaches, and a page of its list.
void FuzzKeeperAnswer(Input input);
// What a keeper stores, as it is, and once more with its head and checksum put
// right; and the name under which it stores something.
void FuzzKeeperRecord(Input input);

// The manifest of a tensor set as it is, and once more with its head and checksum
// put right; and the bytes that say where it is.
void FuzzTensorManifest(Input input);
void FuzzTensorTrailer(Input input);
// The first two bytes are how many bytes of data there are, the rest the header of a
// safetensors file.
void FuzzSafetensors(Input input);

class Numbers;

struct Entry {
  std::string name;
  void (*run)(Input input);
  std::vector<Bytes> seeds;  // Inputs that the code accepts.
  // Changes an input as its format allows (mutators.h); null: any bytes become any
  // other ones.
  Bytes (*mutate)(Input input, Numbers& numbers) = nullptr;
};

// Those of pools, of fences and of what is built on both, of jobs (cards and
// rows of ranks), of the keeper, of tensor sets, and all.
std::vector<Entry> PoolEntries();
std::vector<Entry> FenceEntries();
std::vector<Entry> RingEntries();
std::vector<Entry> JobEntries();
std::vector<Entry> KeeperEntries();
std::vector<Entry> WeightsEntries();
const std::vector<Entry>& Entries();

}  // namespace vmm::fuzz

#endif  // VMMSHARE_TESTS_FUZZ_ENTRIES_H_
