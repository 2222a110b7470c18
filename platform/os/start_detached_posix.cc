#include "platform/os/start_detached_posix.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace vmm::platform {

bool StartDetached(std::function<void()> body) {
  // A thread begins with the signals blocked that whoever starts it has.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error&) {
    started = false;
  } catch (const std::bad_alloc&) {  // In any case the signals are put back.
    started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace vmm::platform
