#include "vmm/sync/internal/fence_device_memory.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/pauses.h"
#include "vmm/memory/stream_capture.h"
#include "vmm/sync/internal/fence_source.h"

namespace vmm::fence {
namespace {

// What the host reads of a fence, in one copy.
constexpr std::size_t kRead =
    offsetof(Words, abandoned) + sizeof(std::uint64_t);

// How often Look() reads what somebody else is changing.
constexpr int kTries = 16;

// A wait for the stream asks all the time for so long, which is twice what a
// copy takes (measured). Then it sleeps, longer each time.
constexpr absl::Duration kAskAllTheTime = absl::Microseconds(30);

// For a copy that is on its way when the object goes.
constexpr absl::Duration kLastPatience = absl::Seconds(1);

// What is where a copy is to arrive until it has.
constexpr std::uint64_t kNotThere = ~std::uint64_t{0};

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

absl::Status NotMyTurn() {
  return absl::DeadlineExceededError(
      "the device has not answered what another thread asked it of a fence of "
      "the same array: its memory is out of reach, or the device has stopped");
}

// Gives back a turn that the caller has. Until then no call of its thread breaks
// a capture: a question after any stream would, the array's own one too.
class ABSL_SCOPED_LOCKABLE TurnGiver {
 public:
  TurnGiver(Turn& turn, const platform::Driver& driver)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn)
      : turn_(turn), relaxed_(driver) {}
  ~TurnGiver() ABSL_UNLOCK_FUNCTION() { turn_.Give(); }
  TurnGiver(const TurnGiver&) = delete;
  TurnGiver& operator=(const TurnGiver&) = delete;

 private:
  Turn& turn_;
  const RelaxedCapture relaxed_;
};

}  // namespace

bool Turn::TakeBy(Deadline deadline) {
  const platform::MutexLock lock(mutex_);
  while (taken_) {
    if (deadline.Passed()) return false;
    given_.WaitFor(mutex_, deadline.Slice());
  }
  taken_ = true;
  return true;
}

