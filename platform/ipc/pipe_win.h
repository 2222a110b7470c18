// Named pipes in message mode, with deadlines; internal to platform/.
#ifndef VMMSHARE_PLATFORM_IPC_PIPE_WIN_H_
#define VMMSHARE_PLATFORM_IPC_PIPE_WIN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "platform/ipc/channel.h"
#include "platform/os/cancels.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// What a handle is to Windows: a HANDLE.
inline void* Raw(const OsHandle& handle) {
  return reinterpret_cast<void*>(handle.get());
}

// "\\.\pipe\", with which every address begins.
extern const char kPipePrefix[];

// The rights of a client on a pipe: reading and writing, but not making
// instances of it (FILE_APPEND_DATA), with which it could pose as the server.
extern const std::uint32_t kPipeClientAccess;

// How every pipe is made: whole messages, and from this machine only.
extern const std::uint32_t kPipeMode;

// What `error`, which CreateNamedPipeW() gave for the pipe `name`, means. For
// the first instance of a pipe: ALREADY_EXISTS when the name is taken.
absl::Status PipeCreationError(std::uint32_t error, const std::wstring& name,
                               bool first);

// `address` as Windows takes it. INVALID_ARGUMENT unless it is a pipe's name
// on this machine.
absl::StatusOr<std::wstring> PipeName(const std::string& address);

// Makes an instance of the pipe `name` for one client. Only users of
// `descriptor` (a security descriptor) reach it, none of them from another
// machine. With `first` it fails with ALREADY_EXISTS when there is a pipe of
// this name, so that nobody can stand before it and take its clients.
absl::StatusOr<OsHandle> CreatePipeInstance(const std::wstring& name,
                                            void* descriptor, bool first);

// Opens the pipe `name` as a client whom the server cannot impersonate.
// NOT_FOUND when there is none; DEADLINE_EXCEEDED when all its instances stay
// taken; INVALID_ARGUMENT when it is not in message mode.
absl::StatusOr<OsHandle> OpenPipe(const std::wstring& name,
                                  const std::string& address,
                                  Deadline deadline);

// INVALID_ARGUMENT unless `pipe` is in the mode in which OpenPipe() and
// CreatePipeInstance() open one: no call of the system's waits by itself, and
// one message is read at a time.
absl::Status CheckPipeMode(const OsHandle& pipe);

// What ends a wait: the caller's event, and one that says the channel is broken.
// An event, and not CancelIoEx() alone, which does not reach who is just about
// to begin. Either may be null.
struct Interrupts {
  Cancels cancels = {};
  const OsHandle* broken = nullptr;
};

// An event for an operation in progress.
absl::StatusOr<OsHandle> MakeEvent();

// Writes one message. UNAVAILABLE when the peer hung up; otherwise as
// WaitForHandles(). After an error, and when it throws for want of memory,
// nothing was written. Tried before it waits.
// `event` is from MakeEvent(), used by nobody else meanwhile.
absl::Status WriteMessage(const OsHandle& pipe, const OsHandle& event,
                          absl::Span<const std::uint8_t> message,
                          Deadline deadline, const Interrupts& interrupts,
                          absl::string_view what);

// Reads one message and answers its size. UNAVAILABLE when the peer hung up
// and everything it wrote was read; DATA_LOSS when the message does not fit
// `buffer`; otherwise as WaitForHandles(), and then nothing was read. Neither
// was a message when it throws for want of memory.
absl::StatusOr<std::size_t> ReadMessage(const OsHandle& pipe,
                                        const OsHandle& event,
                                        absl::Span<std::uint8_t> buffer,
                                        Deadline deadline,
                                        const Interrupts& interrupts,
                                        absl::string_view what);

// Copies the beginning of the next message to `buffer` without taking it.
// The size of the whole message, or 0 when none is waiting.
std::size_t PeekAhead(const OsHandle& pipe, absl::Span<std::uint8_t> buffer);

// Whether the other end is closed, even if what it wrote is still unread.
bool OtherEndIsClosed(const OsHandle& pipe);

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_IPC_PIPE_WIN_H_
