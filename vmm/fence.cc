#include "vmm/fence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "platform/abandon.h"
#include "platform/annotate.h"
#include "vmm/fence/source.h"
#include "vmm/fence/words.h"

namespace vmm {
namespace {

// A wait on the host looks all the time for so long: a GPU's signal takes some
// 10 us (measured). Then it sleeps, from the shorter pause to the longer.
constexpr absl::Duration kLookAllTheTime = absl::Microseconds(50);
constexpr absl::Duration kShortestPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);
// Between two looks at the clock: that costs more than a look at the fence.
constexpr int kLooks = 64;

std::string WordsOf(std::uint64_t value, CUdeviceptr address) {
  return absl::StrCat("(address=0x", absl::Hex(address), ", value=", value,
                      ")");
}

absl::Status WhyNotWorth(const FenceWatch& watch) {
  if (watch.signaller != nullptr) {
    absl::StatusOr<bool> ended = watch.signaller->HasExited();
    if (!ended.ok()) return ended.status();
    if (*ended) {
      return absl::UnavailableError(
          absl::StrCat("process ", watch.signaller->pid(),
                       ", which was to signal it, has ended. Abandon() lets go "
                       "of streams that wait"));
    }
  }
  return watch.still_worth ? watch.still_worth() : absl::OkStatus();
}

}  // namespace

Fence& Fence::operator=(Fence&& other) noexcept {
  if (this != &other) {
    Release().IgnoreError();  // Nothing, if it is moved from.
    source_ = std::move(other.source_);
    words_ = other.words_;
    base_ = other.base_;
    enqueued_ = other.enqueued_;
    last_stream_ = other.last_stream_;
    last_ = other.last_;
    block_ = std::move(other.block_);
  }
  return *this;
}

Fence::~Fence() { Release().IgnoreError(); }

absl::Status Fence::Release() {
  if (source_ == nullptr) {
    return absl::FailedPreconditionError(
        "the fence was given back, or moved from, already");
  }
  std::shared_ptr<fence::Source> source = std::move(source_);
  if (source->IsOfAnotherProcess()) {
    // The parent's, and maybe half changed by a thread that is not here.
    block_.reset();
    platform::Abandon(std::move(source));
    return absl::FailedPreconditionError(
        "the fence is the parent process's: a forked child owns none");
  }
  source->Release({words_, base_, enqueued_, std::move(block_)});
  block_.reset();
  return absl::OkStatus();
}

absl::Status Fence::CheckUsable() const {
  if (source_ == nullptr) {
    return absl::FailedPreconditionError(
        "the fence was given back, or moved from");
  }
  if (source_->IsOfAnotherProcess()) {
    return absl::FailedPreconditionError(
        "the fence is the parent process's: a forked child cannot use it");
  }
  return absl::OkStatus();
}

absl::Status Fence::CheckValue(std::uint64_t value) const {
  absl::Status usable = CheckUsable();
  if (!usable.ok()) return usable;
  if (value <= kMaxFenceValue) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a fence cannot have the value ", value,
                   "; expected at most ", kMaxFenceValue));
}

absl::Status Fence::Aborted(std::uint64_t reached) const {
  return absl::AbortedError(
      absl::StrCat("the fence was abandoned at the value ", reached));
}

CUdeviceptr Fence::address() const {
  return static_cast<CUdeviceptr>(
      reinterpret_cast<std::uintptr_t>(&words_->value));
}

namespace {

absl::Status Corrupt() {
  return absl::DataLossError(
      "the fence's memory holds no value that it can have: a process that has "
      "the pool wrote to it");
}

}  // namespace

absl::StatusOr<std::uint64_t> Fence::CheckForwards(std::uint64_t value,
                                                   std::uint64_t last) const {
  absl::Status sane = CheckValue(value);
  if (!sane.ok()) return sane;
  if (value == 0) {
    return absl::InvalidArgumentError(
        "a fence cannot be signalled 0: that is where it begins");
  }
  const fence::Progress now = fence::Look(*words_, base_);
  if (now.corrupt) return Corrupt();
  if (now.abandoned) return Aborted(now.value);
  const std::uint64_t raw = base_ + value;
  const std::uint64_t reached = base_ + now.value;
  if (raw <= std::max(last, reached)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a fence cannot go from ", std::max(last, reached) - base_, " to ",
        value, ": its values grow",
        raw > reached ? "; the first is on this stream already" : ""));
  }
  return reached;
}

