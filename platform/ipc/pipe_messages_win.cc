// Messages over a named pipe, with deadlines: see pipe_win.cc for the pipes.
#include <windows.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/pipe_win.h"
#include "platform/os/os_error.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {
namespace {

// Ends an operation that was begun with `begun` (what ReadFile or WriteFile
// returned): waits for it, or takes it back. `size` is set even if the answer
// is not OK. If it throws, for want of memory, no whole message was read or
// written.
absl::Status Finish(const OsHandle& pipe, const OsHandle& event,
                    OVERLAPPED& operation, bool begun, DWORD begin_error,
                    Deadline deadline, const Interrupts& interrupts,
                    absl::string_view call, absl::string_view what,
                    DWORD* size) {
  absl::Status waited;
  if (!begun && begin_error != ERROR_IO_PENDING) {
    if (begin_error != ERROR_MORE_DATA) {
      return OsError(static_cast<int>(begin_error), call);
    }
  } else if (!begun) {
    const std::intptr_t handles[] = {event.get(), interrupts.broken != nullptr
                                                      ? interrupts.broken->get()
                                                      : 0};
    try {
      const absl::StatusOr<std::size_t> ended = WaitForHandles(
          absl::MakeConstSpan(handles, interrupts.broken != nullptr ? 2 : 1),
          deadline, interrupts.cancels, what);
      waited = ended.status();
      if (ended.ok() && *ended == 1) {
        waited = absl::UnavailableError("the channel was closed meanwhile");
      }
    } catch (...) {
      // No memory to say why. The system writes to `operation` and the caller's
      // buffer until the operation has ended.
      ::CancelIoEx(Raw(pipe), &operation);
      if (::GetOverlappedResult(Raw(pipe), &operation, size, /*wait=*/TRUE) !=
          0) {
        return absl::OkStatus();
      }
      throw;
    }
    // It may be done all the same, and then that is what counts: a message
    // that was taken must not be lost.
    if (!waited.ok()) ::CancelIoEx(Raw(pipe), &operation);
  }
  if (::GetOverlappedResult(Raw(pipe), &operation, size, /*wait=*/TRUE) != 0) {
    return absl::OkStatus();
  }
  const DWORD error = ::GetLastError();
  if (error == ERROR_OPERATION_ABORTED && !waited.ok()) return waited;
  return OsError(static_cast<int>(error), call);
}

}  // namespace

absl::StatusOr<OsHandle> MakeEvent() {
  const HANDLE event =
      ::CreateEventW(nullptr, /*manual reset=*/TRUE, FALSE, nullptr);
  if (event == nullptr) {
    return LastError().Of("CreateEventW()");
  }
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(event));
}

absl::Status WriteMessage(const OsHandle& pipe, const OsHandle& event,
                          absl::Span<const std::uint8_t> message,
                          Deadline deadline, const Interrupts& interrupts,
                          absl::string_view what) {
  // First: between WriteFile() and Finish() nothing may throw.
  const std::string call =
      absl::StrCat("WriteFile(pipe, ", message.size(), " bytes)");
  OVERLAPPED operation = {};
  operation.hEvent = Raw(event);
  const bool begun =
      ::WriteFile(Raw(pipe), message.data(), static_cast<DWORD>(message.size()),
                  nullptr, &operation) != 0;
  const DWORD error = ::GetLastError();
  DWORD size = 0;
  return Finish(pipe, event, operation, begun, error, deadline, interrupts,
                call, what, &size);
}

absl::StatusOr<std::size_t> ReadMessage(const OsHandle& pipe,
                                        const OsHandle& event,
                                        absl::Span<std::uint8_t> buffer,
                                        Deadline deadline,
                                        const Interrupts& interrupts,
                                        absl::string_view what) {
  // A busy peer must not drown `cancel`.
  for (const OsHandle* const cancel :
       {interrupts.cancels.own, interrupts.cancels.parent}) {
    if (cancel == nullptr) continue;
    const std::intptr_t handle = cancel->get();
    if (WaitForHandles(absl::MakeConstSpan(&handle, 1), absl::InfinitePast(),
                       {}, what)
            .ok()) {
      return absl::CancelledError(
          absl::StrCat("waiting for ", what, " was cancelled"));
    }
  }
  OVERLAPPED operation = {};
  operation.hEvent = Raw(event);
  const bool begun =
      ::ReadFile(Raw(pipe), buffer.data(), static_cast<DWORD>(buffer.size()),
                 nullptr, &operation) != 0;
  const DWORD error = ::GetLastError();
  DWORD size = 0;
  RETURN_IF_ERROR(Finish(pipe, event, operation, begun, error, deadline,
                         interrupts, "ReadFile(pipe)", what, &size));
  return size;
}

std::size_t PeekAhead(const OsHandle& pipe, absl::Span<std::uint8_t> buffer) {
  DWORD read = 0;
  DWORD available = 0;
  DWORD beyond = 0;
  if (::PeekNamedPipe(Raw(pipe), buffer.data(),
                      static_cast<DWORD>(buffer.size()), &read, &available,
                      &beyond) == 0) {
    return 0;
  }
  return available == 0 ? 0 : std::size_t{read} + beyond;
}

}  // namespace vmm::platform
