#include "vmm/sync/ipc_event.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "platform/base/annotate.h"
#include "platform/base/status_macros.h"
#include "platform/os/machine.h"
#include "platform/os/pauses.h"
#include "vmm/memory/internal/recorded_event.h"
#include "vmm/memory/internal/wire.h"

namespace vmm {
namespace {

// "VET" and, in the highest byte, the version.
constexpr std::uint32_t kMagic = 0x544556;
constexpr std::uint32_t kVersion = 1;

template <typename... Text>
absl::Status Bad(const Text&... text) {
  return absl::InvalidArgumentError(
      absl::StrCat("the ticket of an event ", text...));
}

absl::Status CheckEntry(bool has_it, absl::string_view entry) {
  if (has_it) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("this driver has no ", entry,
                   ", so that events cannot be shared. Use a vmm::Fence"));
}

}  // namespace

IpcEventTicketBytes EncodeIpcEventTicket(const IpcEventTicket& ticket) {
  std::vector<std::uint8_t> bytes;
  WireWriter out(bytes);
  out.Put<std::uint32_t>(kMagic | (kVersion << 24));
  out.Put<std::uint32_t>(ticket.host_memory_driver ? 1 : 0);
  out.PutBytes(ticket.owner.bytes);
  out.PutBytes(ticket.boot_id);
  out.PutBytes(ticket.handle);
  out.Put<std::uint32_t>(Crc32c(bytes));
  IpcEventTicketBytes all;
  std::copy(bytes.begin(), bytes.end(), all.begin());
  return all;
}

absl::StatusOr<IpcEventTicket> DecodeIpcEventTicket(
    absl::Span<const std::uint8_t> bytes) {
  if (bytes.size() != kIpcEventTicketBytes) {
    return Bad("has ", kIpcEventTicketBytes, " bytes; these are ",
               bytes.size());
  }
  WireReader in(bytes);
  const auto head = in.Take<std::uint32_t>();
  if ((head & 0xffffff) != kMagic) {
    return Bad("starts with \"VET\"; these bytes do not");
  }
  const std::uint32_t version = head >> 24;
  if (version > kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the ticket of an event, of version ", version,
                     "; this vmmshare reads version ", kVersion,
                     ". Update it to the owner's"));
  }
  if (version != kVersion) return Bad("has no version ", version);
  const auto driver = in.Take<std::uint32_t>();
  IpcEventTicket ticket;
  in.TakeBytes(absl::MakeSpan(ticket.owner.bytes));
  in.TakeBytes(absl::MakeSpan(ticket.boot_id));
  in.TakeBytes(absl::MakeSpan(ticket.handle));
  if (!TrailingCrc32c(bytes).is_right()) {
    return Bad("was damaged: its checksum is not right");
  }
  if (driver > 1) return Bad("of driver ", driver);
  ticket.host_memory_driver = driver == 1;
  return ticket;
}

absl::StatusOr<IpcEventTicket> ExportEvent(const platform::Driver& driver,
                                           CUevent event) {
  RETURN_IF_ERROR(CheckEntry(driver->cuIpcGetEventHandle != nullptr,
                             "cuIpcGetEventHandle"));
  if (event == nullptr) {
    return absl::InvalidArgumentError("null is no event that can be exported");
  }
  ASSIGN_OR_RETURN(const platform::Machine* machine, platform::ThisMachine());
  ASSIGN_OR_RETURN(const MemoryId id, NewMemoryId());
  CUipcEventHandle handle;
  if (CUresult r = driver->cuIpcGetEventHandle(&handle, event);
      r != CUDA_SUCCESS) {
    return driver.Error(r, "cuIpcGetEventHandle()",
                        "The event must be made with CU_EVENT_INTERPROCESS | "
                        "CU_EVENT_DISABLE_TIMING, and by this process");
  }
  IpcEventTicket ticket;
  ticket.host_memory_driver = driver.is_host_memory();
  ticket.owner = id.owner;
  ticket.boot_id = machine->boot_id;
  static_assert(sizeof(handle) == sizeof(ticket.handle));
  std::memcpy(ticket.handle.data(), &handle, sizeof(handle));
  return ticket;
}

struct IpcEvent::Impl {
  OwnedEvent event;
};

IpcEvent::IpcEvent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
IpcEvent::IpcEvent(IpcEvent&&) noexcept = default;
IpcEvent& IpcEvent::operator=(IpcEvent&&) noexcept = default;
IpcEvent::~IpcEvent() = default;

