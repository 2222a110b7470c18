#include "tests/calls/caller.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/support/must.h"
#include "tests/support/syscall_faults.h"
#include "tests/support/test_driver.h"
#include "vmm/pool/pool.h"

namespace vmm::testing {
namespace {

// How much longer than its timeout a call may take where two cores do all this.
constexpr absl::Duration kPatience = absl::Seconds(20);
// Within a page are all mistakes of a whole one.
constexpr std::uint64_t kLooked = 4096;

void MustSucceed(CUresult result, const char* call) {
  platform::Check(result == CUDA_SUCCESS, call);
}

}  // namespace

Caller::Caller(World& world, std::uint64_t seed)
    : world_(world),
      engine_(seed),
      dice_([this](std::uint64_t end) { return Below(end); }),
      failing_(world.failing, std::defer_lock) {
  BeginOnThisThread();
  MustSucceed(world_.real->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
              "cuStreamCreate");
}

Caller::~Caller() { world_.real->cuStreamDestroy(stream_); }

void Caller::BeginOnThisThread() {
  MustSucceed(world_.real->cuCtxSetCurrent(world_.context), "cuCtxSetCurrent");
}

std::int64_t Caller::Timeout() {
  switch (Below(4)) {
    case 0:
      return OneIn(2) ? 0 : -5;
    case 1:
      return kMillisecond * static_cast<std::int64_t>(1 + Below(50));
    default:
      return kSecond;
  }
}

CUstream Caller::AnyStream() {
  switch (Below(8)) {
    case 0:
      return nullptr;
    case 1:
      return CU_STREAM_LEGACY;
    case 2:
      return AllStreams();
    case 3:
      return world_.streams[Below(world_.streams.size())];
    default:
      return stream_;
  }
}

void Caller::Find(const std::string& what) {
  std::vector<std::string> calls;
  for (std::uint64_t i = 0; i < trail_.size(); ++i) {
    const std::string& each = trail_[(calls_ + i) % trail_.size()];
    if (!each.empty()) calls.push_back(each);
  }
  ADD_FAILURE() << what << "\nthis thread called last:\n  "
                << absl::StrJoin(calls, "\n  ");
}

Caller::Begun Caller::Begin(std::string_view name, std::int64_t wait) {
  const bool is_odd = std::exchange(is_odd_, false);
  last_ = std::string(name);
  MayFail();
  return {name, absl::Now() + absl::Nanoseconds(wait) + kPatience, is_odd};
}

void Caller::MayFail() {
  if (!world_.has_faults || !OneIn(4) || !failing_.try_lock()) return;
  // Calls of a kind are many or few: any of the first is as good.
  FaultPoint point = {.nth = Below(OneIn(2) ? 4 : 40),
                      .this_thread_only = true};
  if (OneIn(6)) point.times = FaultPoint::kForEver;
  fails_driver_ = !SyscallFaultsSupported() || OneIn(2);
  if (fails_driver_) {
    // Not UNKNOWN: a peer may be told, and does not know who made it so.
    constexpr std::array kResults = {CUDA_ERROR_OUT_OF_MEMORY,
                                     CUDA_ERROR_NOT_PERMITTED,
                                     CUDA_ERROR_NOT_SUPPORTED};
    world_.faults.Arm({.point = point, .result = kResults[Below(3)]});
  } else {
    ArmSyscallFault({.point = point, .error_index = Below(3)});
  }
}

// Answers how many calls failed.
std::uint64_t Caller::EndFailing() {
  if (!failing_.owns_lock()) return 0;
  std::uint64_t fired = 0;
  if (fails_driver_) {
    const DriverFaults::Outcome outcome = world_.faults.Disarm();
    fired = outcome.fired;
    if (fired != 0) {
      absl::StrAppend(&last_, " (", absl::StrJoin(outcome.failed, ", "),
                      " failed)");
    }
  } else {
    const SyscallOutcome outcome = DisarmSyscallFault();
    fired = outcome.failed.size();
    for (const SyscallOutcome::Failed& each : outcome.failed) {
      absl::StrAppend(&last_, " (", each.call, ": ", ErrnoName(each.error),
                      ")");
    }
  }
  failing_.unlock();
  return fired;
}

void Caller::End(const Begun& begun, vmmshare_status status, bool wants_error,
                 vmmshare_error* error) {
  const absl::Time now = absl::Now();
  const std::uint64_t fired = EndFailing();
  absl::StrAppend(&last_, ": ", vmmshare_status_name(status));
  std::string message;
  if (wants_error && error == Poison<vmmshare_error>()) {
    Find(last_ + " left the error as it was");
  } else if (wants_error && (error == nullptr) != (status == VMMSHARE_OK)) {
    Find(last_ + (error == nullptr ? " has no error" : " has an error"));
  } else if (wants_error && error != nullptr) {
    message = vmmshare_error_message(error);
    absl::StrAppend(&last_, ": ", message);
    if (vmmshare_error_status(error) != status) {
      Find(last_ + ": the error has another status");
    }
    if (message.empty() || message.find('\n') != std::string::npos) {
      Find(last_ + ": not one line");
    }
    if (*vmmshare_error_remedy(error) == '\0') Find(last_ + ": no remedy");
    vmmshare_error_free(error);
  }
  trail_[calls_++ % trail_.size()] = last_;
  if (begun.is_odd && status != VMMSHARE_INVALID_ARGUMENT) {
    Find(last_ + ", for no handle of its type");
  }
  const bool is_told = status != VMMSHARE_UNKNOWN &&
                       status != VMMSHARE_INTERNAL &&
                       status <= VMMSHARE_DATA_LOSS;
  if (fired == 0 && !is_told) Find(last_ + ": no documented status");
  if (now > begun.latest) {
    Find(absl::StrCat(last_, ": came ",
                      absl::FormatDuration(now - begun.latest), " too late"));
  }
}

void Caller::Fill(const Thing& memory, CUstream stream) {
  // No driver fills the host's over a border of two chunks.
  constexpr std::uint64_t kGranule = 2 << 20;
  const std::uint64_t step = memory.is_on_host ? kGranule : memory.size;
  for (std::uint64_t at = 0; at < memory.size; at += step) {
    Expect(
        world_.real->cuMemsetD8Async(memory.address + at, memory.fill,
                                     std::min(step, memory.size - at), stream),
        "a fill");
  }
  Expect(world_.real->cuStreamSynchronize(stream), "a fill");
}

void Caller::Expect(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  Find(absl::StrCat("the driver answered ", static_cast<int>(result), " to ",
                    what));
}

std::string Caller::OddByteIn(const Thing& memory) {
  if (memory.fill == 0 || memory.size == 0) return "";
  const std::uint64_t looked = std::min(memory.size, kLooked);
  std::vector<std::uint8_t> bytes(looked, memory.fill);
  for (const std::uint64_t at : {std::uint64_t{0}, memory.size - looked}) {
    Expect(world_.real->cuMemcpyDtoHAsync(bytes.data(), memory.address + at,
                                          looked, stream_),
           "a copy");
    Expect(world_.real->cuStreamSynchronize(stream_), "a copy");
    for (std::uint64_t i = 0; i < looked; ++i) {
      if (bytes[i] == memory.fill) continue;
      return absl::StrCat(" of ", memory.size, " bytes has ", bytes[i], " at ",
                          at + i, ", expected ", memory.fill);
    }
  }
  return "";
}

void Caller::CheckFill(const Thing& memory, const std::string& what) {
  const std::string odd = OddByteIn(memory);
  if (!odd.empty()) Find(what + odd);
}

}  // namespace vmm::testing
