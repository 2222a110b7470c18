#include "vmm/sync/internal/fence_words.h"

#include <algorithm>

namespace vmm::fence {
namespace {

// How often Look() tries to write what somebody else keeps overwriting.
constexpr int kTries = 16;

}  // namespace

bool Raise(std::atomic<std::uint64_t>& word, std::uint64_t value) {
  std::uint64_t now = word.load();
  while (now < value) {
    if (word.compare_exchange_weak(now, value)) return true;
  }
  return false;
}

Progress ProgressOf(std::uint64_t raw, std::uint64_t base, bool abandoned) {
  const bool corrupt = raw < base || raw >= base + kSpan;
  return {corrupt ? 0 : raw - base, abandoned, corrupt};
}

Progress Look(Words& words, std::uint64_t base) {
  const std::uint64_t end = base + kSpan;
  std::uint64_t raw = words.value.load();
  std::uint64_t abandoned = words.abandoned.load();
  if (abandoned != 0) {
    // A hostile peer could write as fast as this does.
    for (int tries = 0; raw != end && tries < kTries; ++tries) {
      // What came first counts as signalled; hidden by `end` it would be lost.
      if (raw < end) Raise(words.abandoned, raw + 1);
      if (words.value.compare_exchange_weak(raw, end)) break;
    }
    abandoned = words.abandoned.load();
    raw = abandoned - 1;
  }
  return ProgressOf(raw, base, abandoned != 0);
}

void Abandon(Words& words, std::uint64_t base) {
  const std::uint64_t raw = words.value.load();
  // Once: later `value` says where fences end, not where this one was.
  std::uint64_t never = 0;
  words.abandoned.compare_exchange_strong(never,
                                          std::min(raw, base + kSpan - 1) + 1);
  static_cast<void>(Look(words, base));
}

std::uint64_t Renew(Words& words, std::uint64_t tag) {
  std::uint64_t base = 0;
  if (words.tag.load() == tag) {
    base = words.value.load();
    // Its end may be hidden by a signal that came after.
    if (words.abandoned.load() != 0) {
      base = std::max(base, words.base.load() + kSpan);
    }
  }
  if (base > kLastBase) return base;
  // Ordered by what makes the fence known to others: a ticket's generation, a
  // call of the driver.
  words.value.store(base, std::memory_order_relaxed);
  words.base.store(base, std::memory_order_relaxed);
  words.abandoned.store(0, std::memory_order_relaxed);
  words.tag.store(tag, std::memory_order_relaxed);
  return base;
}

}  // namespace vmm::fence
