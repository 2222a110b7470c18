// What peers hold: listed, asked back, waited for.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "vmm/pool/internal/core.h"
#include "vmm/share/internal/lease_text.h"

namespace vmm::pool {
namespace {

// How often holds are looked at: peers take them back without a message.
constexpr std::chrono::milliseconds kLookAgain{1};

absl::Status NotReturned(const std::vector<BlockLease>& leases) {
  std::vector<std::string> each;
  each.reserve(leases.size());
  for (const BlockLease& one : leases) {
    each.push_back(absl::StrCat(one.freed ? "freed block 0x" : "block 0x",
                                absl::Hex(one.block), ", ",
                                one.lease.Describe()));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      lease_internal::DescribeAll(each),
      ". Their memory cannot be used again before; recall them, or end the "
      "processes that hold them"));
}

}  // namespace

struct Core::LeasedBlock {
  const Block* block;  // Another block's record once the slot is not leased.
  std::uint32_t domain;
  SlotRef slot;
};

bool Core::IsLeased(const LeasedBlock& one) const {
  return domains_[one.domain]->IsLeased(one.slot);
}

void Core::AddLeases(const Block& block, std::vector<BlockLease>& out) const {
  const std::uint32_t slot = block.slot.load(std::memory_order_relaxed);
  if (slot == Block::kNoSlot) return;
  const bool freed =
      block.state.load(std::memory_order_relaxed) == BlockState::kFree;
  for (Lease& lease : domains_[block.domain]->LeasesOf(slot, block.requested)) {
    out.push_back({block.address, freed, std::move(lease)});
  }
}

std::vector<BlockLease> Core::Leases() {
  platform::MutexLock lock(mutex_);
  CollectHeld();
  std::vector<BlockLease> leases;
  for (const Block& block : book_.records()) AddLeases(block, leases);
  return leases;
}

std::optional<Core::LeasedBlock> Core::SharedAs(const Block& block) const {
  const std::uint32_t slot = block.slot.load(std::memory_order_relaxed);
  if (slot == Block::kNoSlot) return std::nullopt;
  return LeasedBlock{
      &block, block.domain, {slot, domains_[block.domain]->GenerationOf(slot)}};
}

std::optional<std::vector<Core::LeasedBlock>> Core::FindShared(
    absl::Span<const CUdeviceptr> blocks, CUdeviceptr* bad) const {
  std::vector<LeasedBlock> found;
  for (const CUdeviceptr address : blocks) {
    const Block* const block = book_.Find(address);
    if (block == nullptr ||
        block->state.load(std::memory_order_acquire) != BlockState::kLive) {
      *bad = address;
      return std::nullopt;
    }
    // Or nobody was ever given it.
    if (const auto shared = SharedAs(*block)) found.push_back(*shared);
  }
  return found;
}

void Core::RecallSlots(absl::Span<const LeasedBlock> blocks, absl::Time until) {
  std::vector<std::vector<RecalledSlot>> by_domain(domains_.size());
  for (const LeasedBlock& one : blocks) {
    const Block& block = *one.block;
    by_domain[one.domain].push_back(
        {block.segment->number, one.slot.slot, one.slot.generation,
         BlockBook::OffsetOf(block), block.requested});
  }
  for (std::size_t i = 0; i < by_domain.size(); ++i) {
    if (by_domain[i].empty()) continue;
    domains_[i]->Recall(by_domain[i], until, &last_error_);
  }
}

absl::Status Core::Recall(absl::Span<const CUdeviceptr> blocks,
                          absl::Time until) {
  CUdeviceptr bad = 0;
  {
    platform::MutexLock lock(mutex_);
    if (const auto shared = FindShared(blocks, &bad)) {
      RecallSlots(*shared, until);
      return absl::OkStatus();
    }
  }
  return WhyNotFree(bad);
}

void Core::RecallAll(absl::Time until) {
  platform::MutexLock lock(mutex_);
  CollectHeld();
  std::vector<LeasedBlock> asked;
  for (const Block& block : book_.records()) {
    const auto shared = SharedAs(block);
    if (shared.has_value() && IsLeased(*shared)) asked.push_back(*shared);
  }
  RecallSlots(asked, until);
}

template <typename Done>
bool Core::WaitFor(Deadline deadline, Done done) {
  for (;;) {
    for (const std::unique_ptr<Domain>& domain : domains_) {
      domain->ForgetDeadPeers();
    }
    if (done()) return true;
    if (deadline.Passed()) return false;
    returned_.WaitFor(mutex_, kLookAgain);
  }
}

absl::Status Core::WaitUntilReturned(absl::Span<const CUdeviceptr> blocks,
                                     Deadline deadline) {
  platform::MutexLock lock(mutex_);
  CUdeviceptr bad = 0;
  std::optional<std::vector<LeasedBlock>> shared = FindShared(blocks, &bad);
  if (!shared.has_value()) {
    lock.Unlock();
    return WhyNotFree(bad);
  }
  const auto is_back =
      [this](const LeasedBlock& one)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !IsLeased(one); };
  const bool all_back =
      WaitFor(deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        std::erase_if(*shared, is_back);
        return shared->empty();
      });
  if (all_back) return absl::OkStatus();
  std::vector<BlockLease> leases;
  for (const LeasedBlock& one : *shared) AddLeases(*one.block, leases);
  return NotReturned(leases);
}

absl::Status Core::WaitUntilAllReturned(Deadline deadline) {
  platform::MutexLock lock(mutex_);
  const bool all_back =
      WaitFor(deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return std::none_of(domains_.begin(), domains_.end(),
                            [](const std::unique_ptr<Domain>& domain) {
                              return domain->IsAnyLeased();
                            });
      });
  if (all_back) return absl::OkStatus();
  std::vector<BlockLease> leases;
  for (const Block& block : book_.records()) AddLeases(block, leases);
  return NotReturned(leases);
}

}  // namespace vmm::pool
