// OffsetHeap::CheckInvariants().
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "vmm/pool/internal/offset_heap.h"

namespace vmm::pool {
namespace {

template <typename... Words>
absl::Status Wrong(const Words&... words) {
  return absl::InternalError(absl::StrCat("offset heap: ", words...));
}

}  // namespace

absl::Status OffsetHeap::CheckInvariants() const {
  if (places_.size() != nodes_.size()) {
    return Wrong(places_.size(), " places for ", nodes_.size(), " nodes");
  }
  std::uint64_t free_ranges = 0;
  absl::Status status = CheckRanges(free_ranges);
  if (status.ok()) status = CheckClasses(free_ranges);
  if (status.ok()) status = CheckUnused(free_ranges + live_blocks_ + 1);
  return status;
}

absl::Status OffsetHeap::CheckRanges(std::uint64_t& free_ranges) const {
  const Node& border = nodes_[kBorder];
  if (border.size != 0 || border.is_free()) {
    return Wrong("the border has size ", border.size, " or is free");
  }
  std::uint64_t end = 0;  // Of the ranges so far.
  std::uint64_t blocks = 0;
  std::uint64_t block_granules = 0;
  std::uint32_t last = kBorder;
  for (std::uint32_t at = border.next; at != kBorder; at = nodes_[at].next) {
    if (at >= nodes_.size()) return Wrong("range ", at, " has no node");
    const Node& node = nodes_[at];
    if (node.offset != end) {
      return Wrong("range ", at, " begins at granule ", node.offset,
                   ", the one below ends at ", end);
    }
    // Sizes above 0 also bound the walk.
    if (node.size == 0 || node.size > granules_ - end) {
      return Wrong("range ", at, " at granule ", end, " of ", granules_,
                   " has ", node.size);
    }
    if (node.prev() != last) {
      return Wrong("below range ", at, " is ", last, ", it says ", node.prev());
    }
    if (node.is_free() && nodes_[last].is_free()) {
      return Wrong("ranges ", last, " and ", at,
                   " are free neighbours at granule ", end);
    }
    end += node.size;
    if (node.is_free()) {
      ++free_ranges;
    } else {
      ++blocks;
      block_granules += node.size;
    }
    last = at;
  }
  if (end != granules_ || border.prev() != last) {
    return Wrong("the ranges end at granule ", end, " of ", granules_,
                 ", the last is ", last, " and not ", border.prev());
  }
  if (blocks != live_blocks_ || block_granules != live_granules_) {
    return Wrong(blocks, " blocks of ", block_granules, " granules, counted ",
                 live_blocks_, " of ", live_granules_);
  }
  return absl::OkStatus();
}

absl::Status OffsetHeap::CheckClasses(std::uint64_t free_ranges) const {
  std::uint64_t listed = 0;
  for (std::uint32_t at = 0; at < kClasses; ++at) {
    const std::vector<std::uint32_t>& ranges = classes_[at];
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::uint32_t id = ranges[i];
      if (id >= nodes_.size()) return Wrong("range ", id, " has no node");
      const Node& node = nodes_[id];
      if (!node.is_free() || ClassOf(node.size) != at) {
        return Wrong("class ", at, " has range ", id, " of ", node.size,
                     " granules, free: ", node.is_free());
      }
      // Its own place: so none is there twice.
      if (places_[id] != i) {
        return Wrong("class ", at, " has range ", id, " at place ", i,
                     ", it says ", places_[id]);
      }
    }
    listed += ranges.size();
    const bool marked = ((words_[at / 64] >> at % 64) & 1) != 0;
    if (marked == ranges.empty()) {
      return Wrong("class ", at, " has ", ranges.size(),
                   " ranges, its bit says ", marked);
    }
  }
  for (std::size_t i = 0; i < kWords; ++i) {
    const bool marked = ((summary_ >> i) & 1) != 0;
    if (marked != (words_[i] != 0)) {
      return Wrong("word ", i, " is not 0: ", words_[i] != 0,
                   ", the summary says ", marked);
    }
  }
  if (words_[kClasses / 64] >> kClasses % 64 != 0) {
    return Wrong("a class above the last has its bit set");
  }
  if (listed + unlisted_count_ != free_ranges) {
    return Wrong(listed, " ranges are in classes, ", free_ranges, " are free");
  }
  return absl::OkStatus();
}

absl::Status OffsetHeap::CheckUnused(std::uint64_t used) const {
  std::uint64_t count = 0;
  for (std::uint32_t at = unused_; at != kBorder; at = nodes_[at].next) {
    if (at >= nodes_.size() || count++ == unused_count_) {
      return Wrong("more than ", unused_count_, " unused nodes, or no node ",
                   at);
    }
    if (nodes_[at].size != 0 || nodes_[at].is_free()) {
      return Wrong("unused node ", at, " is a range");
    }
  }
  if (count != unused_count_ || count + used != nodes_.size()) {
    return Wrong(count, " unused nodes, counted ", unused_count_, "; ", used,
                 " used ones of ", nodes_.size());
  }
  return absl::OkStatus();
}

}  // namespace vmm::pool
