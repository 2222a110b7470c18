// Programs of another architecture than the machine's.
#ifndef VMMSHARE_TESTS_SUPPORT_EMULATOR_H_
#define VMMSHARE_TESTS_SUPPORT_EMULATOR_H_

#include <cstdlib>
#include <string>
#include <vector>

namespace vmm::testing {

// Whether the tests run under an emulator that the kernel does not know, so
// that no program can be started without it: $VMMSHARE_TEST_EMULATOR.
inline bool IsEmulated() {
  return std::getenv("VMMSHARE_TEST_EMULATOR") != nullptr;
}

// Why a race for a shared block shows nothing under an emulator. The table
// needs what C++ and 64-bit Arm promise: a sequentially consistent store comes
// before a load of the same thread that follows it. qemu-user 7.2 on x86-64
// gives STLR and then LDAR without a barrier between them; two threads that
// each store and then load both read the old value, in one round of fifty.
inline constexpr char kEmulatorReorders[] =
    "qemu-user: lets a load pass a sequentially consistent store before it";

// Why a program that starts itself, or a death test that needs a driver, is not
// run: the kernel knows no such program, and a forked child has no driver.
inline constexpr char kStartsNothing[] =
    "under this emulator no program can start itself";

// Why nothing is forked again and again beside busy threads. In the child of a
// fork qemu-user 7.2 waits for a lock of its own that another thread had: in one
// of 100 runs of 30 forks (natively in none of 5,575), on a futex in its own data.
inline constexpr char kForksWithLocks[] =
    "qemu-user: a fork beside busy threads may leave the emulator locked";

// Why it is not tested here what a forked child does not get: qemu-user takes
// madvise(MADV_DONTFORK) for a hint and leaves it out.
inline constexpr char kForksAllMemory[] =
    "qemu-user: a forked child has all memory of its parent";

// The words with which `program` is started.
inline std::vector<std::string> CommandFor(const std::string& program) {
  const char* emulator = std::getenv("VMMSHARE_TEST_EMULATOR");
  if (emulator == nullptr) return {program};
  return {emulator, program};
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_SUPPORT_EMULATOR_H_
