// Where freed blocks go, and how they are used again.
#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {
namespace {

// Backlogs that are asked about at first, when memory is short; then twice as
// many, and so on: most often the one that waits the longest has passed.
constexpr std::size_t kAskedFirst = 4;
// How long what another thread asks about is waited for.
constexpr absl::Duration kLongestAnswer = absl::Milliseconds(100);
// CUDA offers no wait with a deadline, so the GPU is asked again after this.
constexpr std::chrono::microseconds kAskAgain{200};

}  // namespace

void Core::LetGoOfTickets(Block* block) {
  const std::uint32_t slot = block->slot.load(std::memory_order_relaxed);
  if (slot != Block::kNoSlot) {
    Domain& domain = *domains_[block->domain];
    domain.Withdraw(slot);
    if (domain.IsHeld(slot)) {
      block->epoch = 0;
      held_.Push(block);
      return;
    }
    domain.Recycle(slot);
    block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
  }
  PutBack(block);
}

void Core::PutBack(Block* block) {
  const CacheKey key = KeyOf(*block);
  if (recent_.Push(key, block)) return;
  const BlockList others = recent_.TakeBin(key);
  recent_.Push(key, block);
  PutAll(others);
}

void Core::PutBackAll(BlockList blocks) {
  while (!blocks.empty()) PutBack(blocks.Pop());
}

void Core::EmptyRecent() {
  BlockList all;
  recent_.TakeAll(all);
  PutAll(all);
}

void Core::PutAll(BlockList blocks) {
  for (BlockList late = std::exchange(late_, {}); !late.empty();) {
    Put(late.Pop(), std::nullopt);
  }
  while (!blocks.empty()) Put(blocks.Pop(), std::nullopt);
}

void Core::Put(Block* block, std::optional<std::uint64_t> epoch) {
  try {
    heaps_[block->domain]->Put(block, epoch);
  } catch (const std::bad_alloc&) {
    late_.Push(block);
  }
}

void Core::EmptyOfLarge() {
  ThreadCache& cache = caches_.Mine();
  BlockList all;
  recent_.TakeAll(all, kLarge);
  {
    const ThreadCache::Lock lock(cache);
    cache.blocks.TakeAll(all, kLarge);
  }
  PutAll(all);
}

void Core::EmptyCaches() {
  EmptyRecent();
  BlockList all;
  caches_.ForEach([&all](ThreadCache& cache) { cache.blocks.TakeAll(all); });
  PutAll(all);
}

void Core::CollectHeld() {
  for (const std::unique_ptr<Domain>& domain : domains_) {
    domain->ForgetDeadPeers();
  }
  for (BlockList all = std::exchange(held_, {}); !all.empty();) {
    Block* const block = all.Pop();
    Domain& domain = *domains_[block->domain];
    const std::uint32_t slot = block->slot.load(std::memory_order_relaxed);
    if (domain.IsHeld(slot)) {
      held_.Push(block);
      continue;
    }
    domain.Recycle(slot);
    block->slot.store(Block::kNoSlot, std::memory_order_relaxed);
    Put(block, block->epoch == 0 ? std::nullopt : std::optional(block->epoch));
  }
}

absl::Status Core::Ask(Heap& heap, const std::vector<Backlog*>& backlogs) {
  std::vector<Inquiry> inquiries;
  inquiries.reserve(backlogs.size());
  for (Backlog* backlog : backlogs) {
    if (!backlog->is_asked) inquiries.emplace_back(*backlog);
  }
  absl::Status failed;
  if (inquiries.empty()) return failed;
  asking_ += inquiries.size();
  const absl::Cleanup end = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EndAll(absl::MakeSpan(inquiries));
  };
  const CUcontext context = context_;
  {
    const Unlocked unlocked(*this);
    for (Inquiry& inquiry : inquiries) inquiry.Ask(device_, context);
  }
  for (Inquiry& inquiry : inquiries) {
    heap.Pass(inquiry.backlog(), inquiry.passed());
    if (!inquiry.error().ok()) failed = last_error_ = inquiry.error();
  }
  return failed;
}