void Turn::Give() {
  {
    const platform::MutexLock lock(mutex_);
    taken_ = false;
  }
  given_.NotifyOne();
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Make(
    const Device& device, CUdeviceptr first, std::uint64_t count) {
  ASSIGN_OR_RETURN(const int node, HostNodeOf(device));
  ASSIGN_OR_RETURN(PrimaryContext context, PrimaryContext::Retain(device));
  // Memory of cuMemHostAlloc is not given back while streams wait.
  ASSIGN_OR_RETURN(
      Allocation landing,
      Allocation::Create(
          device, {.size = kRead,
                   .sharing = SharePolicy::Private(),
                   .host_numa_node = node,
                   .also = {{Location::HostNuma(node), Access::kReadWrite}}}));
  const platform::Driver& driver = device.driver();
  ASSIGN_OR_RETURN(const CurrentContext current, context.MakeCurrent());
  ASSIGN_OR_RETURN(OwnedStream stream, MakeOwnStream(driver));
  std::unique_ptr<DeviceMemory> made(new DeviceMemory(
      driver, first, count, std::move(context), std::move(landing)));
  made->stream_ = std::move(stream);
  return made;
}

DeviceMemory::DeviceMemory(const platform::Driver& driver, CUdeviceptr first,
                           std::uint64_t count, PrimaryContext context,
                           Allocation landing)
    : driver_(driver),
      first_(first),
      seen_(count),
      context_(std::move(context)),
      landing_(std::make_unique<Allocation>(std::move(landing))) {}

DeviceMemory::~DeviceMemory() {
  const RelaxedCapture relaxed(driver_);
  const Deadline deadline = Deadline::In(kLastPatience);
  const absl::Status done = Await(deadline);
  if (done.ok()) return;
  platform::ReportReleaseFailure(done);
  if (absl::IsDeadlineExceeded(done)) {
    // It may arrive there yet, and never must where there is nothing.
    static_cast<void>(landing_.release());
    return;
  }
  // Of a stream that has failed nothing arrives; but maybe only the question
  // failed. Then what a copy brings says that all before it is done, writes to
  // memory that may be its owner's again among it.
  Words& landing = WordsAt(landing_->address());
  AwaitArrival(landing, deadline);
  absl::StatusOr<CurrentContext> current = context_.MakeCurrent();
  if (!current.ok() || !HasArrived(landing)) return;
  landing.value = kNotThere;
  landing.abandoned = kNotThere;
  if (driver_->cuMemcpyDtoHAsync(&landing, first_, kRead,
                                 stream_.get().stream) == CUDA_SUCCESS) {
    AwaitArrival(landing, deadline);
  }
}

DeviceMemory::Seen& DeviceMemory::SeenOf(CUdeviceptr fence) {
  return seen_[(fence - first_) / kFenceBytes];
}

void DeviceMemory::Note(CUdeviceptr fence, const Progress& progress) {
  if (progress.corrupt) return;
  Seen& seen = SeenOf(fence);
  fence::Raise(seen.value, progress.value);
  if (progress.abandoned) seen.abandoned = true;
}

Progress DeviceMemory::Glance(CUdeviceptr fence, std::uint64_t) {
  const Seen& seen = SeenOf(fence);
  Progress progress;
  progress.abandoned = seen.abandoned;
  progress.value = seen.value;
  return progress;
}

absl::Status DeviceMemory::Await(Deadline deadline) {
  const Deadline ask_until = Deadline::In(kAskAllTheTime);
  platform::Pauses pauses;
  while (busy_) {
    const CUresult result = driver_->cuStreamQuery(stream_.get().stream);
    if (result == CUDA_SUCCESS) {
      busy_ = false;
      return absl::OkStatus();
    }
    if (result != CUDA_ERROR_NOT_READY) {
      return driver_.Error(result, "cuStreamQuery() for a fence");
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          "the device has not answered what its fence's value is: its memory "
          "is out of reach, or the device has stopped");
    }
    if (!ask_until.Passed()) continue;
    pauses.Take(deadline);
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemory::Found> DeviceMemory::Read(CUdeviceptr fence,
                                                       Deadline deadline) {
  // What a call before this one did not wait for.
  RETURN_IF_ERROR(Await(deadline));
  Words& landing = WordsAt(landing_->address());
  landing.value = kNotThere;
  landing.abandoned = kNotThere;
  if (CUresult r = driver_->cuMemcpyDtoHAsync(&landing, fence, kRead,
                                              stream_.get().stream);
      r != CUDA_SUCCESS) {
    landing.value = 0;
    landing.abandoned = 0;
    return driver_.Error(r, Call("cuMemcpyDtoHAsync", fence));
  }
  busy_ = true;
  RETURN_IF_ERROR(Await(deadline));
  return Found{landing.value.load(), landing.abandoned.load()};
}

absl::Status DeviceMemory::Write(CUdeviceptr word, std::uint64_t value) {
  if (CUresult r = driver_->cuStreamWriteValue64(
          stream_.get().stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, Call("cuStreamWriteValue64", word));
  }
  busy_ = true;
  return absl::OkStatus();
}

absl::Status DeviceMemory::End(CUdeviceptr fence, std::uint64_t reached,
                               std::uint64_t end, Deadline deadline) {
  // In this order: who finds the end finds also where the fence came.
  RETURN_IF_ERROR(Write(fence + offsetof(Words, abandoned), reached + 1));
  RETURN_IF_ERROR(Write(fence, end));
  return Await(deadline);
}

absl::StatusOr<Progress> DeviceMemory::Look(CUdeviceptr fence,
                                            std::uint64_t base,
                                            Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, driver_);
  ASSIGN_OR_RETURN(const CurrentContext current, context_.MakeCurrent());
  return Judge(fence, base, deadline);
}

absl::StatusOr<Progress> DeviceMemory::Judge(CUdeviceptr fence,
                                             std::uint64_t base,
                                             Deadline deadline) {
  const std::uint64_t end = base + kSpan;
  absl::StatusOr<Found> found = Read(fence, deadline);
  // Somebody is abandoning it: the copy was not made in one moment.
  for (int i = 0;
       i < kTries && found.ok() && found->value == end && found->abandoned == 0;
       ++i) {
    found = Read(fence, deadline);
  }
  if (!found.ok()) return found.status();
  std::uint64_t raw = found->value;
  if (found->abandoned != 0) {
    raw = found->abandoned - 1;
    if (found->value != end) {
      // A signal that was on its way then. It counts.
      if (found->value < end) raw = std::max(raw, found->value);
      RETURN_IF_ERROR(End(fence, raw, end, deadline));
    }
  }
  const Progress progress = ProgressOf(raw, base, found->abandoned != 0);
  Note(fence, progress);
  return progress;
}

absl::Status DeviceMemory::Raise(CUdeviceptr fence, std::uint64_t raw,
                                 Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, driver_);
  ASSIGN_OR_RETURN(const CurrentContext current, context_.MakeCurrent());
  RETURN_IF_ERROR(Write(fence, raw));
  return Await(deadline);
}

absl::Status DeviceMemory::Abandon(CUdeviceptr fence, std::uint64_t base,
                                   Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, driver_);
  ASSIGN_OR_RETURN(const CurrentContext current, context_.MakeCurrent());
  ASSIGN_OR_RETURN(Progress now, Judge(fence, base, deadline));
  if (now.abandoned) return absl::OkStatus();
  absl::Status ended = End(fence, base + now.value, base + kSpan, deadline);
  now.abandoned = true;
  if (ended.ok()) Note(fence, now);
  return ended;
}

absl::Status DeviceMemory::Warm(const FenceKernels& kernels,
                                Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, driver_);
  ASSIGN_OR_RETURN(const CurrentContext current, context_.MakeCurrent());
  RETURN_IF_ERROR(kernels.Warm(stream_.get().stream));
  busy_ = true;
  return Await(deadline);
}

absl::Status DeviceMemory::Clear(Deadline deadline) {
  if (!turn_.TakeBy(deadline)) return NotMyTurn();
  const TurnGiver giver(turn_, driver_);
  ASSIGN_OR_RETURN(const CurrentContext current, context_.MakeCurrent());
  if (CUresult r = driver_->cuMemsetD8Async(
          first_, 0, seen_.size() * kFenceBytes, stream_.get().stream);
      r != CUDA_SUCCESS) {
    return driver_.Error(r, Call("cuMemsetD8Async", first_));
  }
  busy_ = true;
  RETURN_IF_ERROR(Await(deadline));
  for (Seen& seen : seen_) {
    seen.value = 0;
    seen.abandoned = false;
  }
  return absl::OkStatus();
}

}  // namespace vmm::fence
