#include "platform/ipc/peer_win.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <aclapi.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/status_macros.h"
#include "platform/ipc/pipe_win.h"
#include "platform/os/os_error.h"
#include "platform/os/security_win.h"
#include "platform/os/wait_win.h"

namespace vmm::platform {
namespace {

OsHandle OpenProcessWith(DWORD access, ULONG pid) {
  // Null when it fails.
  return OsHandle::Adopt(reinterpret_cast<std::intptr_t>(
      ::OpenProcess(access, /*inherit=*/FALSE, pid)));
}

std::uint64_t Number(const FILETIME& time) {
  return std::uint64_t{time.dwHighDateTime} << 32 | time.dwLowDateTime;
}

// Whether `process` can be the one at the other end of `pipe`: it lives, it is
// no younger than the connection, and that still stands. If the one that
// connected had ended, the pipe would be closed, unless it gave its end away.
bool IsStillThePeer(const OsHandle& process, const OsHandle& pipe,
                    std::uint64_t connected) {
  FILETIME created, exited, kernel, user, now;
  const std::intptr_t handle = process.get();
  if (::GetProcessTimes(Raw(process), &created, &exited, &kernel, &user) == 0) {
    return false;
  }
  // Precise, and after the other: no process is younger than that.
  ::GetSystemTimePreciseAsFileTime(&now);
  return CanBePeer(Number(created), connected, Number(now)) &&
         !WaitForHandles(absl::MakeConstSpan(&handle, 1), absl::InfinitePast(),
                         {}, "")
              .ok() &&
         !OtherEndIsClosed(pipe);
}

absl::StatusOr<UserId> OwnerOf(const OsHandle& pipe) {
  PSID owner = nullptr;
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (const DWORD error = ::GetSecurityInfo(
          Raw(pipe), SE_KERNEL_OBJECT, OWNER_SECURITY_INFORMATION, &owner,
          nullptr, nullptr, nullptr, &descriptor);
      error != ERROR_SUCCESS) {
    return OsError(static_cast<int>(error), "GetSecurityInfo(pipe)");
  }
  const LocalMemory owned = LocalMemory::Adopt(descriptor);
  if (owner == nullptr) {
    return absl::PermissionDeniedError("the pipe has no owner");
  }
  return UserOfSid(owner);
}

absl::Status Ended(ULONG pid) {
  return absl::UnavailableError(absl::StrCat(
      "the peer, process ", pid, ", has ended or closed the connection"));
}

}  // namespace

bool CurrentUserIsUnknown() { return false; }

std::uint64_t TimeOfDay() {
  FILETIME now;
  ::GetSystemTimeAsFileTime(&now);
  return Number(now);
}

bool CanBePeer(std::uint64_t created, std::uint64_t connected,
               std::uint64_t now) {
  return created <= connected || created > now;
}

absl::StatusOr<Peer> ReadClient(const OsHandle& pipe, std::uint64_t connected) {
  ULONG pid = 0;
  if (::GetNamedPipeClientProcessId(Raw(pipe), &pid) == 0) {
    return LastError().Of("GetNamedPipeClientProcessId()");
  }
  constexpr DWORD kAsk = SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION;
  Peer peer;
  peer.process = OpenProcessWith(kAsk | PROCESS_DUP_HANDLE, pid);
  peer.may_duplicate = peer.process.has_value();
  if (!peer.may_duplicate) peer.process = OpenProcessWith(kAsk, pid);
  if (!peer.process.has_value()) {
    const DWORD error = ::GetLastError();
    if (error == ERROR_INVALID_PARAMETER) return Ended(pid);
    return OsError(static_cast<int>(error),
                   absl::StrCat("OpenProcess(", pid, ")"),
                   "A client that this process may not open cannot be known.");
  }
  if (!IsStillThePeer(peer.process, pipe, connected)) return Ended(pid);
  ASSIGN_OR_RETURN(UserId user, UserOfProcess(peer.process.get()));
  peer.credentials = {std::move(user), pid};
  return peer;
}

absl::StatusOr<Peer> ReadServer(const OsHandle& pipe) {
  const std::uint64_t asked = TimeOfDay();
  ULONG pid = 0;
  if (::GetNamedPipeServerProcessId(Raw(pipe), &pid) == 0) {
    return LastError().Of("GetNamedPipeServerProcessId()");
  }
  ServerFacts facts;
  ASSIGN_OR_RETURN(facts.owner, OwnerOf(pipe));
  ASSIGN_OR_RETURN(facts.own_integrity,
                   IntegrityOfProcess(
                       reinterpret_cast<std::intptr_t>(::GetCurrentProcess())));
  // Never with the right to duplicate: a server's handles are its own.
  Peer peer;
  peer.process =
      OpenProcessWith(SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION, pid);
  if (peer.process.has_value()) {
    if (!IsStillThePeer(peer.process, pipe, asked)) return Ended(pid);
    absl::StatusOr<UserId> user = UserOfProcess(peer.process.get());
    absl::StatusOr<std::uint32_t> integrity =
        IntegrityOfProcess(peer.process.get());
    if (user.ok() && integrity.ok()) {
      facts.process_user = *std::move(user);
      facts.integrity = *integrity;
    } else {
      peer.process.Reset();
    }
  }
  RETURN_IF_ERROR(CheckServer(facts, pid));
  peer.credentials = {facts.owner, pid};
  return peer;
}

absl::Status CheckServer(const ServerFacts& server, std::int64_t pid) {
  if (server.process_user.has_value() && *server.process_user != server.owner) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the pipe belongs to user ", server.owner.text(),
        ", and the process that served it, ", pid, ", is of user ",
        server.process_user->text(),
        ": it has given the pipe away, or ended. Connect only to a Listener."));
  }
  // Without it a service is told from its own user's programs by its user.
  const bool is_trusted = server.integrity.has_value()
                              ? *server.integrity >= server.own_integrity
                              : server.owner != CurrentUser();
  if (is_trusted) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the server, process ", pid, " of user ", server.owner.text(), ", has ",
      server.integrity.has_value()
          ? absl::StrFormat("the integrity level 0x%x", *server.integrity)
          : "an integrity level that this process may not ask for",
      absl::StrFormat(
          ", and this process 0x%x. A client trusts its server with "
          "its handles. Run both at one level, or let the one with "
          "more rights listen.",
          server.own_integrity)));
}

absl::Status CheckPeer(const PeerCredentials& peer, const PeerPolicy& policy) {
  return CheckListed(peer, policy);
}

}  // namespace vmm::platform
