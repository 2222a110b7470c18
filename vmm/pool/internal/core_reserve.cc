// Where a pool gets memory before it is needed.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "vmm/pool/internal/core.h"

namespace vmm::pool {

absl::Status Core::Reserve(std::uint64_t bytes, CUstream stream,
                           SharingDomain domain) {
  RETURN_IF_ERROR(CheckStream(stream));
  const platform::MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckDomain(domain));
  if (options_.cap != 0 && bytes > options_.cap) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot reserve ", bytes, " bytes: the pool's cap is ",
                     options_.cap, " bytes"));
  }
  const auto number = static_cast<std::uint32_t>(domain);
  std::uint64_t given_back = given_back_;
  std::uint64_t added = 0;
  absl::Status reserved = ReserveInTurn(bytes, stream, number, &added);
  // First at the cap, and then because the device is full.
  for (int i = 0; i < 2 && absl::IsResourceExhausted(reserved); ++i) {
    // What is idle here is counted as free.
    std::vector<std::uint64_t> least = keep_idle_;
    least[number] = ~std::uint64_t{0};
    const bool has_asked_others = GiveUpAll(least, !is_at_cap_);
    // Or the answer would be the same.
    if (!has_asked_others && given_back_ == given_back) break;
    given_back = given_back_;
    reserved = ReserveInTurn(bytes, stream, number, &added);
  }
  if (reserved.ok()) {
    keep_idle_[number] = std::max(keep_idle_[number], bytes);
  } else if (added != 0) {
    // Nobody has asked for as much as it got.
    std::uint64_t idle = 0;
    for (const Segment* segment : Idle()) idle += segment->size;
    ReleaseIdle(idle - std::min(idle, added), keep_idle_);
  }
  return reserved;
}

absl::Status Core::ReserveInTurn(std::uint64_t bytes, CUstream stream,
                                 std::uint32_t domain, std::uint64_t* added) {
  while (growing_) changed_.Wait(mutex_);
  growing_ = true;
  const absl::Cleanup ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    growing_ = false;
    changed_.NotifyAll();
  };
  RETURN_IF_ERROR(NoteContext(stream));
  for (bool is_collected = false;;) {
    const std::uint64_t free = BytesFreeFor(stream, domain);
    if (free >= bytes) return absl::OkStatus();
    if (!std::exchange(is_collected, true)) {
      CollectAll().IgnoreError();  // Told in last_error_.
      continue;
    }
    Request next;
    next.size =
        RoundUpToUnit(std::min(bytes - free, options_.max_segment_size));
    next.alignment = Range::kUnit;
    next.domain = domain;
    const std::uint64_t before = reserved_;
    absl::Status grown = AddMemory(
        next, std::max(next.size, options_.first_segment_size), nullptr);
    if (!grown.ok()) {
      return platform::Annotate(
          grown, absl::StrCat("cannot reserve ", bytes, " bytes, of which ",
                              free, " are free"));
    }
    *added += reserved_ - std::min(reserved_, before);
  }
}

std::uint64_t Core::BytesFreeFor(CUstream stream, std::uint32_t domain) {
  Heap& heap = *heaps_[domain];
  std::uint64_t free = 0;
  for (const std::unique_ptr<Range>& range : heap.ranges()) {
    free += range->free();
  }
  if (const Backlog* const own = heap.Find(stream)) free += own->bytes();
  return free;
}

}  // namespace vmm::pool
