// WithoutGil: a scope in which other threads run Python; WithGil: one, within it, in
// which this one does.
#ifndef VMMSHARE_VMM_PYTHON_CORE_GIL_H_
#define VMMSHARE_VMM_PYTHON_CORE_GIL_H_

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

namespace vmm::python {

// As nanobind's gil_scoped_release, but for a daemon thread that comes back
// while the interpreter ends. Before 3.14 CPython ends it by pthread_exit(),
// which unwinds the stack, and this destructor would end the process. Such a
// thread stays here instead, as later versions have it, until the process ends.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// A scope with the GIL, within one without it: for what C calls back. A daemon
// thread stays here as above.
class WithGil {
 public:
  WithGil() {
    try {
      state_ = PyGILState_Ensure();
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_GIL_H_
