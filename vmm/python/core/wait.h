// Waits that Ctrl-C ends, and that do not hold the GIL.
#ifndef VMMSHARE_VMM_PYTHON_CORE_WAIT_H_
#define VMMSHARE_VMM_PYTHON_CORE_WAIT_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "vmm/c/base.h"
#include "vmm/python/core/error.h"
#include "vmm/python/core/gil.h"

namespace vmm::python {

// Of a `timeout` in seconds; None waits for ever. ValueError for NaN.
std::int64_t NanosecondsOf(nanobind::handle timeout);

// The same for a call that asks a server, which may have no room or have released
// the memory: without an end the C interface asks once, and None is 292 years here.
std::int64_t NanosecondsToAsk(nanobind::handle timeout);

// Of the seconds of a recall. ValueError unless they are 0 to 1e9, 30 years.
std::int64_t NanosecondsWithin(double seconds);
// Until what is asked back is to be given back; none while nobody asks, which is
// VMMSHARE_FOREVER.
std::optional<double> RecalledInSeconds(std::int64_t return_in_ns);

// How long a wait goes on before it looks whether Ctrl-C was pressed.
inline constexpr std::int64_t kSliceNs = 50'000'000;

// What is left of a wait of `timeout_ns` that began then; VMMSHARE_FOREVER of one
// without an end.
inline std::int64_t LeftOf(std::int64_t timeout_ns,
                           std::chrono::steady_clock::time_point begin) {
  if (timeout_ns == VMMSHARE_FOREVER) return VMMSHARE_FOREVER;
  const std::int64_t waited =
      (std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1);
  return std::max<std::int64_t>(timeout_ns - waited, 0);
}

// DeadlineExceeded for a wait of `timeout_ns`, with what `error`, which it takes,
// says of the last look. Null: another thread had the turn then.
[[noreturn]] void RaiseTimedOut(std::int64_t timeout_ns, vmmshare_error* error);

// For a `call(timeout_ns, &error)` that may be repeated after a
// DEADLINE_EXCEEDED, which may come early, as if it had waited all the time.
template <typename Call>
void WaitInSlices(std::int64_t timeout_ns, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t left = timeout_ns;
  for (;;) {
    const std::int64_t slice = std::min(left, kSliceNs);
    vmmshare_error* error = nullptr;
    vmmshare_status status;
    {
      const WithoutGil released;
      status = call(slice, &error);
    }
    if (status == VMMSHARE_OK) return;
    if (status != VMMSHARE_DEADLINE_EXCEEDED) Raise(status, error);
    left = LeftOf(timeout_ns, begin);
    if (left == 0) RaiseTimedOut(timeout_ns, error);
    vmmshare_error_free(error);
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

// What a call has come to.
struct Outcome {
  vmmshare_status status = VMMSHARE_OK;
  vmmshare_error* error = nullptr;
  std::shared_ptr<void> made;  // With the deleter that closes it.
};

// What a call on a thread of its own asks of the thread that waits for it.
// Thread-safe.
class Errands {
 public:
  Errands() = default;
  virtual ~Errands() = default;
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // Runs `errand` on the thread that waits, with the GIL, and returns once it has
  // run. What it throws ends the wait. False when nobody waits, or then: it has
  // not run, or not to its end.
  virtual bool Run(const std::function<void()>& errand) = 0;
  // Whether somebody waits.
  virtual bool IsAwaited() = 0;
};

// For a call that cannot be repeated: runs it on a thread of its own, and
// returns what it made. After Ctrl-C the call goes on up to its own timeout, unless
// it asks who waits; what it makes then is closed. So it may refer only to what it
// owns, but for its errands.
std::shared_ptr<void> WaitOnAThread(
    std::function<void(Outcome&, Errands&)> call);
inline std::shared_ptr<void> WaitOnAThread(std::function<void(Outcome&)> call) {
  return WaitOnAThread(
      [call = std::move(call)](Outcome& outcome, Errands&) { call(outcome); });
}

// Must() of `call(error)` on a thread of its own.
template <typename Call>
void MustOnAThread(Call call) {
  WaitOnAThread([call = std::move(call)](Outcome& outcome) mutable {
    outcome.status = call(&outcome.error);
  });
}

// The same for a call that makes a `T`, which `close` closes.
template <typename T, typename Close, typename Call>
std::shared_ptr<T> MakeClosedByOnAThread(Close close, Call call) {
  return std::static_pointer_cast<T>(
      WaitOnAThread([close, call = std::move(call)](Outcome& outcome) {
        T* made = nullptr;
        outcome.status = call(&made, &outcome.error);
        if (made != nullptr) outcome.made = std::shared_ptr<T>(made, close);
      }));
}
template <typename T, typename Call>
std::shared_ptr<T> MakeOnAThread(void (*close)(T*), Call call) {
  return MakeClosedByOnAThread<T>(close, std::move(call));
}

// A `call(timeout_ns, error)` of NanosecondsToAsk(), on the thread of `errands`, that
// may be repeated when it is over its time. Without an end it is made in rounds, so
// that it does not go on asking for who waits no more.
vmmshare_status AskInRounds(
    Errands& errands, std::int64_t timeout_ns, vmmshare_error** error,
    const std::function<vmmshare_status(std::int64_t, vmmshare_error**)>& call);

// The same for a `call(timeout_ns, made, error)` that connects to somebody anew each
// time.
template <typename T, typename Close, typename Call>
std::shared_ptr<T> ConnectOnAThread(Close close, std::int64_t timeout_ns,
                                    Call call) {
  return std::static_pointer_cast<T>(
      WaitOnAThread([close, timeout_ns, call = std::move(call)](
                        Outcome& outcome, Errands& errands) {
        T* made = nullptr;
        outcome.status =
            AskInRounds(errands, timeout_ns, &outcome.error,
                        [&](std::int64_t round_ns, vmmshare_error** error) {
                          return call(round_ns, &made, error);
                        });
        if (made != nullptr) outcome.made = std::shared_ptr<T>(made, close);
      }));
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_WAIT_H_
