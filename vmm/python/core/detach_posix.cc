#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

#include "vmm/python/core/detach.h"

namespace vmm::python {
namespace {

// A thread begins with the signals blocked that whoever starts it has.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    ::sigfillset(&blocked);
    // Blocked, one of these would end the process without its handler.
    for (const int of_a_fault :
         {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) {
      ::sigdelset(&blocked, of_a_fault);
    }
    ::pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void Detach(const char* name, std::function<void()> body) {
  const SignalsBlocked blocked;
  std::thread([name, body = std::move(body)] {
    ::pthread_setname_np(::pthread_self(), name);
    body();
  }).detach();
}

}  // namespace vmm::python
