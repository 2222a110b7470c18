#include "vmm/pool/internal/offset_heap.h"

#include <algorithm>
#include <bit>
#include <new>

#include "platform/base/check.h"

namespace vmm::pool {

using platform::Check;

namespace {
constexpr std::size_t kFirstNodes = 64;
}  // namespace

OffsetHeap::OffsetHeap(std::uint64_t size, std::uint32_t max_nodes)
    : granules_(static_cast<std::uint32_t>(size / kGranule)),
      max_nodes_(max_nodes),
      nodes_(1),
      places_(1),
      classes_(kClasses) {
  Check(size % kGranule == 0 && size >= kGranule && size <= kMaxSize,
        "an OffsetHeap is a multiple of 256 bytes, from 256 to 2^40 - 256");
  // So that doubling them ends there. No larger power of two is of 32 bits.
  static_assert(kMaxNodes == std::numeric_limits<std::uint32_t>::max() / 2 + 1);
  Check(std::has_single_bit(max_nodes) && max_nodes >= kFirstNodes,
        "an OffsetHeap has 2^6 to 2^31 nodes, and a power of two");
  if (!Grow()) throw std::bad_alloc();
  const std::uint32_t all = TakeUnused();
  nodes_[all] = {0, granules_, kBorder | Node::kFree, kBorder};
  nodes_[kBorder] = {0, 0, all, all};
  List(all, granules_);
  if (unlisted_count_ != 0) throw std::bad_alloc();
}

std::optional<OffsetHeap::Block> OffsetHeap::Allocate(std::uint64_t size,
                                                      std::uint64_t alignment,
                                                      std::uint64_t below) {
  Check(size != 0, "Allocate of 0 bytes");
  Check(std::has_single_bit(alignment) && alignment >= kGranule,
        "an alignment is a power of two, at least 256");
  // Before rounding up, which overflows near 2^64.
  if (size > kMaxSize) return std::nullopt;
  if (unused_count_ < 2 && !Grow()) return std::nullopt;
  const std::uint64_t wanted = (size + kGranule - 1) / kGranule;
  const std::uint64_t multiple = alignment / kGranule;
  if (unlisted_count_ != 0) [[unlikely]] {
    ListAll();
  }
  const std::uint32_t found = Find(wanted, multiple);
  if (found == kBorder || kGranule * nodes_[found].size >= below) {
    return std::nullopt;
  }

  // The wrap of -offset is that of an addition: what is left of the multiple.
  const auto head = static_cast<std::uint32_t>(
      (0 - std::uint64_t{nodes_[found].offset}) & (multiple - 1));
  Cut(found, head, static_cast<std::uint32_t>(wanted));
  return RangeAt(found);
}

void OffsetHeap::Cut(std::uint32_t found, std::uint32_t head,
                     std::uint32_t granules) {
  Node& node = nodes_[found];
  Unlist(found, node.size);
  if (head != 0) {
    // The range before a free one is a block, so that this stays a range.
    const std::uint32_t cut = TakeUnused();
    const std::uint32_t prev = node.prev();
    nodes_[cut] = {node.offset, head, prev | Node::kFree, found};
    nodes_[prev].next = cut;
    node.offset += head;
    node.size -= head;
    node.prev_and_state = cut;
    List(cut, head);
  } else {
    node.prev_and_state &= ~Node::kFree;
  }
  const std::uint32_t rest = node.size - granules;
  if (rest != 0) {
    const std::uint32_t cut = TakeUnused();
    const std::uint32_t next = node.next;
    nodes_[cut] = {node.offset + granules, rest, found | Node::kFree, next};
    // No free range is above a free one: here no state is lost.
    nodes_[next].prev_and_state = cut;
    node.next = cut;
    node.size = granules;
    List(cut, rest);
  }
  live_granules_ += granules;
  ++live_blocks_;
}

std::optional<std::uint32_t> OffsetHeap::Take(std::uint64_t offset,
                                              std::uint64_t size) {
  std::uint32_t around = kBorder;
  ForEachFree(size, [&](const Block& range) {
    if (range.offset <= offset && offset - range.offset < range.size &&
        size <= range.size - (offset - range.offset)) {
      around = range.node;
    }
  });
  Check(around != kBorder && offset % kGranule == 0 && size % kGranule == 0,
        "Take of what is not free");
  if (unused_count_ < 2 && !Grow()) return std::nullopt;
  Cut(around,
      static_cast<std::uint32_t>(offset / kGranule - nodes_[around].offset),
      static_cast<std::uint32_t>(size / kGranule));
  return around;
}

void OffsetHeap::Free(std::uint32_t id) {
  Check(is_live(id), "Free of a node that is no live block");
  Node& node = nodes_[id];
  live_granules_ -= node.size;
  --live_blocks_;
  const std::uint32_t prev = node.prev();
  std::uint32_t next = node.next;
  // Both are far away as a rule: fetch them at the same time.
  const Node below = nodes_[prev];
  const Node above = nodes_[next];
  std::uint32_t size = node.size;
  if (above.is_free()) {
    Unlist(next, above.size);
    size += above.size;
    PutUnused(next);
    next = above.next;
  }
  std::uint32_t merged = id;
  if (below.is_free()) {
    Unlist(prev, below.size);
    size += below.size;
    PutUnused(id);
    merged = prev;
  } else {
    node.prev_and_state |= Node::kFree;
  }
  nodes_[merged].size = size;
  nodes_[merged].next = next;
  nodes_[next].prev_and_state = merged;
  List(merged, size);
}

void OffsetHeap::Join(std::uint32_t lower, std::uint32_t upper) {
  Check(is_live(lower) && is_live(upper) && nodes_[lower].next == upper,
        "Join of what are no neighbours");
  const std::uint32_t next = nodes_[upper].next;
  nodes_[lower].size += nodes_[upper].size;
  nodes_[lower].next = next;
  SetPrev(next, lower);
  PutUnused(upper);
  --live_blocks_;
}

std::uint32_t OffsetHeap::Split(std::uint32_t id, std::uint64_t size) {
  Check(is_live(id) && size % kGranule == 0 && size != 0 &&
            size / kGranule < nodes_[id].size,
        "Split of a block where it does not end");
  if (unused_count_ < 2 && !Grow()) return kNoNode;
  const std::uint32_t rest = TakeUnused();
  const auto granules = static_cast<std::uint32_t>(size / kGranule);
  Node& node = nodes_[id];
  nodes_[rest] = {node.offset + granules, node.size - granules, id, node.next};
  SetPrev(node.next, rest);
  node.next = rest;
  node.size = granules;
  ++live_blocks_;
  return rest;
}

OffsetHeap::Block OffsetHeap::Absorb(std::uint32_t id) {
  Check(is_live(id), "Absorb by a node that is no live block");
  Node& node = nodes_[id];
  if (const std::uint32_t above = node.next; nodes_[above].is_free()) {
    Unlist(above, nodes_[above].size);
    node.size += nodes_[above].size;
    live_granules_ += nodes_[above].size;
    node.next = nodes_[above].next;
    SetPrev(node.next, id);
    PutUnused(above);
  }
  if (const std::uint32_t below = node.prev(); nodes_[below].is_free()) {
    Unlist(below, nodes_[below].size);
    node.offset = nodes_[below].offset;
    node.size += nodes_[below].size;
    live_granules_ += nodes_[below].size;
    const std::uint32_t prev = nodes_[below].prev();
    SetPrev(id, prev);
    nodes_[prev].next = id;
    PutUnused(below);
  }
  return block(id);
}

OffsetHeap::Block OffsetHeap::block(std::uint32_t node) const {
  Check(is_live(node), "block() of a node that is no live block");
  return RangeAt(node);
}

std::uint64_t OffsetHeap::largest_free() const {
  if (summary_ == 0) return 0;
  const auto word = static_cast<std::uint32_t>(std::bit_width(summary_) - 1);
  const auto last =
      word * 64 + static_cast<std::uint32_t>(std::bit_width(words_[word]) - 1);
  return kGranule * nodes_[classes_[last].back()].size;
}

std::uint32_t OffsetHeap::ClassOf(std::uint64_t granules) {
  const auto shift =
      static_cast<int>(std::bit_width(granules | (1 << kSubBits))) - 1 -
      kSubBits;
  return static_cast<std::uint32_t>((shift << kSubBits) + (granules >> shift));
}

std::uint32_t OffsetHeap::ClassFrom(std::uint64_t granules) {
  return ClassOf(granules - 1) + 1;
}

std::uint32_t OffsetHeap::NextClass(std::uint32_t from) const {
  std::uint32_t word = from / 64;
  std::uint64_t bits = words_[word] & (~std::uint64_t{0} << from % 64);
  if (bits == 0) {
    const std::uint64_t later = summary_ & (~std::uint64_t{1} << word);
    if (later == 0) return kClasses;
    word = static_cast<std::uint32_t>(std::countr_zero(later));
    bits = words_[word];
  }
  return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
}

std::uint32_t OffsetHeap::Find(std::uint64_t granules,
                               std::uint64_t alignment) const {
  const std::uint32_t from = std::min(ClassFrom(granules), kClasses);
  const std::uint32_t best = NextClass(from);
  if (best != kClasses) {
    const std::uint32_t node = classes_[best].back();
    if (alignment == 1 || Fits(node, granules, alignment)) return node;
  }
  // An alignment may exceed all sizes: then only offset 0 is a multiple.
  const std::uint64_t most = granules + alignment - 1;
  const std::uint32_t sure =
      most > granules_ ? kClasses : std::min(ClassFrom(most), kClasses);
  if (const std::uint32_t roomy = NextClass(sure); roomy != kClasses) {
    return classes_[roomy].back();
  }
  return Examine(granules, alignment, sure);
}

std::uint32_t OffsetHeap::Examine(std::uint64_t granules,
                                  std::uint64_t alignment,
                                  std::uint32_t end) const {
  if (granules > granules_) return kBorder;
  int examined = 0;
  for (std::uint32_t at = NextClass(ClassOf(granules)); at < end;
       at = NextClass(at + 1)) {
    const std::vector<std::uint32_t>& ranges = classes_[at];
    for (std::size_t i = ranges.size(); i > 0; --i) {
      if (examined++ == kMaxExamined) return kBorder;
      if (Fits(ranges[i - 1], granules, alignment)) return ranges[i - 1];
    }
  }
  return kBorder;
}

bool OffsetHeap::Fits(std::uint32_t node, std::uint64_t granules,
                      std::uint64_t alignment) const {
  const Node& range = nodes_[node];
  const std::uint64_t head =
      (0 - std::uint64_t{range.offset}) & (alignment - 1);
  return head <= range.size && granules <= range.size - head;
}

void OffsetHeap::List(std::uint32_t node, std::uint32_t granules) {
  const std::uint32_t at = ClassOf(granules);
  std::vector<std::uint32_t>& ranges = classes_[at];
  places_[node] = static_cast<std::uint32_t>(ranges.size());
  try {
    ranges.push_back(node);
  } catch (const std::bad_alloc&) {
    places_[node] = kUnlisted;
    ++unlisted_count_;
    return;
  }
  words_[at / 64] |= std::uint64_t{1} << at % 64;
  summary_ |= std::uint64_t{1} << at / 64;
}

void OffsetHeap::Unlist(std::uint32_t node, std::uint32_t granules) {
  const std::uint32_t at = ClassOf(granules);
  std::vector<std::uint32_t>& ranges = classes_[at];
  const std::uint32_t place = places_[node];
  if (place == kUnlisted) [[unlikely]] {
    --unlisted_count_;
    return;
  }
  // The last takes its place: that one came not long ago, and is near.
  const std::uint32_t last = ranges.back();
  ranges[place] = last;
  places_[last] = place;
  ranges.pop_back();
  std::uint64_t& word = words_[at / 64];
  word &= ~(std::uint64_t{ranges.empty()} << at % 64);
  summary_ &= ~(std::uint64_t{word == 0} << at / 64);
}

void OffsetHeap::ListAll() {
  for (std::uint32_t node = 1; node < nodes_.size(); ++node) {
    if (!nodes_[node].is_free() || places_[node] != kUnlisted) continue;
    --unlisted_count_;
    List(node, nodes_[node].size);
  }
}

bool OffsetHeap::Grow() {
  const std::size_t old = nodes_.size();
  if (old == max_nodes_) return false;
  const std::size_t size = std::max(kFirstNodes, 2 * old);
  try {
    places_.resize(size);
    nodes_.resize(size);
  } catch (const std::bad_alloc&) {
    places_.resize(old);
    return false;
  }
  // The lowest first: near nodes for blocks that are made one after another.
  for (std::size_t i = size; i > old; --i) {
    PutUnused(static_cast<std::uint32_t>(i - 1));
  }
  return true;
}

std::uint32_t OffsetHeap::TakeUnused() {
  const std::uint32_t node = unused_;
  unused_ = nodes_[node].next;
  --unused_count_;
  return node;
}

void OffsetHeap::PutUnused(std::uint32_t node) {
  nodes_[node] = {0, 0, 0, unused_};
  unused_ = node;
  ++unused_count_;
}

}  // namespace vmm::pool
