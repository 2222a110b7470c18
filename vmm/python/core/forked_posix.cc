#include <pthread.h>

#include <atomic>

#include "vmm/python/core/error.h"
#include "vmm/python/core/forked.h"

namespace vmm::python {
namespace {

// Counted, for getpid() is a system call on every use.
std::uint64_t ForksSoFar() {
  static std::atomic<std::uint64_t> forks = 0;
  static const int installed =
      pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(installed);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

MadeHere::MadeHere() : forks_(ForksSoFar()) {}

bool MadeHere::is_still_here() const { return forks_ == ForksSoFar(); }

void MadeHere::CheckStillHere() const {
  if (is_still_here()) return;
  Raise(VMMSHARE_FAILED_PRECONDITION,
        "the object is the parent's, and this is a forked child",
        "Make what the child needs in the child, or start it by spawn.");
}

}  // namespace vmm::python