IpcEvent IpcEvent::Adopt(const platform::Driver& driver, CUevent event) {
  return IpcEvent(
      std::make_unique<Impl>(Impl{OwnedEvent::Adopt({driver, event})}));
}

CUevent IpcEvent::event() const { return impl_->event.get().event; }

const platform::Driver& IpcEvent::driver() const {
  return *impl_->event.get().driver;
}

absl::StatusOr<IpcEvent> IpcEvent::Create(const platform::Driver& driver) {
  RETURN_IF_ERROR(CheckEntry(driver->cuIpcGetEventHandle != nullptr,
                             "cuIpcGetEventHandle"));
  CUevent event = nullptr;
  if (CUresult r = driver->cuEventCreate(
          &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
      r != CUDA_SUCCESS) {
    return driver.Error(
        r, "cuEventCreate(INTERPROCESS | DISABLE_TIMING)",
        r == CUDA_ERROR_OUT_OF_MEMORY
            ? "A process can have some 4,095 of these: destroy those that are "
              "done, or use a vmm::Fence"
            : "");
  }
  return Adopt(driver, event);
}

absl::StatusOr<IpcEvent> IpcEvent::Import(const platform::Driver& driver,
                                          const IpcEventTicket& ticket) {
  RETURN_IF_ERROR(CheckEntry(driver->cuIpcOpenEventHandle != nullptr,
                             "cuIpcOpenEventHandle"));
  if (ticket.host_memory_driver != driver.is_host_memory()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the event was made by ",
        ticket.host_memory_driver ? "the host-memory driver" : "a CUDA driver",
        ", and this process uses the other: ", driver.Describe()));
  }
  ASSIGN_OR_RETURN(const platform::Machine* machine, platform::ThisMachine());
  if (machine->boot_id != ticket.boot_id) {
    return absl::FailedPreconditionError(
        "the event was made on another machine, or before this one was "
        "started; events are shared on one machine only");
  }
  ASSIGN_OR_RETURN(const MemoryId id, NewMemoryId());
  if (id.owner == ticket.owner) {
    return absl::FailedPreconditionError(
        "the event was made by this process, and CUDA does not open it where "
        "it was made: use it as it is");
  }
  CUipcEventHandle handle;
  std::memcpy(&handle, ticket.handle.data(), sizeof(handle));
  CUevent event = nullptr;
  const CUresult result = driver->cuIpcOpenEventHandle(&event, handle);
  if (result == CUDA_SUCCESS) {
    return Adopt(driver, event);
  }
  absl::Status error = driver.Error(result, "cuIpcOpenEventHandle()");
  if (result != CUDA_ERROR_MAP_FAILED) return error;
  return platform::Reworded(
      error, absl::StatusCode::kNotFound,
      absl::StrCat(error.message(),
                   ". The event is gone, or its process has ended"));
}

absl::StatusOr<IpcEventTicket> IpcEvent::Export() const {
  return ExportEvent(driver(), event());
}

absl::Status IpcEvent::Record(CUstream stream) {
  return driver().Error(driver()->cuEventRecord(event(), stream),
                        "cuEventRecord()");
}

absl::Status IpcEvent::Wait(CUstream stream) const {
  return driver().Error(driver()->cuStreamWaitEvent(stream, event(), 0),
                        "cuStreamWaitEvent()");
}

absl::StatusOr<bool> IpcEvent::Query() const { return HasPassed(impl_->event); }

absl::Status IpcEvent::WaitOnHost(Deadline deadline,
                                  const platform::Process* recorder) const {
  platform::Pauses pauses;
  absl::Status over;
  for (;;) {
    ASSIGN_OR_RETURN(const bool passed, Query());
    if (passed) return absl::OkStatus();
    if (!over.ok()) return over;
    // Whoever has ended may have been passed before: one more look decides.
    if (recorder != nullptr) {
      ASSIGN_OR_RETURN(const bool ended, recorder->HasExited());
      if (ended) {
        over = absl::UnavailableError(
            absl::StrCat("process ", recorder->pid(),
                         ", which recorded the event, has ended, and the GPU "
                         "has not passed what was recorded"));
        continue;
      }
    }
    if (deadline.Passed()) {
      over = absl::DeadlineExceededError(
          "the GPU has not passed what was recorded");
      continue;
    }
    pauses.Take(deadline);
  }
}

}  // namespace vmm
