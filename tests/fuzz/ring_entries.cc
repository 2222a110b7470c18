// What a ring's reader reads of its writer, and a barrier's members of rank 0.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "platform/base/check.h"
#include "tests/fuzz/entries.h"
#include "vmm/job/barrier.h"
#include "vmm/job/internal/barrier_protocol.h"
#include "vmm/queue/internal/ring_item.h"
#include "vmm/queue/internal/ring_peer.h"
#include "vmm/queue/ring.h"

namespace vmm::fuzz {
namespace {

using platform::Check;

void CheckPrintable(absl::string_view text) {
  Check(std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); }),
        "a message shows bytes of a peer as they are");
}

void CheckItem(Input bytes) {
  const absl::StatusOr<RingItem> item = DecodeRingItem(bytes);
  if (!item.ok()) {
    Check(absl::IsInvalidArgument(item.status()) ||
              absl::IsUnimplemented(item.status()),
          "another error than documented");
    CheckPrintable(item.status().message());
    return;
  }
  const RingItemBytes again = EncodeRingItem(*item);
  Check(Input(again) == bytes, "an item is read otherwise than written");
  Check(item->number > 0 && item->lap > 0 && item->lap <= kMaxFenceValue &&
            item->lap <= item->number && item->size <= item->block.size,
        "an item of no ring");
}

void CheckOffer(Input bytes) {
  const absl::StatusOr<ring::Offer> offer = ring::DecodeOffer(bytes);
  if (!offer.ok()) {
    Check(absl::IsDataLoss(offer.status()) ||
              absl::IsUnimplemented(offer.status()),
          "another error than documented");
    CheckPrintable(offer.status().message());
    return;
  }
  Check(Input(ring::EncodeOffer(*offer)) == bytes,
        "an offer is read otherwise than written");
  Check(offer->buffers > 0 && offer->buffers <= kMaxRingBuffers &&
            offer->bytes > 0,
        "the offer of no ring");
}

RingItem Sample() {
  RingItem item;
  item.number = 11;
  item.lap = 2;
  item.size = 100;
  item.tag = 5;
  item.block.domain.bytes.fill(9);
  item.block.segment = 1;
  item.block.slot = 4;
  item.block.generation = 3;
  item.block.size = 4096;
  item.full = {item.block.domain, 1, 5, 6, 512};
  item.free = {item.block.domain, 1, 6, 7, 768};
  return item;
}

}  // namespace

void FuzzRingItem(Input input) {
  CheckItem(input);
  CheckOffer(input);
  Bytes whole(input.begin(), input.end());
  whole.resize(kRingItemBytes);
  const RingItemBytes good = EncodeRingItem(Sample());
  for (std::size_t at : {std::size_t{32}, 32 + kPoolTicketBytes,
                         32 + kPoolTicketBytes + kFenceTicketBytes}) {
    std::copy_n(good.begin() + at, 8, whole.begin() + at);
    std::copy_n(good.begin() + at + 24, 8, whole.begin() + at + 24);
  }
  CheckItem(whole);
}

void FuzzBarrier(Input input) {
  const absl::StatusOr<barrier::Offer> offer = barrier::DecodeOffer(input);
  if (offer.ok()) {
    Check(Input(barrier::EncodeOffer(*offer)) == input,
          "an offer is read otherwise than written");
    Check(offer->fences.size() >= 2 &&
              offer->fences.size() <= kMaxBarrierMembers && offer->rank > 0 &&
              offer->rank < offer->fences.size(),
          "the offer of no barrier");
  } else {
    Check(absl::IsDataLoss(offer.status()) ||
              absl::IsUnimplemented(offer.status()),
          "another error than documented");
    CheckPrintable(offer.status().message());
  }
  const absl::StatusOr<barrier::Gone> gone = barrier::DecodeGone(input, 5);
  Check(!gone.ok() ||
            (gone->rank < 5 && Input(barrier::EncodeGone(*gone)) == input),
        "a rank that there is not has gone");
}

std::vector<Entry> RingEntries() {
  const RingItemBytes item = EncodeRingItem(Sample());
  return {{"ring_item",
           &FuzzRingItem,
           {Bytes(item.begin(), item.end()),
            ring::EncodeOffer({8, 4096, "pool", "fences"})}},
          {"barrier",
           &FuzzBarrier,
           {barrier::EncodeOffer({2, "pool", std::vector(3, Sample().full)}),
            barrier::EncodeGone({3, true})}}};
}

}  // namespace vmm::fuzz
