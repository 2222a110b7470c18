// A fence's life, what may be asked of it, and what streams do with it.
#include "vmm/sync/fence.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/abandon.h"
#include "platform/base/check.h"
#include "platform/base/status_macros.h"
#include "vmm/sync/internal/fence_kernels.h"
#include "vmm/sync/internal/fence_memory.h"
#include "vmm/sync/internal/fence_source.h"

namespace vmm {
namespace {

std::string WordsOf(std::uint64_t value, CUdeviceptr address) {
  return absl::StrCat("(address=0x", absl::Hex(address), ", value=", value,
                      ")");
}

}  // namespace

Fence& Fence::operator=(Fence&& other) noexcept {
  if (this != &other) {
    Release().IgnoreError();  // Nothing, if it is moved from.
    source_ = std::move(other.source_);
    at_ = other.at_;
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
  source->Release({at_, base_, enqueued_, std::move(block_)});
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
  RETURN_IF_ERROR(CheckUsable());
  if (value <= kMaxFenceValue) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a fence cannot have the value ", value,
                   "; expected at most ", kMaxFenceValue));
}

absl::Status Fence::CheckGoesOn(const fence::Progress& now) {
  if (now.corrupt) {
    return absl::DataLossError(
        "the fence's memory holds no value that it can have: a process that "
        "has the pool wrote to it");
  }
  if (!now.abandoned) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("the fence was abandoned at the value ", now.value,
                   ". What comes after that may be missing: begin anew, with "
                   "another fence."));
}

absl::Status Fence::CheckMayReach(std::uint64_t value,
                                  const fence::Progress& now) {
  const bool is_reached = !now.corrupt && now.value >= value;
  return is_reached ? absl::OkStatus() : CheckGoesOn(now);
}

fence::Memory& Fence::memory() const { return source_->memory(); }

absl::Status Fence::CheckSignal(std::uint64_t value) const {
  absl::Status sane = CheckValue(value);
  if (!sane.ok() || value != 0) return sane;
  return absl::InvalidArgumentError(
      "a fence cannot be signalled 0: that is where it begins");
}

absl::Status Fence::CheckForwards(std::uint64_t value,
                                  const fence::Progress& now,
                                  std::uint64_t last) const {
  RETURN_IF_ERROR(CheckGoesOn(now));
  const std::uint64_t raw = base_ + value;
  const std::uint64_t reached = base_ + now.value;
  if (raw > std::max(last, reached)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "a fence cannot go from ", std::max(last, reached) - base_, " to ", value,
      ": its values grow",
      raw > reached ? "; the first is on this stream already" : ""));
}

absl::Status Fence::CheckMaySignal(CUstream stream, std::uint64_t value) const {
  RETURN_IF_ERROR(CheckSignal(value));
  return CheckForwards(value, memory().Glance(at_, base_),
                       stream == last_stream_ ? last_ : 0);
}

absl::Status Fence::PutSignal(CUstream stream, std::uint64_t value) {
  const platform::Driver& driver = source_->driver();
  const std::uint64_t raw = base_ + value;
  // The default flags: with the barrier that makes earlier writes visible.
  ASSIGN_OR_RETURN(const CUresult put, source_->InSomeContext(stream, [&] {
    return driver->cuStreamWriteValue64(stream, at_, raw,
                                        CU_STREAM_WRITE_VALUE_DEFAULT);
  }));
  if (put != CUDA_SUCCESS) {
    return driver.Error(
        put, absl::StrCat("cuStreamWriteValue64", WordsOf(raw, at_)));
  }
  NoteSignal(stream, value);
  return absl::OkStatus();
}

void Fence::NoteSignal(CUstream stream, std::uint64_t value) {
  last_stream_ = stream;
  last_ = base_ + value;
  enqueued_ = std::max(enqueued_, last_);
}

absl::Status Fence::Signal(CUstream stream, std::uint64_t value) {
  RETURN_IF_ERROR(CheckMaySignal(stream, value));
  return PutSignal(stream, value);
}

