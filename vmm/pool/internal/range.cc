#include "vmm/pool/internal/range.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "platform/base/check.h"

namespace vmm::pool {

Range::Range(std::uint32_t number, CUdeviceptr base, std::uint64_t size)
    : heap(size), number_(number), base_(base) {
  gaps_[0].node = heap.Allocate(size, OffsetHeap::kGranule)->node;
  gap_bytes_ = size;
}

Range::Range(std::uint32_t number, AddressRange addresses, std::uint64_t unit)
    : heap(addresses.size()),
      number_(number),
      base_(addresses.base()),
      addresses_(std::make_shared<const AddressRange>(std::move(addresses))),
      unit_(unit) {
  gaps_[0].node = heap.Allocate(size(), OffsetHeap::kGranule)->node;
  gap_bytes_ = size();
}

Range::Segments::const_iterator Range::FirstFrom(std::uint64_t offset) const {
  return std::partition_point(
      segments_.begin(), segments_.end(),
      [offset](const auto& one) { return one->offset < offset; });
}

Segment& Range::SegmentAt(std::uint64_t offset) const {
  // One below `offset` underflows to what is beyond it.
  if (recent_ == nullptr || offset - recent_->offset >= recent_->size) {
    const auto above = FirstFrom(offset + 1);
    platform::Check(
        above != segments_.begin() && offset < (*std::prev(above))->end(),
        "no segment of a pool is there");
    recent_ = std::prev(above)->get();
  }
  return *recent_;
}

std::optional<CUdeviceptr> Range::StartAtOrBelow(CUdeviceptr inside) const {
  const std::uint64_t offset = inside - base_;
  auto above = FirstFrom(offset + 1);
  while (above != segments_.begin()) {
    const Segment& segment = **--above;
    const auto start = segment.starts.AtOrBelow(
        (std::min(offset, segment.end() - 1) - segment.offset) /
        OffsetHeap::kGranule);
    if (start.has_value()) {
      return base_ + segment.offset + *start * OffsetHeap::kGranule;
    }
  }
  return std::nullopt;
}

std::vector<Segment*> Range::Idle() const {
  std::vector<Segment*> idle;
  heap.ForEachFree(kUnit, [&](const OffsetHeap::Block& range) {
    for (auto segment = FirstFrom(range.offset);
         segment != segments_.end() &&
         (*segment)->end() <= range.offset + range.size;
         ++segment) {
      if ((*segment)->exporters == 0) idle.push_back(segment->get());
    }
  });
  return idle;
}

std::vector<Range::Room> Range::Rooms() const {
  std::vector<Room> rooms(segments_.size());
  heap.ForEachFree(OffsetHeap::kGranule, [&](const OffsetHeap::Block& range) {
    const std::uint64_t end = range.offset + range.size;
    auto segment = std::partition_point(
        segments_.begin(), segments_.end(),
        [&range](const auto& one) { return one->end() <= range.offset; });
    for (; segment != segments_.end() && (*segment)->offset < end; ++segment) {
      Room& room = rooms[static_cast<std::size_t>(segment - segments_.begin())];
      const std::uint64_t bytes = std::min(end, (*segment)->end()) -
                                  std::max(range.offset, (*segment)->offset);
      room.free += bytes;
      room.largest = std::max(room.largest, bytes);
    }
  });
  return rooms;
}

void Range::SetBlock(std::uint32_t node, Block* block) {
  if (block == nullptr && node >= blocks_.size()) return;
  MakeRoomFor(node);
  blocks_[node] = block;
}

void Range::MakeRoomFor(std::uint32_t node) {
  if (node < blocks_.size()) return;
  blocks_.resize(std::max<std::size_t>(node + 1, 2 * blocks_.size()));
}

}  // namespace vmm::pool
