// IpcEvent: a CUDA event that another process waits for or records.
//
// For programs that use such events already. New ones are better served by a
// fence (fence.h): a process can make some 4,095 interprocess events, opening the
// first of them takes some 0.5 ms, and a ping-pong of two processes on one GPU took
// 301 us by events where it takes 12 us by fences (measured on H100).
//
//   // The owner, with a context current:
//   absl::StatusOr<IpcEvent> ready = IpcEvent::Create(driver);
//   absl::Status recorded = ready->Record(stream);
//   absl::StatusOr<IpcEventTicket> ticket = ready->Export();
//   send(EncodeIpcEventTicket(*ticket));      // 108 bytes
//   // The peer, with a context current:
//   absl::StatusOr<IpcEvent> ready = IpcEvent::Import(driver, ticket);
//   absl::Status ordered = ready->Wait(stream);
//
// CUDA's rule is that of events: a wait is for what was recorded last *before*
// it is put on the stream, and for nothing where nothing was. So the owner
// records first and then tells the peer, for each time anew. A fence needs no
// such word.
#ifndef VMMSHARE_VMM_SYNC_IPC_EVENT_H_
#define VMMSHARE_VMM_SYNC_IPC_EVENT_H_

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "platform/cuda/driver.h"
#include "platform/os/deadline.h"
#include "platform/os/process.h"
#include "vmm/memory/shareable.h"

namespace vmm {

inline constexpr std::size_t kIpcEventTicketBytes = 108;

// The plain data by which a peer opens an event. A value. CUDA's handle says
// nothing of where it is from, and a driver that is given a foreign one returns
// CUDA_ERROR_MAP_FAILED; so the ticket says it.
struct IpcEventTicket {
  bool host_memory_driver = false;
  OwnerId owner;  // The process that made the event.
  std::array<std::uint8_t, 16> boot_id{};
  std::array<std::uint8_t, sizeof(CUipcEventHandle)> handle{};
  friend bool operator==(const IpcEventTicket&,
                         const IpcEventTicket&) = default;
};

using IpcEventTicketBytes = std::array<std::uint8_t, kIpcEventTicketBytes>;

// Any value, without judging it. Thread-safe.
IpcEventTicketBytes EncodeIpcEventTicket(const IpcEventTicket& ticket);

// Total. INVALID_ARGUMENT for another size, another magic, bytes that are not
// zero where they must be, another driver than there is, and a checksum that is
// not right; UNIMPLEMENTED for a newer version.
absl::StatusOr<IpcEventTicket> DecodeIpcEventTicket(
    absl::Span<const std::uint8_t> in);

// A ticket for an event that the program made itself, with
// CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING. INVALID_ARGUMENT for another
// one, also one that was imported; UNIMPLEMENTED without IPC events.
absl::StatusOr<IpcEventTicket> ExportEvent(const platform::Driver& driver,
                                           CUevent event);

// One event, of this process or imported. Move-only; calls as thread-safe as
// the driver's. In a forked child it is useless, as all of CUDA is.
class IpcEvent {
 public:
  // A new one, of the context that is current. FAILED_PRECONDITION without one;
  // RESOURCE_EXHAUSTED after some 4,095 of a process; UNIMPLEMENTED as above.
  static absl::StatusOr<IpcEvent> Create(const platform::Driver& driver);

  // That of `ticket`, in the context that is current.
  //   FAILED_PRECONDITION  no context is current; a ticket of another machine
  //                        or driver; the event is this process's own, which
  //                        CUDA does not open where it was made
  //   NOT_FOUND            the event, or its process, is gone
  //   UNIMPLEMENTED        as above
  static absl::StatusOr<IpcEvent> Import(const platform::Driver& driver,
                                         const IpcEventTicket& ticket);

  // As ExportEvent(): of one that this process made.
  absl::StatusOr<IpcEventTicket> Export() const;

  // Errors of these are the driver's. The stream of Record() must be of the
  // event's context; that of Wait() may be any.
  absl::Status Record(CUstream stream);
  absl::Status Wait(CUstream stream) const;
  // Whether the GPU has passed what was recorded last.
  absl::StatusOr<bool> Query() const;

  // Returns when it has. DEADLINE_EXCEEDED; UNAVAILABLE when `recorder`, if not
  // null, has ended without: then streams that wait are CUDA's to let go. An
  // imported event whose maker has ended may count as passed: that is the
  // driver's to say.
  absl::Status WaitOnHost(Deadline deadline,
                          const platform::Process* recorder = nullptr) const;

  CUevent event() const;

  IpcEvent(IpcEvent&&) noexcept;
  IpcEvent& operator=(IpcEvent&&) noexcept;
  ~IpcEvent();

 private:
  struct Impl;
  explicit IpcEvent(std::unique_ptr<Impl> impl);
  // Of `event`, which becomes its own.
  static IpcEvent Adopt(const platform::Driver& driver, CUevent event);
  const platform::Driver& driver() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace vmm

#endif  // VMMSHARE_VMM_SYNC_IPC_EVENT_H_
