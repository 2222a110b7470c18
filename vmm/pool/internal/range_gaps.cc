// The gaps of a range: where memory can come, what is claimed for it, and how it
// comes and goes.
#include <algorithm>
#include <iterator>
#include <utility>

#include "platform/base/check.h"
#include "vmm/pool/internal/range.h"

namespace vmm::pool {

std::optional<Place> Range::FindPlace(std::uint64_t size,
                                      std::uint64_t alignment,
                                      const Backlog* own) const {
  std::optional<Place> best;
  for (const auto& [gap, its] : gaps_) {
    if (its.is_claimed) continue;
    const std::uint32_t node = its.node;
    Place place;
    place.gap = gap;
    place.room = heap.block(node).size;
    place.begin = RoundUp(gap - heap.FreeBelow(node), alignment);
    if (own != nullptr && alignment == OffsetHeap::kGranule) {
      const std::uint32_t lower = heap.NextBelow(node);
      Block* const block = BlockAt(lower);
      if (block != nullptr && block->backlog == own) {
        const std::uint64_t begin =
            heap.block(lower).offset - heap.FreeBelow(lower);
        // Only where the block needs all of it: a rest would be given back as
        // anybody's, and is the stream's still.
        if (begin + size > gap) {
          place.own = block;
          place.begin = begin;
        }
      }
    }
    // It would begin above the gap, and lack nothing in it: whether it has room
    // there the heap says.
    if (place.begin >= gap + place.room) continue;
    place.end = place.begin + size;
    // One that fits below lacks nothing. But the heap did not find that, for it
    // looks at so many free ranges and no more: then any segment will do.
    place.needed = place.end > gap ? RoundUp(place.end - gap, unit_) : unit_;
    if (place.needed > place.room) {
      if (place.end > gap + place.room + heap.FreeAbove(node)) continue;
      place.needed = place.room;
    }
    // Of several the smallest gap: large ones are for large blocks.
    if (!best.has_value() || place.needed < best->needed ||
        (place.needed == best->needed && place.room < best->room)) {
      best = place;
    }
  }
  return best;
}

bool Range::TakeFree(std::uint64_t begin, std::uint64_t end,
                     std::uint32_t* node) {
  if (begin >= end) return true;
  const std::optional<std::uint32_t> taken = heap.Take(begin, end - begin);
  if (!taken.has_value()) return false;
  *node = *taken;
  SetBlock(*node, nullptr);
  claimed_bytes_ += end - begin;
  return true;
}

void Range::GiveBackBeside(const Claim& claim) {
  for (const std::uint32_t node : {claim.lowest, claim.below, claim.above}) {
    if (node == OffsetHeap::kNoNode) continue;
    claimed_bytes_ -= heap.block(node).size;
    heap.Free(node);
  }
}

std::optional<Claim> Range::Take(const Place& place, std::uint64_t size) {
  const auto gap = gaps_.find(place.gap);
  platform::Check(gap != gaps_.end() && !gap->second.is_claimed &&
                      size >= place.needed && size <= place.room,
                  "no such gap of a pool is there");
  // All memory for the books, before they are changed.
  segments_.reserve(segments_.size() + claims_ + 1);
  Gaps rest;
  if (size < place.room) rest[place.gap + size] = {};
  Claim claim;
  claim.gap = gap->second.node;
  std::uint64_t below = place.begin;
  bool taken = true;
  if (place.own != nullptr) {
    const std::uint64_t offset = heap.block(place.own->node).offset;
    taken = TakeFree(place.begin, offset, &claim.lowest);
    below = offset + place.own->size;
  }
  const std::uint64_t beyond = place.gap + place.room;
  std::uint32_t unclaimed = OffsetHeap::kNoNode;
  if (!taken || !TakeFree(below, place.gap, &claim.below) ||
      !TakeFree(std::max(place.begin, beyond), place.end, &claim.above) ||
      (size < place.room &&
       (unclaimed = heap.Split(claim.gap, size)) == OffsetHeap::kNoNode)) {
    GiveBackBeside(claim);
    return std::nullopt;
  }
  if (place.own != nullptr) claimed_bytes_ += place.own->size;
  gap->second.is_claimed = true;
  if (unclaimed != OffsetHeap::kNoNode) {
    SetBlock(unclaimed, nullptr);
    rest.begin()->second.node = unclaimed;
    gaps_.merge(rest);
  }
  ++claims_;
  return claim;
}

void Range::Insert(const Claim& claim, std::unique_ptr<Segment> segment) {
  const OffsetHeap::Block at = heap.block(claim.gap);
  platform::Check(at.size == segment->size, "a segment is not as was claimed");
  segment->range = this;
  segment->offset = at.offset;
  segment->domain = domain;
  gap_bytes_ -= segment->size;
  gaps_.erase(at.offset);
  --claims_;
  segments_.insert(FirstFrom(at.offset), std::move(segment));
}

void Range::Fill(const Claim& claim, std::unique_ptr<Segment> segment) {
  Insert(claim, std::move(segment));
  heap.Free(claim.gap);
  GiveBackBeside(claim);
}

std::optional<std::uint32_t> Range::FillFor(const Place& place,
                                            const Claim& claim,
                                            std::unique_ptr<Segment> segment) {
  Insert(claim, std::move(segment));
  // From the lowest to the highest: they lie side by side.
  std::uint32_t node = OffsetHeap::kNoNode;
  const std::uint32_t own =
      place.own == nullptr ? OffsetHeap::kNoNode : place.own->node;
  for (const std::uint32_t part :
       {claim.lowest, own, claim.below, claim.gap, claim.above}) {
    if (part == OffsetHeap::kNoNode) continue;
    if (part != claim.gap) claimed_bytes_ -= heap.block(part).size;
    if (node == OffsetHeap::kNoNode) {
      node = part;
    } else {
      heap.Join(node, part);
    }
  }
  if (const std::uint64_t head = place.begin - heap.block(node).offset;
      head != 0) {
    const std::uint32_t begins = heap.Split(node, head);
    heap.Free(node);
    if (begins == OffsetHeap::kNoNode) return std::nullopt;
    node = begins;
  }
  if (const std::uint64_t size = place.end - place.begin;
      size < heap.block(node).size) {
    // Without nodes the block has all of it.
    const std::uint32_t rest = heap.Split(node, size);
    if (rest != OffsetHeap::kNoNode) heap.Free(rest);
  }
  return node;
}

void Range::Vacate(const Claim& claim) {
  GiveBackBeside(claim);
  const OffsetHeap::Block at = heap.block(claim.gap);
  const auto gap = gaps_.find(at.offset);
  gap->second.is_claimed = false;
  --claims_;
  if (const auto above = std::next(gap); above != gaps_.end() &&
                                         !above->second.is_claimed &&
                                         above->first == at.offset + at.size) {
    heap.Join(claim.gap, above->second.node);
    gaps_.erase(above);
  }
  if (gap == gaps_.begin()) return;
  const auto below = std::prev(gap);
  if (below->second.is_claimed ||
      below->first + heap.block(below->second.node).size != at.offset) {
    return;
  }
  heap.Join(below->second.node, claim.gap);
  gaps_.erase(gap);
}

std::optional<Claim> Range::Remove(Segment& segment,
                                   std::unique_ptr<Segment>* removed) {
  Gaps added;
  added[segment.offset].is_claimed = true;
  const std::optional<std::uint32_t> node =
      heap.Take(segment.offset, segment.size);
  if (!node.has_value()) return std::nullopt;
  SetBlock(*node, nullptr);
  const auto found = std::find_if(
      segments_.begin(), segments_.end(),
      [&segment](const auto& one) { return one.get() == &segment; });
  platform::Check(found != segments_.end(), "no such segment of a pool");
  *removed = std::move(*found);
  segments_.erase(found);
  recent_ = nullptr;
  gap_bytes_ += (*removed)->size;
  added.begin()->second.node = *node;
  gaps_.merge(added);
  ++claims_;
  return Claim{.gap = *node};
}

}  // namespace vmm::pool
