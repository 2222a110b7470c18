#include "platform/hostdriver/own_descriptors_posix.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace vmm::hostdriver {
namespace {

// A bit for each descriptor. A process may have more of them only where its
// limit was raised by far: those a child keeps.
constexpr std::size_t kBits = 64;
constexpr std::size_t kMostNoted = std::size_t{1} << 20;
std::atomic<std::uint64_t> noted[kMostNoted / kBits];
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
// So many of them were ever in use: a fork takes no longer than it must.
std::atomic<std::size_t> words{0};

std::uint64_t BitOf(std::size_t fd) { return std::uint64_t{1} << (fd % kBits); }

}  // namespace

int AboveStandardStreams(int fd) {
  if (fd < 0 || fd >= kLowestOwn) return fd;
  const int higher = fcntl(fd, F_DUPFD_CLOEXEC, kLowestOwn);
  close(fd);
  return higher;
}

void NoteOwn(int fd) {
  const auto number = static_cast<std::size_t>(fd);
  if (number >= kMostNoted) return;
  const std::size_t needed = number / kBits + 1;
  std::size_t seen = words.load();
  while (seen < needed && !words.compare_exchange_weak(seen, needed)) {
  }
  noted[number / kBits].fetch_or(BitOf(number));
}

void CloseOwn(int fd) {
  const auto number = static_cast<std::size_t>(fd);
  // Before it is closed: from then on others may be given the number.
  if (number < kMostNoted &&
      (noted[number / kBits].fetch_and(~BitOf(number)) & BitOf(number)) == 0) {
    return;
  }
  close(fd);
}

void CloseAllOwn() {
  for (std::size_t i = 0; i < words.load(); ++i) {
    // Taken out, so that a child of this child closes nothing of its own.
    for (std::uint64_t bits = noted[i].exchange(0); bits != 0;
         bits &= bits - 1) {
      close(static_cast<int>(i * kBits +
                             static_cast<std::size_t>(std::countr_zero(bits))));
    }
  }
}

}  // namespace vmm::hostdriver
