#include "vmm/python/core/wait.h"

#include <nanobind/stl/string.h>

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Shared by who waits and the thread, which may be left behind.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Outcome outcome;
  ~Shared() { vmmshare_error_free(outcome.error); }
};

bool IsDoneWithinASlice(Shared& shared) {
  const WithoutGil released;
  std::unique_lock<std::mutex> lock(shared.mutex);
  return shared.changed.wait_for(lock, std::chrono::nanoseconds(kSliceNs),
                                 [&] { return shared.done; });
}

}  // namespace

std::int64_t NanosecondsOf(nb::handle timeout) {
  if (timeout.is_none()) return VMMSHARE_FOREVER;
  if (nb::isinstance<nb::str>(timeout) || nb::isinstance<nb::bytes>(timeout)) {
    RefuseType("timeout", timeout, "seconds as a number, or None");
  }
  const double seconds = nb::cast<double>(nb::float_(timeout));
  if (std::isnan(seconds)) throw nb::value_error("timeout is not a number");
  if (seconds <= 0) return 0;
  constexpr double kMostSeconds = 9e9;  // About what fits.
  if (seconds >= kMostSeconds) return VMMSHARE_FOREVER;
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::int64_t NanosecondsWithin(double seconds) {
  constexpr double kMostSeconds = 1e9;  // A time that far from now fits.
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {  // Nor NaN.
    throw nb::value_error(
        ("within: expected 0 to 1e9 seconds, not " + std::to_string(seconds))
            .c_str());
  }
  return static_cast<std::int64_t>(seconds * 1e9);
}

void RaiseTimedOut(std::int64_t timeout_ns, vmmshare_error* error) {
  const std::unique_ptr<vmmshare_error, decltype(&vmmshare_error_free)> own(
      error, &vmmshare_error_free);
  const auto seconds =
      nb::float_(static_cast<double>(timeout_ns) / 1e9).attr("__round__")(3);
  const bool had_a_turn = error != nullptr;
  const std::string message =
      "not within the timeout of " + nb::cast<std::string>(nb::str(seconds)) +
      " s: " +
      (had_a_turn ? vmmshare_error_message(error)
                  : "another thread's call on the same object was in progress");
  Raise(VMMSHARE_DEADLINE_EXCEEDED, message.c_str(),
        had_a_turn ? vmmshare_error_remedy(error)
                   : "It is for one thread at a time: let that call end, or "
                     "wait for longer.");
}

std::shared_ptr<void> WaitOnAThread(std::function<void(Outcome&)> call) {
  const auto shared = std::make_shared<Shared>();
  try {
    std::thread([shared, call = std::move(call)] {
      Outcome outcome;
      call(outcome);
      const std::lock_guard<std::mutex> lock(shared->mutex);
      shared->outcome = std::move(outcome);
      shared->done = true;
      shared->changed.notify_all();
    }).detach();
  } catch (const std::system_error& why) {
    Raise(VMMSHARE_RESOURCE_EXHAUSTED,
          (std::string("cannot start a thread that waits: ") + why.what())
              .c_str(),
          "Look at `ulimit -u` and `ulimit -v`, and end threads.");
  }
  while (!IsDoneWithinASlice(*shared)) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  Outcome& outcome = shared->outcome;
  if (outcome.status != VMMSHARE_OK) {
    Raise(outcome.status, std::exchange(outcome.error, nullptr));
  }
  return std::move(outcome.made);
}

}  // namespace vmm::python
