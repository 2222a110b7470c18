#include "platform/ipc/pipe_win.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <winternl.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/ipc/peer.h"
#include "platform/os/os_error.h"
#include "platform/os/utf16_win.h"

// Exported by ntdll.dll; its constants are the driver kit's.
extern "C" NTSTATUS NTAPI
NtQueryInformationFile(HANDLE file, PIO_STATUS_BLOCK status, void* information,
                       ULONG length, FILE_INFORMATION_CLASS information_class);

namespace vmm::platform {

const char kPipePrefix[] = "\\\\.\\pipe\\";

const std::uint32_t kPipeClientAccess =
    FILE_GENERIC_READ | FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES | FILE_WRITE_EA;

const std::uint32_t kPipeMode = PIPE_TYPE_MESSAGE | PIPE_READMODE_MESSAGE |
                                PIPE_WAIT | PIPE_REJECT_REMOTE_CLIENTS;

namespace {

// What may wait unread in each direction, in bytes. More waits in WriteFile. No
// more than a socket of Linux takes: memory whose handles a peer leaves unread
// is held until it is disconnected.
constexpr DWORD kBufferSize = 64 << 10;

// FilePipeLocalInformation.
constexpr int kPipeLocalInformation = 24;
struct PipeLocalInformation {
  ULONG type;
  ULONG configuration;
  ULONG maximum_instances;
  ULONG current_instances;
  ULONG inbound_quota;
  ULONG read_data_available;
  ULONG outbound_quota;
  ULONG write_quota_available;
  ULONG state;
  ULONG end;
};
constexpr ULONG kConnectedState = 3;

// FileModeInformation, and of what it answers: FILE_SYNCHRONOUS_IO_ALERT and
// FILE_SYNCHRONOUS_IO_NONALERT.
constexpr int kModeInformation = 16;
constexpr ULONG kSynchronous = 0x10 | 0x20;

bool MeansHungUp(DWORD error) {
  return error == ERROR_BROKEN_PIPE || error == ERROR_NO_DATA ||
         error == ERROR_PIPE_NOT_CONNECTED;
}

}  // namespace

absl::StatusOr<std::wstring> PipeName(const std::string& address) {
  constexpr std::size_t kLongest = 256;  // The system's limit.
  absl::StatusOr<std::wstring> wide = ToUtf16(address);
  const std::size_t prefix = absl::string_view(kPipePrefix).size();
  // No slash of either kind: the system takes both, and ".." before one leads
  // out of the pipes, to a file or another machine.
  if (!wide.ok() || !absl::StartsWithIgnoreCase(address, kPipePrefix) ||
      address.size() == prefix || address.size() > kLongest ||
      address.find_first_of("/\\", prefix) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CHexEscape(address.substr(0, kLongest + 1)),
        "\" is not a channel's address: the name of a pipe of this machine, "
        "\\\\.\\pipe\\NAME, as Listener::address() answers it"));
  }
  return wide;
}

absl::Status PipeCreationError(std::uint32_t error, const std::wstring& name,
                               bool first) {
  absl::Status status =
      OsError(static_cast<int>(error),
              absl::StrCat("CreateNamedPipeW(", ToUtf8(name), ")"));
  // What the flag for the first instance answers.
  return first && (error == ERROR_ACCESS_DENIED || error == ERROR_PIPE_BUSY)
             ? TakenByProcessError(
                   absl::StrCat(status.message(),
                                ". The name is taken by a living process. "
                                "Choose another name."))
             : status;
}

absl::StatusOr<OsHandle> CreatePipeInstance(const std::wstring& name,
                                            void* descriptor, bool first) {
  SECURITY_ATTRIBUTES security = {sizeof(security), descriptor,
                                  /*inherit=*/FALSE};
  const HANDLE pipe =
      ::CreateNamedPipeW(name.c_str(),
                         PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED |
                             (first ? FILE_FLAG_FIRST_PIPE_INSTANCE : 0),
                         kPipeMode, PIPE_UNLIMITED_INSTANCES, kBufferSize,
                         kBufferSize, 0, &security);
  if (pipe == INVALID_HANDLE_VALUE) {
    return PipeCreationError(::GetLastError(), name, first);
  }
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(pipe));
}