absl::Status Fence::Add(CUstream stream, std::uint64_t value) {
  RETURN_IF_ERROR(CheckSignal(value));
  const fence::FenceKernels* const kernels = source_->kernels();
  if (kernels == nullptr) {
    return absl::FailedPreconditionError(
        "a fence is added to by kernels: make its fence array one that has "
        "them (in Python kernels=True)");
  }
  const fence::Progress now = memory().Glance(at_, base_);
  RETURN_IF_ERROR(CheckGoesOn(now));
  RETURN_IF_ERROR(CheckValue(now.value + value));
  return kernels->Add(stream, at_, value);
}

absl::Status Fence::CheckMayWait(std::uint64_t value) const {
  RETURN_IF_ERROR(CheckValue(value));
  return CheckMayReach(value, memory().Glance(at_, base_));
}

absl::Status Fence::PutWait(CUstream stream, std::uint64_t value) const {
  const std::uint64_t raw = base_ + value;
  if (const fence::FenceKernels* kernels = source_->kernels()) {
    return kernels->Run(stream, {{.wait_at = at_, .wait_value = raw}});
  }
  const platform::Driver& driver = source_->driver();
  ASSIGN_OR_RETURN(const CUresult put, source_->InSomeContext(stream, [&] {
    return driver->cuStreamWaitValue64(stream, at_, raw,
                                       CU_STREAM_WAIT_VALUE_GEQ);
  }));
  if (put != CUDA_SUCCESS) {
    return driver.Error(put,
                        absl::StrCat("cuStreamWaitValue64", WordsOf(raw, at_)));
  }
  return absl::OkStatus();
}

absl::Status Fence::Wait(CUstream stream, std::uint64_t value) {
  RETURN_IF_ERROR(CheckMayWait(value));
  return PutWait(stream, value);
}

absl::Status Fence::Meet(CUstream stream, absl::Span<Fence* const> signals,
                         absl::Span<Fence* const> waits, std::uint64_t value) {
  for (const Fence* fence : signals) {
    RETURN_IF_ERROR(fence->CheckMaySignal(stream, value));
  }
  const fence::FenceKernels* kernels = nullptr;
  bool by_kernel = !waits.empty() && signals.size() <= fence::kMostSteps &&
                   waits.size() <= fence::kMostSteps;
  for (const Fence* fence : waits) {
    RETURN_IF_ERROR(fence->CheckMayWait(value));
    kernels = fence->source_->kernels();
    by_kernel = by_kernel && kernels != nullptr;
  }
  if (!by_kernel) {
    for (Fence* fence : signals) {
      RETURN_IF_ERROR(fence->PutSignal(stream, value));
    }
    for (Fence* fence : waits) RETURN_IF_ERROR(fence->PutWait(stream, value));
    return absl::OkStatus();
  }
  std::vector<fence::Step> steps(std::max(signals.size(), waits.size()));
  for (std::size_t i = 0; i < signals.size(); ++i) {
    steps[i].signal_at = signals[i]->at_;
    steps[i].signal_value = signals[i]->base_ + value;
  }
  for (std::size_t i = 0; i < waits.size(); ++i) {
    steps[i].wait_at = waits[i]->at_;
    steps[i].wait_value = waits[i]->base_ + value;
  }
  RETURN_IF_ERROR(kernels->Run(stream, steps));
  for (Fence* fence : signals) fence->NoteSignal(stream, value);
  return absl::OkStatus();
}

FenceMechanism Fence::mechanism() const {
  platform::Check(source_ != nullptr,
                  "mechanism() of a fence that was given back");
  return source_->kernels() == nullptr ? FenceMechanism::kStreamMemoryOperations
                                       : FenceMechanism::kKernels;
}

FencePlace Fence::place() const {
  platform::Check(source_ != nullptr, "place() of a fence that was given back");
  return memory().place();
}

}  // namespace vmm
