// WithoutGil: a scope in which other threads run Python; WithGil: one, within it, in
// which this one does.
#ifndef VMMSHARE_VMM_PYTHON_CORE_GIL_H_
#define VMMSHARE_VMM_PYTHON_CORE_GIL_H_

#include <nanobind/nanobind.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace vmm::python {

// As nanobind's gil_scoped_release, but for a daemon thread that comes back
// while the interpreter ends. Before 3.14 CPython ends it by pthread_exit(),
// which unwinds the stack, and this destructor would end the process. Such a
// thread stays here instead, as later versions have it, until the process ends.
class WithoutGil {
 public:
  WithoutGil()
      : state_(PyEval_SaveThread()), outer_(std::exchange(is_here_, true)) {}
  ~WithoutGil() {
    is_here_ = outer_;
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Whether this thread is in such a scope, and so without the GIL. It may be
  // without it elsewhere too.
  static bool IsHere() { return is_here_; }

 private:
  friend class WithGil;
  static inline thread_local bool is_here_ = false;
  PyThreadState* const state_;
  const bool outer_;
};

// With the GIL: what `body` returns, which calls Python. A daemon thread that CPython
// ends in it stays as above: pthread_exit() may unwind neither the library's frames
// nor nanobind's.
template <typename Body>
auto CallPython(const Body& body) {
  try {
    return body();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

// A scope with the GIL, within one without it: for what C calls back. A daemon
// thread stays here as above.
class WithGil {
 public:
  WithGil() : outer_(std::exchange(WithoutGil::is_here_, false)) {
    try {
      state_ = PyGILState_Ensure();
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  ~WithGil() {
    PyGILState_Release(state_);
    WithoutGil::is_here_ = outer_;
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

  // What `body` returns, which calls Python.
  template <typename Body>
  static auto Run(const Body& body) {
    const WithGil held;
    return CallPython(body);
  }

 private:
  const bool outer_;
  PyGILState_STATE state_;
};

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_GIL_H_
