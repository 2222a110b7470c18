// Processes and users: who this process is, and whether another one lives.
//
// A process id is for messages to people: ids are reused. What is held here is
// the operating system's own reference (a pidfd, a process handle), which
// never comes to mean another process.
#ifndef VMMSHARE_PLATFORM_OS_PROCESS_H_
#define VMMSHARE_PLATFORM_OS_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "platform/os/deadline.h"
#include "platform/os/os_handle.h"

namespace vmm::platform {

// A user of the operating system: a uid in decimal, a SID on Windows.
class UserId {
 public:
  UserId() = default;
  explicit UserId(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }
  friend bool operator==(const UserId&, const UserId&) = default;
  friend auto operator<=>(const UserId&, const UserId&) = default;

 private:
  std::string text_;
};

// The effective user of this process.
UserId CurrentUser();

// This process's id, for messages.
std::int64_t CurrentProcessId();

// Whether this process was forked from the one in which vmmshare was first
// used: such a child owns nothing of its parent's. Always false on Windows.
bool IsForkedChild();

// How many forks lie between this process and the one that called this first:
// who remembers it can tell a forked child from itself, without a system call.
// Always 0 on Windows.
std::uint64_t ForksSoFar();

// An object has one to know whether it is used in the process that made it, or in a
// forked child of that.
class MadeHere {
 public:
  bool is_still_here() const { return forks_ == ForksSoFar(); }

 private:
  std::uint64_t forks_ = ForksSoFar();
};

// Another one in each forked child, and never 0: who remembers it can tell a child
// from itself. By the process's id, and by ForksSoFar(), for a child in another
// namespace may have its parent's id, as each container's first process has 1. What
// the C library's fork() did not make is told by the id alone.
std::uint64_t ProcessMark();

// Changes with every fork of this process, in the parent and in the child: who
// remembers it knows whether another process may have this one's descriptors.
// Children that a system call makes without the C library's fork(), as those of
// posix_spawn() are, do not count. Always 0 on Windows.
std::uint64_t ForkEpoch();

// Lets this process open as many descriptors as it may at all: its soft limit
// becomes its hard one. For programs that hold many; nothing to do on Windows.
absl::Status RaiseDescriptorLimit();

// The file name of the system's CUDA driver: "libcuda.so.1", "nvcuda.dll".
const char* SystemDriverName();

// The file name of the system's NVML: "libnvidia-ml.so.1", "nvml.dll".
const char* SystemNvmlName();

// A running (or just ended) process. Copies share one reference. Thread-safe when
// const.
class Process {
 public:
  // The process with this id now. The caller must know that the id cannot have
  // been reused meanwhile (its own child; a peer whose connection is open, see
  // Channel::OpenPeer). NOT_FOUND when there is none; UNIMPLEMENTED where the
  // system has no such references (Linux before 5.3).
  static absl::StatusOr<Process> Open(std::int64_t pid);

  // Takes over an operating-system reference (a pidfd, a process handle), or
  // shares one. REQUIRES: it is open.
  static Process FromHandle(OsHandle handle, std::int64_t pid);
  static Process FromHandle(std::shared_ptr<const OsHandle> handle,
                            std::int64_t pid);

  // For messages only.
  std::int64_t pid() const { return pid_; }

  // Whether the process has ended (a zombie has).
  absl::StatusOr<bool> HasExited() const;

  // Returns once the process has ended; DEADLINE_EXCEEDED if it has not by
  // `deadline`.
  absl::Status WaitForExit(Deadline deadline) const;

  // Equal of references to one process, and of no two processes since the system
  // started: also of those that have no number in this namespace. 0 where the
  // system does not tell (Linux before 6.9, Windows).
  std::uint64_t Identity() const;

  // REQUIRES: not moved from.
  const OsHandle& handle() const { return *handle_; }

 private:
  Process(std::shared_ptr<const OsHandle> handle, std::int64_t pid)
      : handle_(std::move(handle)), pid_(pid) {}

  std::shared_ptr<const OsHandle> handle_;
  std::int64_t pid_;
};

}  // namespace vmm::platform

#endif  // VMMSHARE_PLATFORM_OS_PROCESS_H_