void Core::EndAll(absl::Span<Inquiry> inquiries) {
  for (Inquiry& inquiry : inquiries) inquiry.End();
  asking_ -= inquiries.size();
  changed_.NotifyAll();
}

absl::Status Core::AskAll() {
  absl::Status failed;
  // Domains are added at the end, and stay.
  for (std::size_t i = 0; i < heaps_.size(); ++i) {
    Heap& heap = *heaps_[i];
    absl::Status asked = Ask(heap, heap.NextBacklogs(heap.backlogs()));
    if (!asked.ok()) failed = std::move(asked);
  }
  // What another thread asks about is known when it has its answer.
  const Deadline deadline = Deadline::In(kLongestAnswer);
  while (asking_ != 0 && !deadline.Passed()) {
    changed_.WaitFor(mutex_, deadline.Slice());
  }
  return failed;
}

absl::Status Core::CollectAll() {
  EmptyCaches();
  if (!held_.empty()) CollectHeld();
  return AskAll();
}

Block* Core::Reuse(const Request& request) {
  Heap& heap = HeapOf(request);
  EmptyRecent();
  if (Block* const block = heap.Take(request)) return block;
  EmptyCaches();
  if (!held_.empty()) CollectHeld();
  if (Block* const block = heap.Take(request)) return block;
  std::size_t left = heap.backlogs();
  for (std::size_t many = kAskedFirst; left > 0; many *= 2) {
    const std::vector<Backlog*> next = heap.NextBacklogs(std::min(many, left));
    left -= std::min(left, std::max<std::size_t>(next.size(), 1));
    Ask(heap, next).IgnoreError();  // Told in last_error_.
    if (Block* const block = heap.Take(request)) return block;
  }
  return heap.TakeBesideFree(request);
}

Block* Core::ReuseByWaiting(const Request& request, absl::Status* error) {
  Heap& heap = HeapOf(request);
  std::vector<CUstream> others;
  for (const Backlog* backlog : heap.NextBacklogs(heap.backlogs())) {
    if (backlog->stream() != request.stream)
      others.push_back(backlog->stream());
  }
  // First for one stream alone, for as little as is needed; then for all, and
  // with what is free beside it.
  for (const bool all : {false, true}) {
    for (CUstream other : others) {
      Backlog* const backlog = heap.Find(other);
      if (backlog == nullptr || backlog->empty() || backlog->is_asked) continue;
      if (!all && backlog->Find(request.size, request.alignment) == nullptr) {
        continue;
      }
      Inquiry inquiry(*backlog);
      ++asking_;
      absl::Cleanup end = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        EndAll(absl::MakeSpan(&inquiry, 1));
      };
      absl::StatusOr<bool> made = false;
      const CUcontext context = context_;
      {
        const Unlocked unlocked(*this);
        made = inquiry.MakeWait(device_, context, request.stream);
      }
      Block* taken = nullptr;
      if (!made.ok()) {
        *error = made.status();
      } else if (*made) {
        taken = heap.TakeAfterWait(*backlog, inquiry.epoch(), request);
        if (all && taken == nullptr) {
          heap.MoveAfterWait(*backlog, inquiry.epoch(), request.stream);
        }
      }
      std::move(end).Invoke();
      if (taken == nullptr) taken = heap.Take(request);
      if (taken != nullptr) return taken;
    }
  }
  heap.Absorb(request.stream);
  return heap.Take(request);
}

std::uint64_t Core::BytesWaiting() const {
  std::uint64_t bytes = 0;
  for (const auto& heap : heaps_) bytes += heap->bytes_waiting();
  return bytes;
}

absl::Status Core::AwaitGpu(Deadline deadline) {
  for (const std::uint64_t before = BytesWaiting();
       BytesWaiting() == before && !deadline.Passed();) {
    changed_.WaitFor(mutex_, kAskAgain);
    RETURN_IF_ERROR(AskAll());
  }
  return absl::OkStatus();
}

}  // namespace vmm::pool
