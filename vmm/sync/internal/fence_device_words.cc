#include "vmm/sync/internal/fence_device_words.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/sync/internal/fence_words.h"

namespace vmm::fence {
namespace {

// What the host reads of a fence, in one copy.
constexpr std::size_t kRead =
    offsetof(Words, abandoned) + sizeof(std::uint64_t);

// A wait for the stream asks all the time for so long, which is twice what a
// copy takes (measured). Then it sleeps, longer each time.
constexpr absl::Duration kAskAllTheTime = absl::Microseconds(30);

// For a copy that is on its way when the object goes.
constexpr absl::Duration kLastPatience = absl::Seconds(1);

// What is where a copy is to arrive until it has.
constexpr std::uint64_t kNotThere = ~std::uint64_t{0};

void Fill(Words& landing, std::uint64_t word) {
  landing.value = word;
  landing.abandoned = word;
}

bool HasArrived(const Words& landing) {
  return landing.value != kNotThere && landing.abandoned != kNotThere;
}

void AwaitArrival(const Words& landing, Deadline deadline) {
  platform::Pauses pauses;
  while (!HasArrived(landing) && !deadline.Passed()) pauses.Take(deadline);
}

std::string Call(const char* entry, CUdeviceptr at) {
  return absl::StrCat(entry, "(address=0x", absl::Hex(at), ") of a fence");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWords>> DeviceWords::Make(
    const Device& device, CUdeviceptr first) {
  ASSIGN_OR_RETURN(PrimaryContext retained, PrimaryContext::Retain(device));
  auto context = std::make_shared<const PrimaryContext>(std::move(retained));
  ASSIGN_OR_RETURN(const CurrentContext current, context->MakeCurrent());
  ASSIGN_OR_RETURN(PinnedBytes landing,
                   PinnedBytes::Pin(device, context, kRead));
  const platform::Driver& driver = device.driver();
  ASSIGN_OR_RETURN(OwnedStream stream, MakeOwnStream(driver));
  return std::unique_ptr<DeviceWords>(
      new DeviceWords(driver, first, std::move(context), std::move(landing),
                      std::move(stream)));
}

DeviceWords::DeviceWords(const platform::Driver& driver, CUdeviceptr first,
                         std::shared_ptr<const PrimaryContext> context,
                         PinnedBytes landing, OwnedStream stream)
    : driver_(driver),
      first_(first),
      context_(std::move(context)),
      landing_(std::move(landing)),
      stream_(std::move(stream)) {}

DeviceWords::~DeviceWords() {
  const RelaxedCapture relaxed(driver_);
  const Deadline deadline = Deadline::In(kLastPatience);
  const absl::Status done = Await(deadline);
  if (done.ok()) return;
  platform::ReportReleaseFailure(done);
  if (absl::IsDeadlineExceeded(done)) {
    // It may arrive there yet, and never must where there is nothing.
    std::move(landing_).KeepForGood();
    return;
  }
  // Of a stream that has failed nothing arrives; but maybe only the question
  // failed. Then what a copy brings says that all before it is done, writes to
  // memory that may be its owner's again among it.
  Words& landing = *static_cast<Words*>(landing_->at());
  AwaitArrival(landing, deadline);
  absl::StatusOr<CurrentContext> current = Enter();
  if (current.ok() && HasArrived(landing)) {
    Fill(landing, kNotThere);
    if (driver_->cuMemcpyDtoHAsync(&landing, first_, kRead,
                                   stream_.get().stream) != CUDA_SUCCESS) {
      return;
    }
    AwaitArrival(landing, deadline);
  }
  if (!HasArrived(landing)) std::move(landing_).KeepForGood();
}

absl::StatusOr<DeviceWords::Found> DeviceWords::Read(CUdeviceptr fence,
                                                     Deadline deadline) {
  // What a call before this one did not wait for.
  RETURN_IF_ERROR(Await(deadline));
  Words& landing = *static_cast<Words*>(landing_->at());
  Fill(landing, kNotThere);
  if (CUresult r = driver_->cuMemcpyDtoHAsync(&landing, fence, kRead,
                                              stream_.get().stream);
      r != CUDA_SUCCESS) {
    Fill(landing, 0);
    return driver_.Error(r, Call("cuMemcpyDtoHAsync", fence));
  }
  busy_ = true;
  RETURN_IF_ERROR(Await(deadline));
  return Found{landing.value.load(), landing.abandoned.load()};
}

absl::Status DeviceWords::Write(CUdeviceptr word, std::uint64_t value) {
  if (CUresult r = driver_->cuStreamWriteValue64(
          stream_.get().stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, Call("cuStreamWriteValue64", word));
  }
  busy_ = true;
  return absl::OkStatus();
}

absl::Status DeviceWords::Zero(std::uint64_t bytes) {
  if (CUresult r =
          driver_->cuMemsetD8Async(first_, 0, bytes, stream_.get().stream);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, Call("cuMemsetD8Async", first_));
  }
  has_filled_ = true;
  busy_ = true;
  return absl::OkStatus();
}

absl::Status DeviceWords::Warm(const FenceKernels& kernels) {
  has_filled_ = true;
  RETURN_IF_ERROR(kernels.Warm(stream_.get().stream));
  busy_ = true;
  return absl::OkStatus();
}

absl::Status DeviceWords::Await(Deadline deadline) {
  const Deadline ask_until = Deadline::In(kAskAllTheTime);
  platform::Pauses pauses;
  while (busy_) {
    const CUresult result = driver_->cuStreamQuery(stream_.get().stream);
    if (result == CUDA_SUCCESS) {
      busy_ = false;
      has_filled_ = false;
      return absl::OkStatus();
    }
    if (result != CUDA_ERROR_NOT_READY) {
      return driver_.Error(result, "cuStreamQuery() for a fence");
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          has_filled_ ? "the device has not filled its fences, or run their "
                        "kernels, and may do so yet"
                      : "the device has not answered what its fence's value is",
          ": its memory is out of reach, the device has stopped, or as many "
          "streams of this process wait",
          has_filled_ ? "" : " after copies to the host",
          " as there are hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 "
          "without it)"));
    }
    if (!ask_until.Passed()) continue;
    pauses.Take(deadline);
  }
  return absl::OkStatus();
}

}  // namespace vmm::fence
