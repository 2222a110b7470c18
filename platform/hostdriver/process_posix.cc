#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "platform/hostdriver/memory_os.h"
#include "platform/hostdriver/own_descriptors_posix.h"

namespace vmm::hostdriver {

std::uint64_t UserId() { return geteuid(); }

void WatchProcess(void (*on_fork)(), void (*on_exit)()) {
  pthread_atfork(nullptr, nullptr, on_fork);
  pthread_atfork(nullptr, nullptr, &CloseAllOwn);
  std::atexit(on_exit);
}

bool StartThread(std::function<void()> main) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(std::move(main)).detach();
  } catch (const std::system_error&) {
    started = false;
  } catch (const std::bad_alloc&) {  // In any case the signals are put back.
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace vmm::hostdriver
