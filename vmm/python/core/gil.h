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

// A daemon thread that CPython ends stays here until the process ends, as CPython
// 3.14 itself has it. Versions before end it by pthread_exit(), which unwinds the
// stack: out of a destructor that would end the process, and neither the library's
// frames nor nanobind's may be unwound.
[[noreturn]] inline void StayForEver() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// As nanobind's gil_scoped_release, but that a daemon thread which comes back
// while the interpreter ends stays, as above.
class WithoutGil {
 public:
  WithoutGil()
      : state_(PyEval_SaveThread()), outer_(std::exchange(is_here_, true)) {}
  ~WithoutGil() {
    is_here_ = outer_;
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      StayForEver();
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
// ends in it stays, as above.
template <typename Body>
auto CallPython(const Body& body) {
  try {
    return body();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    StayForEver();
  }
}

// A scope with the GIL, within one without it: for what C calls back. A daemon
// thread stays, as above.
class WithGil {
 public:
  WithGil() : outer_(std::exchange(WithoutGil::is_here_, false)) {
    try {
      state_ = PyGILState_Ensure();
    } catch (...) {
      StayForEver();
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
