#include "tests/unit/stream_heap_model.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/heap_segments.h"

namespace vmm::testing {

using pool::Block;
using pool::BlockState;

ModelledStreams::ModelledStreams(std::size_t streams) : streams_(streams) {}

void ModelledStreams::Grow(std::uint64_t size) {
  pool::AddSegment(heap_, next_base_, size);
  next_base_ += size;  // Neighbours in other ranges must not merge.
}

absl::Status ModelledStreams::Extend(std::size_t stream, std::uint64_t size,
                                     std::uint64_t more, bool fails) {
  constexpr std::uint64_t kAddresses = std::uint64_t{64} << 20;
  constexpr std::uint64_t kAlignment = pool::OffsetHeap::kGranule;
  if (growing_ == nullptr) {
    growing_ = &heap_.Add(std::make_unique<pool::Range>(
        heap_.NextRange(), next_base_, kAddresses));
    next_base_ += kAddresses;
  }
  const auto place =
      growing_->FindPlace(size, kAlignment, heap_.Find(Value(stream)));
  if (!place.has_value()) return absl::OkStatus();
  const std::uint64_t bytes = std::min(place->needed + more, place->room);
  const pool::Claim claim = *heap_.Take(*growing_, *place, bytes);
  if (fails) {
    heap_.Vacate(*growing_, *place, claim);
    return absl::OkStatus();
  }
  Block* const block = heap_.FillFor(*growing_, *place, claim,
                                     std::make_unique<pool::Segment>(bytes));
  return Take(block, stream, size, kAlignment);
}

void ModelledStreams::Shrink() {
  for (const auto& range : heap_.ranges()) {
    for (pool::Segment* const segment : range->Idle()) {
      std::unique_ptr<pool::Segment> removed;
      range->Vacate(*range->Remove(*segment, &removed));
    }
  }
  for (const auto& range : heap_.RemoveVacant()) {
    if (range.get() == growing_) growing_ = nullptr;
  }
}

bool ModelledStreams::MayUse(std::size_t stream, const Use& use) const {
  if (use.stream == stream) return true;
  if (streams_[use.stream].done >= use.work) return true;
  const auto after = streams_[stream].after.find(use.stream);
  return after != streams_[stream].after.end() && after->second >= use.work;
}

// Forgets what was known of the range, and knows this.
void ModelledStreams::Note(std::uint64_t from, const Use& use) {
  auto at = uses_.lower_bound(from);
  if (at != uses_.begin() && std::prev(at)->second.end > from) --at;
  while (at != uses_.end() && at->first < use.end) {
    const auto [start, old] = *at;
    at = uses_.erase(at);
    if (start < from) uses_[start] = {from, old.stream, old.work};
    if (old.end > use.end) uses_[use.end] = old;
  }
  uses_[from] = use;
}

absl::StatusOr<bool> ModelledStreams::Allocate(std::size_t stream,
                                               std::uint64_t size,
                                               std::uint64_t alignment) {
  pool::Request request;
  request.size = size;
  request.alignment = alignment;
  request.requested = size;
  request.stream = Value(stream);
  Block* block = heap_.Take(request);
  if (block == nullptr) block = heap_.TakeBesideFree(request);
  if (block == nullptr) return false;
  absl::Status taken = Take(block, stream, size, alignment);
  if (!taken.ok()) return taken;
  return true;
}

absl::Status ModelledStreams::Take(Block* block, std::size_t stream,
                                   std::uint64_t size,
                                   std::uint64_t alignment) {
  const CUdeviceptr begin = block->address;
  const CUdeviceptr end = begin + block->size;
  if (block->size != size || begin % alignment != 0) {
    return absl::InternalError(absl::StrCat("a block of ", block->size, " at ",
                                            begin, ", asked for ", size,
                                            " aligned to ", alignment));
  }
  if (block->state.exchange(BlockState::kLive) != BlockState::kFree ||
      book_.Find(begin) != block) {
    return absl::InternalError("a block that is in use, or not entered");
  }
  auto use = uses_.lower_bound(begin);
  if (use != uses_.begin() && std::prev(use)->second.end > begin) --use;
  for (; use != uses_.end() && use->first < end; ++use) {
    if (MayUse(stream, use->second)) continue;
    return absl::InternalError(absl::StrCat(
        "stream ", stream, " was given memory that work ", use->second.work,
        " of stream ", use->second.stream, " uses, which has done ",
        streams_[use->second.stream].done));
  }
  Stream& its = streams_[stream];
  ++its.submitted;
  Note(begin, {end, stream, its.submitted});
  blocks_.push_back(block);
  return absl::OkStatus();
}

void ModelledStreams::Free(std::size_t index, std::size_t stream, bool held) {
  Block* const block = std::exchange(blocks_[index], blocks_.back());
  blocks_.pop_back();
  // Whoever frees it elsewhere makes that stream come after its last use, and
  // uses it there.
  Stream& its = streams_[stream];
  const std::uint64_t begin = block->address;
  ++its.submitted;
  Note(begin, {begin + block->size, stream, its.submitted});
  block->state = BlockState::kFree;
  block->freed_on = Value(stream);
  if (held) {
    held_.push_back({block, stream, std::nullopt});
  } else {
    heap_.Put(block);
  }
}

void ModelledStreams::GiveBack() {
  for (const Held& held : std::exchange(held_, {})) {
    heap_.Put(held.block, held.epoch);
  }
}

void ModelledStreams::Run(std::size_t stream, std::uint64_t count) {
  Stream& its = streams_[stream];
  std::uint64_t most = std::min(its.submitted, its.done + count);
  for (const Stream::Order& order : its.orders) {
    if (streams_[order.stream].done < order.work) {
      most = std::min(most, order.first - 1);
    }
  }
  its.done = std::max(its.done, most);
}

void ModelledStreams::Ask(std::size_t stream, bool too_early) {
  Stream& its = streams_[stream];
  its.points.push_back({its.submitted, heap_.Close(Value(stream))});
  for (Held& held : held_) {
    if (held.stream == stream && !held.epoch.has_value()) {
      held.epoch = its.points.back().epoch;
    }
  }
  while (!its.points.empty()) {
    const Stream::Point point = its.points.front();
    if (its.done + (too_early ? 1 : 0) < point.work) break;
    pool::Backlog* const backlog = heap_.Find(Value(stream));
    if (backlog != nullptr) heap_.Pass(*backlog, point.epoch);
    its.points.erase(its.points.begin());
  }
}

void ModelledStreams::Forget(std::size_t stream) {
  heap_.Forget(Value(stream));
}

void ModelledStreams::Wait(std::size_t to, std::size_t from) {
  pool::Backlog* const backlog = heap_.Find(Value(from));
  if (backlog == nullptr || to == from) return;
  streams_[to].after[from] = streams_[from].submitted;
  streams_[to].orders.push_back(
      {streams_[to].submitted + 1, from, streams_[from].submitted});
  heap_.MoveAfterWait(*backlog, backlog->Close(), Value(to));
  heap_.Absorb(Value(to));
  // What moved is used by nobody before `to` has come after it: from now on
  // others must wait for that stream.
  ++streams_[to].submitted;
  for (auto& [begin, use] : uses_) {
    const auto has = [start = begin](const Block* block) {
      return block->address <= start && start < block->address + block->size;
    };
    const bool live =
        std::any_of(blocks_.begin(), blocks_.end(), has) ||
        std::any_of(held_.begin(), held_.end(),
                    [&has](const Held& held) { return has(held.block); });
    if (use.stream == from && use.work > streams_[from].done && !live) {
      use.stream = to;
      use.work = streams_[to].submitted;
    }
  }
}

std::uint64_t ModelledStreams::LostBytes() {
  while (!blocks_.empty()) Free(0, 0);
  GiveBack();
  // Some wait for others, one for another as often as there were waits: each round
  // does what nothing is before, or there is nothing left.
  for (bool some = true; some;) {
    some = false;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const std::uint64_t before = streams_[i].done;
      Run(i, ~std::uint64_t{0} >> 1);
      some = some || streams_[i].done != before;
    }
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) Ask(i);
  std::uint64_t lost = 0;
  for (const auto& range : heap_.ranges()) lost += range->taken();
  return lost;
}

}  // namespace vmm::testing
