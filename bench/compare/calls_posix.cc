#include <signal.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include "bench/compare/calls.h"

namespace bench::compare {

#if defined(__linux__) && defined(__x86_64__)
namespace {

// linux/prctl.h, since 5.11; older headers lack them.
constexpr int kSetDispatch = 59;
constexpr unsigned long kOff = 0;
constexpr unsigned long kOn = 1;
constexpr char kAllow = 0;
constexpr char kBlock = 1;

// What the kernel reads at every system call of the thread.
thread_local volatile char selector = kAllow;

// A system call was made, and not performed. Lets all through from here on and
// has this one made again: its number is still in its register, and the
// instruction is 2 bytes long.
void OnBlockedCall(int, siginfo_t*, void* context) {
  selector = kAllow;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] -= 2;
}

}  // namespace

bool StartSystemCallWatch() {
  static const bool handled = [] {
    struct sigaction action {};
    action.sa_sigaction = &OnBlockedCall;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGSYS, &action, nullptr) == 0;
  }();
  selector = kAllow;
  return handled && prctl(kSetDispatch, kOn, 0UL, 0UL, &selector) == 0;
}

void StopSystemCallWatch() { prctl(kSetDispatch, kOff, 0UL, 0UL, 0UL); }

void ArmSystemCallWatch() { selector = kBlock; }

bool DisarmSystemCallWatch() {
  const bool called = selector == kAllow;
  selector = kAllow;
  return called;
}

#else

bool StartSystemCallWatch() { return false; }
void StopSystemCallWatch() {}
void ArmSystemCallWatch() {}
bool DisarmSystemCallWatch() { return false; }

#endif

}  // namespace bench::compare