absl::StatusOr<OsHandle> OpenPipe(const std::wstring& name,
                                  const std::string& address,
                                  Deadline deadline) {
  const std::string call = absl::StrCat("CreateFileW(", address, ")");
  for (;;) {
    const HANDLE raw = ::CreateFileW(
        name.c_str(), kPipeClientAccess, /*sharing=*/0, nullptr, OPEN_EXISTING,
        FILE_FLAG_OVERLAPPED | SECURITY_SQOS_PRESENT | SECURITY_ANONYMOUS,
        nullptr);
    if (raw != INVALID_HANDLE_VALUE) {
      OsHandle pipe = OsHandle::Adopt(reinterpret_cast<std::intptr_t>(raw));
      DWORD mode = PIPE_READMODE_MESSAGE;
      if (::SetNamedPipeHandleState(raw, &mode, nullptr, nullptr) == 0) {
        const DWORD error = ::GetLastError();
        if (MeansHungUp(error)) {
          return absl::UnavailableError(absl::StrCat(
              address, ": the listener ended before it took the connection"));
        }
        return absl::InvalidArgumentError(absl::StrCat(
            OsError(static_cast<int>(error), "SetNamedPipeHandleState()")
                .message(),
            ". The pipe ", address,
            " does not keep messages apart, so it is no channel's."));
      }
      return pipe;
    }
    const DWORD error = ::GetLastError();
    if (error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND) {
      return absl::NotFoundError(
          absl::StrCat(OsError(static_cast<int>(error), call).message(),
                       ". Nobody listens there."));
    }
    if (error != ERROR_PIPE_BUSY) {
      return OsError(static_cast<int>(error), call);
    }
    const absl::Duration left = deadline.Left();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          call, ": the listener took no connection before the deadline"));
    }
    // 0 would mean the default; whatever it answers, opening tells more.
    ::WaitNamedPipeW(name.c_str(),
                     static_cast<DWORD>(std::clamp<std::int64_t>(
                         absl::ToInt64Milliseconds(left), 1, 60'000)));
  }
}

absl::Status CheckPipeMode(const OsHandle& pipe) {
  IO_STATUS_BLOCK status = {};
  ULONG mode = 0;
  // A system that does not tell is believed.
  if (::NtQueryInformationFile(
          Raw(pipe), &status, &mode, sizeof(mode),
          static_cast<FILE_INFORMATION_CLASS>(kModeInformation)) >= 0 &&
      (mode & kSynchronous) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the pipe %d has the mode 0x%x: it was opened without "
        "FILE_FLAG_OVERLAPPED, and no deadline would hold. Open it with that.",
        pipe.get(), mode));
  }
  DWORD state = 0;
  if (::GetNamedPipeHandleStateW(Raw(pipe), &state, nullptr, nullptr, nullptr,
                                 nullptr, 0) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return absl::InvalidArgumentError(
        OsError(error,
                absl::StrCat("GetNamedPipeHandleStateW(", pipe.get(), ")"))
            .message());
  }
  constexpr DWORD kReading = PIPE_READMODE_MESSAGE | PIPE_WAIT;
  if ((state & (PIPE_READMODE_MESSAGE | PIPE_NOWAIT)) == kReading) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "the pipe %d has the state 0x%x, and not 0x%x (PIPE_READMODE_MESSAGE | "
      "PIPE_WAIT), without which messages run together or none is waited for. "
      "Set it by SetNamedPipeHandleState().",
      pipe.get(), state, kReading));
}

bool OtherEndIsClosed(const OsHandle& pipe) {
  IO_STATUS_BLOCK status = {};
  PipeLocalInformation information = {};
  return ::NtQueryInformationFile(
             Raw(pipe), &status, &information, sizeof(information),
             static_cast<FILE_INFORMATION_CLASS>(kPipeLocalInformation)) < 0 ||
         information.state != kConnectedState;
}

}  // namespace vmm::platform
