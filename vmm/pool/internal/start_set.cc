#include "vmm/pool/internal/start_set.h"

#include <bit>
#include <cstddef>

namespace vmm::pool {
namespace {

constexpr unsigned kBits = 6;  // Of a number: which bit of a word.
constexpr std::uint64_t kMask = (std::uint64_t{1} << kBits) - 1;

std::uint64_t BitOf(std::uint64_t number) {
  return std::uint64_t{1} << (number & kMask);
}

}  // namespace

StartSet::StartSet(std::uint64_t limit) {
  do {
    limit = (limit + kMask) >> kBits;
    levels_.emplace_back(static_cast<std::size_t>(limit));
  } while (limit > 1);
}

void StartSet::Insert(std::uint64_t number) {
  for (std::vector<std::uint64_t>& level : levels_) {
    std::uint64_t& word = level[static_cast<std::size_t>(number >> kBits)];
    const bool was_empty = word == 0;
    word |= BitOf(number);
    if (!was_empty) return;
    number >>= kBits;
  }
}

void StartSet::Erase(std::uint64_t number) {
  for (std::vector<std::uint64_t>& level : levels_) {
    std::uint64_t& word = level[static_cast<std::size_t>(number >> kBits)];
    word &= ~BitOf(number);
    if (word != 0) return;
    number >>= kBits;
  }
}

std::optional<std::uint64_t> StartSet::AtOrBelow(std::uint64_t number) const {
  // Up until a word has something at or below, and down along the highest.
  std::uint64_t reach = BitOf(number) | (BitOf(number) - 1);
  for (std::size_t up = 0; up < levels_.size(); ++up) {
    std::uint64_t at = number >> kBits;
    std::uint64_t found = levels_[up][static_cast<std::size_t>(at)] & reach;
    if (found != 0) {
      for (std::size_t down = up;; --down) {
        at = (at << kBits) | static_cast<unsigned>(std::bit_width(found) - 1);
        if (down == 0) return at;
        found = levels_[down - 1][static_cast<std::size_t>(at)];
      }
    }
    number = at;
    reach = BitOf(number) - 1;  // What lies below it is all lower.
  }
  return std::nullopt;
}

}  // namespace vmm::pool
