#include "vmm/python/core/wait.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "vmm/python/core/detach.h"
#include "vmm/python/core/gil.h"
#include "vmm/python/core/text.h"

namespace nb = nanobind;

namespace vmm::python {
namespace {

// Shared by who waits and the thread, which may be left behind.
class Shared final : public Errands {
 public:
  ~Shared() override {
    if (outcome_.has_value()) vmmshare_error_free(outcome_->error);
  }

  bool Run(const std::function<void()>& errand) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (has_left_) return false;
    asked_ = &errand;
    changed_.notify_all();
    changed_.wait(lock, [&] { return asked_ == nullptr || has_left_; });
    return asked_ == nullptr;
  }

  bool IsAwaited() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !has_left_;
  }

  // By the thread, at its end.
  void Finish(Outcome outcome) {
    const std::lock_guard<std::mutex> lock(mutex_);
    outcome_.emplace(std::move(outcome));
    changed_.notify_all();
  }

  // By who waits, with the GIL: does what is asked meanwhile. The outcome once the
  // thread has finished, which it does within a slice or not; null until then.
  Outcome* WaitForASlice() {
    const std::function<void()>* asked = nullptr;
    {
      const WithoutGil released;
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, std::chrono::nanoseconds(kSliceNs), [&] {
        return asked_ != nullptr || outcome_.has_value();
      });
      if (outcome_.has_value()) return &*outcome_;
      asked = asked_;
    }
    if (asked == nullptr) return nullptr;
    CallPython(*asked);
    const std::lock_guard<std::mutex> lock(mutex_);
    asked_ = nullptr;
    changed_.notify_all();
    return nullptr;
  }

  // By who waits: it waits no longer.
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_left_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_left_ = false;
  // Of the thread, which waits until it has been run and is null again.
  const std::function<void()>* asked_ = nullptr;
  std::optional<Outcome> outcome_;
};

// Who waits, in a scope that it may leave by an exception.
class Waiter {
 public:
  explicit Waiter(Shared& shared) : shared_(shared) {}
  ~Waiter() { shared_.Leave(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  Shared& shared_;
};

}  // namespace

std::int64_t NanosecondsOf(nb::handle timeout) {
  if (timeout.is_none()) return VMMSHARE_FOREVER;
  if (nb::isinstance<nb::str>(timeout) || nb::isinstance<nb::bytes>(timeout)) {
    RefuseType("timeout", timeout, "seconds as a number, or None");
  }
  int overflow = 0;  // An int may be larger than any float.
  if (PyLong_Check(timeout.ptr())) {
    PyLong_AsLongLongAndOverflow(timeout.ptr(), &overflow);
  }
  if (overflow != 0) return overflow > 0 ? VMMSHARE_FOREVER : 0;
  const double seconds = nb::cast<double>(nb::float_(timeout));
  if (std::isnan(seconds)) throw nb::value_error("timeout is not a number");
  if (seconds <= 0) return 0;
  constexpr double kMostSeconds = 9e9;  // About what fits.
  if (seconds >= kMostSeconds) return VMMSHARE_FOREVER;
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::int64_t NanosecondsToAsk(nb::handle timeout) {
  return std::min(NanosecondsOf(timeout), VMMSHARE_FOREVER - 1);
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

std::optional<double> RecalledInSeconds(std::int64_t return_in_ns) {
  if (return_in_ns == VMMSHARE_FOREVER) return std::nullopt;
  return static_cast<double>(return_in_ns) / 1e9;
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

vmmshare_status AskInRounds(
    Errands& errands, std::int64_t timeout_ns, vmmshare_error** error,
    const std::function<vmmshare_status(std::int64_t, vmmshare_error**)>&
        call) {
  if (timeout_ns < VMMSHARE_FOREVER - 1) return call(timeout_ns, error);
  constexpr std::int64_t kLongestNs = 60'000'000'000;
  // What a try takes at least, for which a call does not wait at its end. What comes
  // before is no end of a round, but what a driver or an owner answers: it is told, or
  // who answers so at once would be asked again without a pause.
  constexpr std::int64_t kTryNs = 50'000'000;
  // Longer each time: whom it asks finds all that it gave up.
  for (std::int64_t round_ns = 1'000'000'000;;
       round_ns = std::min(2 * round_ns, kLongestNs)) {
    const auto begin = std::chrono::steady_clock::now();
    const vmmshare_status status = call(round_ns, error);
    const std::int64_t taken_ns = (std::chrono::steady_clock::now() - begin) /
                                  std::chrono::nanoseconds(1);
    const bool is_over = (status == VMMSHARE_DEADLINE_EXCEEDED ||
                          status == VMMSHARE_RESOURCE_EXHAUSTED) &&
                         taken_ns >= round_ns - kTryNs;
    if (!is_over || !errands.IsAwaited()) return status;
    vmmshare_error_free(std::exchange(*error, nullptr));
  }
}

std::shared_ptr<void> WaitOnAThread(
    std::function<void(Outcome&, Errands&)> call) {
  const auto shared = std::make_shared<Shared>();
  const Waiter waiter(*shared);
  try {
    Detach("vmmshare-wait", [shared, call = std::move(call)] {
      Outcome outcome;
      call(outcome, *shared);
      shared->Finish(std::move(outcome));
    });
  } catch (const std::system_error& why) {
    Raise(VMMSHARE_RESOURCE_EXHAUSTED,
          (std::string("cannot start a thread that waits: ") + why.what())
              .c_str(),
          "End threads, or raise what limits them: `ulimit -u` and `-v`, a "
          "container's pids.max (`--pids-limit`), or `ulimit -l` where the "
          "program locks its memory (mlockall).");
  }
  Outcome* outcome = nullptr;
  while ((outcome = shared->WaitForASlice()) == nullptr) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  if (outcome->status != VMMSHARE_OK) {
    Raise(outcome->status, std::exchange(outcome->error, nullptr));
  }
  return std::move(outcome->made);
}

}  // namespace vmm::python