absl::Status Fence::Signal(CUstream stream, std::uint64_t value) {
  absl::StatusOr<std::uint64_t> reached =
      CheckForwards(value, stream == last_stream_ ? last_ : 0);
  if (!reached.ok()) return reached.status();
  const platform::Driver& driver = source_->driver();
  const std::uint64_t raw = base_ + value;
  // The default flags: with the barrier that makes earlier writes visible.
  if (CUresult r = driver->cuStreamWriteValue64(stream, address(), raw,
                                                CU_STREAM_WRITE_VALUE_DEFAULT);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuStreamWriteValue64", WordsOf(raw, address())));
  }
  last_stream_ = stream;
  last_ = raw;
  enqueued_ = std::max(enqueued_, raw);
  return absl::OkStatus();
}

absl::Status Fence::Wait(CUstream stream, std::uint64_t value) {
  absl::Status sane = CheckValue(value);
  if (!sane.ok()) return sane;
  const fence::Progress now = fence::Look(*words_, base_);
  if (now.corrupt) return Corrupt();
  if (now.abandoned && now.value < value) return Aborted(now.value);
  const platform::Driver& driver = source_->driver();
  const std::uint64_t raw = base_ + value;
  if (CUresult r = driver->cuStreamWaitValue64(stream, address(), raw,
                                               CU_STREAM_WAIT_VALUE_GEQ);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, absl::StrCat("cuStreamWaitValue64", WordsOf(raw, address())));
  }
  return absl::OkStatus();
}

absl::Status Fence::SignalFromHost(std::uint64_t value) {
  absl::StatusOr<std::uint64_t> reached = CheckForwards(value, 0);
  if (!reached.ok()) return reached.status();
  const std::uint64_t raw = base_ + value;
  if (*reached < enqueued_ && enqueued_ <= raw) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a signal of ", enqueued_ - base_,
        " is on its way on a stream, and would come after the host's of ",
        value, ". Put that on the stream too, or wait for the first"));
  }
  if (!fence::Raise(words_->value, raw)) {
    const fence::Progress now = fence::Look(*words_, base_);
    if (now.corrupt) return Corrupt();
    if (now.abandoned) return Aborted(now.value);
  }
  return absl::OkStatus();
}

absl::Status Fence::WaitOnHost(std::uint64_t value, absl::Time deadline,
                               const FenceWatch& watch) {
  absl::Status sane = CheckValue(value);
  if (!sane.ok()) return sane;
  const absl::Time start = absl::Now();
  absl::Duration pause = kShortestPause;
  absl::Status over;
  for (;;) {
    const fence::Progress now = fence::Look(*words_, base_);
    if (now.corrupt) return Corrupt();
    if (now.value >= value) return absl::OkStatus();
    if (now.abandoned) return Aborted(now.value);
    if (!over.ok()) {
      return platform::Annotate(
          over, absl::StrCat("the fence is at ", now.value, ", not ", value));
    }
    const absl::Time time = absl::Now();
    if (time - start < kLookAllTheTime && time < deadline) {
      for (int i = 0; i < kLooks; ++i) {
        if (words_->value.load(std::memory_order_relaxed) >= base_ + value) {
          break;
        }
      }
      continue;
    }
    // Whoever has ended may have signalled before: one more look decides.
    over = WhyNotWorth(watch);
    if (!over.ok()) continue;
    if (time >= deadline) {
      over = absl::DeadlineExceededError("the deadline has passed");
      continue;
    }
    absl::SleepFor(std::min(pause, deadline - time));
    pause = std::min(pause * 2, kLongestPause);
  }
}

absl::StatusOr<std::uint64_t> Fence::Query() const {
  absl::Status usable = CheckUsable();
  if (!usable.ok()) return usable;
  const fence::Progress now = fence::Look(*words_, base_);
  if (now.corrupt) return Corrupt();
  if (now.abandoned) return Aborted(now.value);
  return now.value;
}

absl::Status Fence::Abandon() {
  absl::Status usable = CheckUsable();
  if (!usable.ok()) return usable;
  fence::Abandon(*words_, base_);
  return absl::OkStatus();
}

}  // namespace vmm
