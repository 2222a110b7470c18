// What is in a fence's memory, and what the CPU does with it; internal to vmm/.
//
// The memory is the host's, mapped by the CPU and the GPUs of every process
// that has the fence. The layout is in docs/wire_format.md, the reasons in
// docs/ordering.md.
//
// A word never gets smaller, not even when its memory becomes another fence's:
// a fence counts from a base, and the base of the next one is where the last
// one ended. So work of a forgotten fence that is still on some stream harms
// nobody: a wait that was satisfied stays so.
#ifndef VMMSHARE_VMM_SYNC_INTERNAL_FENCE_WORDS_H_
#define VMMSHARE_VMM_SYNC_INTERNAL_FENCE_WORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "vmm/sync/fence_pool.h"

namespace vmm::fence {

// One fence's numbers end here, at the value that says that it is abandoned.
// Of the 63 bits that the GPU compares, 15 are left for the fences that have
// the same memory one after another, if each of them is abandoned.
inline constexpr std::uint64_t kSpan = std::uint64_t{1} << 48;
// Bases up to this leave room for one more fence.
inline constexpr std::uint64_t kLastBase =
    (std::uint64_t{1} << 63) - 1 - 2 * kSpan;

// Hostile: any process that has the fence can write anything. So each word is
// fetched once and then judged.
struct Words {
  // Written by GPUs and CPUs: base + the fence's value. Alone in its cache
  // lines, for it is what everybody polls.
  std::atomic<std::uint64_t> value;
  std::uint64_t unused[15];
  // A random number of the pool's: this memory was a fence before.
  std::atomic<std::uint64_t> tag;
  std::atomic<std::uint64_t> base;
  // 0, or one more than `value` was when the fence was abandoned.
  std::atomic<std::uint64_t> abandoned;
  std::uint64_t unused_too[13];
};
static_assert(sizeof(Words) == kFenceBytes);
static_assert(offsetof(Words, tag) == 128);
static_assert(offsetof(Words, abandoned) == 144);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// How far a fence is. `value` is the fence's own, without its base.
struct Progress {
  std::uint64_t value = 0;
  bool abandoned = false;
  bool corrupt = false;  // No value that this fence can have.
};

// How far a fence is that has come to `raw`, which is a value with its base.
Progress ProgressOf(std::uint64_t raw, std::uint64_t base, bool abandoned);

// Also sees to it that a fence that is abandoned stays so for streams: a
// signal that was on its way then has put a smaller value there.
Progress Look(Words& words, std::uint64_t base);

// Releases every wait. The fence keeps the value that it had.
void Abandon(Words& words, std::uint64_t base);

// Makes a fence of value 0 of memory that was handed out. Returns its base;
// above kLastBase this memory is worn out. REQUIRES: no other process uses it.
std::uint64_t Renew(Words& words, std::uint64_t tag);

// Raises `word` to `value`; returns whether it was less.
bool Raise(std::atomic<std::uint64_t>& word, std::uint64_t value);

}  // namespace vmm::fence

#endif  // VMMSHARE_VMM_SYNC_INTERNAL_FENCE_WORDS_H_
