#include "platform/hostdriver/pieces.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace vmm::hostdriver {
namespace {

// Copies of up to so much are seen word by word by others, who may look at them
// or write meanwhile: a device does not tear a word.
constexpr std::size_t kWhole = 4096;

bool IsOfWords(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(std::uint64_t) == 0;
}

void CopyBytes(std::byte* to, const std::byte* from, std::size_t size) {
  const bool apart = to + size <= from || from + size <= to;
  if (size > kWhole || size % sizeof(std::uint64_t) != 0 || !apart ||
      !IsOfWords(to) || !IsOfWords(from)) {
    std::memmove(to, from, size);
    return;
  }
  auto* const out = reinterpret_cast<std::uint64_t*>(to);
  // An atomic_ref needs what it could write to.
  auto* const in =
      reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
  for (std::size_t i = 0; i < size / sizeof(std::uint64_t); ++i) {
    std::atomic_ref<std::uint64_t>(out[i]).store(
        std::atomic_ref<std::uint64_t>(in[i]).load());
  }
}

}  // namespace

void CopyPieces(std::vector<Piece> to, std::vector<Piece> from) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < to.size()) {
    const std::size_t size = std::min(to[i].size, from[j].size);
    CopyBytes(to[i].data, from[j].data, size);
    for (Piece* piece : {&to[i], &from[j]}) {
      piece->data += size;
      piece->size -= size;
    }
    if (to[i].size == 0) ++i;
    if (from[j].size == 0) ++j;
  }
}

void FillPieces(const std::vector<Piece>& pieces, std::uint32_t value,
                std::size_t unit) {
  for (const Piece& piece : pieces) {
    if (unit == 1) {
      std::memset(piece.data, static_cast<int>(value), piece.size);
      continue;
    }
    for (std::size_t at = 0; at + unit <= piece.size; at += unit) {
      std::memcpy(piece.data + at, &value, unit);
    }
  }
}

}  // namespace vmm::hostdriver
