// The system calls that can be failed, and the errors their manuals document.
//
// Left out are errors that only a bug of the caller explains (EBADF, EFAULT):
// injecting those would test nothing that can happen. So are EOVERFLOW, which
// needs a 32-bit system, and EINTR of open(), which needs a slow device. The
// first error of a row is permanent where the call has one: "for ever" uses it.
#ifndef VMMSHARE_TESTS_SUPPORT_SYSCALL_TABLE_POSIX_H_
#define VMMSHARE_TESTS_SUPPORT_SYSCALL_TABLE_POSIX_H_

#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "tests/support/fault_point.h"
#include "tests/support/steps.h"

namespace vmm::testing::internal {

inline constexpr CallKind kAcquire = CallKind::kAcquire;
inline constexpr CallKind kRelease = CallKind::kRelease;
inline constexpr CallKind kNamed = CallKind::kNamed;

struct TableRow {
  std::string_view name;
  CallKind kind;
  std::array<int, 6> errors;  // 0 ends it.
  long number = -1;           // Of a call made through syscall().

  constexpr std::size_t ErrorCount() const {
    std::size_t count = 0;
    while (count < errors.size() && errors[count] != 0) ++count;
    return count;
  }
  constexpr bool Documents(int error) const {
    for (int known : errors) {
      if (known == error) return true;
    }
    return false;
  }
};

inline constexpr TableRow kTable[] = {
    // Sockets.
    {"socket", kAcquire, {EMFILE, ENFILE, ENOBUFS, ENOMEM, EACCES}},
    {"socketpair", kAcquire, {EMFILE, ENFILE, ENOMEM}},
    {"bind", kAcquire, {EACCES, EADDRINUSE, ENOENT, ENOMEM, EROFS, ELOOP}},
    {"listen", kAcquire, {EADDRINUSE}},
    {"accept", kAcquire, {EMFILE, ENFILE, ENOMEM, ECONNABORTED, EAGAIN, EINTR}},
    {"accept4",
     kAcquire,
     {EMFILE, ENFILE, ENOMEM, ECONNABORTED, EAGAIN, EINTR}},
    {"connect",
     kAcquire,
     {ECONNREFUSED, EACCES, ENOENT, EPROTOTYPE, EAGAIN, EINTR}},
    // Nothing is lost by it, and nobody is there to be told.
    {"shutdown", kRelease, {ENOTCONN}},
    {"send", kAcquire, {EPIPE, ECONNRESET, ENOBUFS, EMSGSIZE, EAGAIN, EINTR}},
    {"sendto", kAcquire, {EPIPE, ECONNRESET, ENOBUFS, EMSGSIZE, EAGAIN, EINTR}},
    {"sendmsg",
     kAcquire,
     {EPIPE, ECONNRESET, ENOBUFS, ETOOMANYREFS, EAGAIN, EINTR}},
    {"recv", kAcquire, {ECONNRESET, ENOMEM, EAGAIN, EINTR}},
    {"recvfrom", kAcquire, {ECONNRESET, ENOMEM, EAGAIN, EINTR}},
    {"recvmsg", kAcquire, {ECONNRESET, ENOMEM, EAGAIN, EINTR}},
    // A look at what is being closed.
    {"recvmsg(MSG_PEEK)", kRelease, {ENOMEM, ECONNRESET, EAGAIN, EINTR}},
    {"getsockopt", kAcquire, {ENOPROTOOPT, EINVAL}},
    {"setsockopt", kAcquire, {ENOPROTOOPT, ENOMEM}},
    {"getsockname", kAcquire, {ENOBUFS}},
    {"getpeername", kAcquire, {ENOTCONN, ENOBUFS}},
    // Waiting.
    {"poll", kAcquire, {ENOMEM, EINVAL, EINTR}},
    {"ppoll", kAcquire, {ENOMEM, EINVAL, EINTR}},
    {"epoll_create1", kAcquire, {EMFILE, ENFILE, ENOMEM}},
    {"epoll_ctl", kAcquire, {ENOSPC, ENOMEM}},
    {"epoll_wait", kAcquire, {EINVAL, EINTR}},
    {"nanosleep", kAcquire, {EINVAL, EINTR}},
    // Descriptors.
    {"close", kRelease, {EIO, EDQUOT, EINTR}},
    {"fcntl", kAcquire, {EMFILE, EINVAL, EPERM}},
    {"dup", kAcquire, {EMFILE}},
    {"dup2", kAcquire, {EMFILE, EBUSY, EINTR}},
    {"dup3", kAcquire, {EMFILE, EBUSY, EINTR}},
    {"pipe", kAcquire, {EMFILE, ENFILE}},
    {"pipe2", kAcquire, {EMFILE, ENFILE}},
    {"eventfd", kAcquire, {EMFILE, ENFILE, ENOMEM, ENODEV}},
    {"eventfd_read", kAcquire, {EINVAL, EAGAIN, EINTR}},
    // EINVAL needs a value that is never written, EAGAIN a full counter.
    {"eventfd_write", kAcquire, {EINTR}},
    {"memfd_create", kAcquire, {EMFILE, ENFILE, ENOMEM}},
    {"read", kAcquire, {EIO, EISDIR, EAGAIN, EINTR}},
    {"pread", kAcquire, {EIO, EISDIR, EINTR}},
    {"write", kAcquire, {ENOSPC, EIO, EDQUOT, EPIPE, EAGAIN, EINTR}},
    {"pwrite", kAcquire, {ENOSPC, EIO, EDQUOT, EINTR}},
    {"ioctl", kAcquire, {ENOTTY, EINVAL}},
    // Files and their names.
    {"open", kAcquire, {EMFILE, ENFILE, ENOENT, EACCES, ENOMEM}},
    {"openat", kAcquire, {EMFILE, ENFILE, ENOENT, EACCES, ENOMEM}},
    {"stat", kAcquire, {EACCES, ENOENT, ENOMEM, ELOOP}},
    {"lstat", kAcquire, {EACCES, ENOENT, ENOMEM, ELOOP}},
    {"fstat", kAcquire, {ENOMEM}},
    {"statx", kAcquire, {ENOMEM}},
    {"fstatat", kAcquire, {EACCES, ENOENT, ENOMEM, ELOOP}},
    {"fstatfs", kAcquire, {EIO, ENOMEM, ENOSYS, EINTR}},
    {"statfs", kAcquire, {EACCES, EIO, ENOENT, ENOMEM, ENOSYS}},
    {"opendir", kAcquire, {EMFILE, ENFILE, EACCES, ENOENT, ENOMEM}},
    {"fdopendir", kAcquire, {ENOMEM}},
    {"readdir", kAcquire, {ENOENT}},
    {"closedir", kRelease, {EIO}},
    {"access", kAcquire, {EACCES, ENOENT, EIO, ENOMEM}},
    {"readlink", kAcquire, {EACCES, EINVAL, ENOENT, EIO, ENOMEM}},
    {"readlinkat", kAcquire, {EACCES, EINVAL, ENOENT, EIO, ENOMEM}},
    {"realpath", kAcquire, {EACCES, ENOENT, ELOOP, ENOMEM, EIO}},
    {"mkdir", kAcquire, {EACCES, ENOSPC, ENOENT, EROFS, ENOMEM, EEXIST}},
    {"mkdirat", kAcquire, {EACCES, ENOSPC, ENOENT, EROFS, ENOMEM, EEXIST}},
    {"chmod", kAcquire, {EPERM, EROFS, ENOENT, EIO}},
    {"fchmod", kAcquire, {EPERM, EROFS, EIO}},
    {"fchmodat", kAcquire, {EPERM, EROFS, ENOENT, EIO}},
    {"link", kAcquire, {EACCES, EEXIST, EMLINK, ENOSPC}},
    {"linkat", kAcquire, {EACCES, EEXIST, EMLINK, ENOSPC}},
    {"rename", kAcquire, {EACCES, ENOSPC, ENOENT, EBUSY}},
    {"renameat", kAcquire, {EACCES, ENOSPC, ENOENT, EBUSY}},
    {"ftruncate", kAcquire, {EFBIG, EIO, EPERM, EINTR}},
    {"fsync", kAcquire, {EIO, ENOSPC}},
    {"flock", kAcquire, {ENOLCK, EWOULDBLOCK, EINTR}},
    // Closing releases it as well.
    {"flock(LOCK_UN)", kRelease, {ENOLCK}},
    {"unlink", kRelease, {EACCES, EBUSY, EIO, EROFS}},
    {"unlinkat", kRelease, {EACCES, EBUSY, EIO, EROFS}},
    {"rmdir", kRelease, {EACCES, EBUSY, EROFS}},
    // Memory.
    {"mmap", kAcquire, {ENOMEM, EACCES, EPERM, ENFILE, EAGAIN}},
    {"mprotect", kAcquire, {ENOMEM, EACCES}},
    {"munmap", kRelease, {ENOMEM}},
    // Processes and threads.
    {"waitid", kAcquire, {ECHILD, EINTR}},
    {"waitpid", kAcquire, {ECHILD, EINTR}},
    {"kill", kAcquire, {ESRCH, EPERM}},
    {"gethostname", kAcquire, {ENAMETOOLONG}},
    {"std::thread", kAcquire, {EAGAIN}},
    {"pthread_create", kAcquire, {EAGAIN, EPERM}},
    {"pidfd_open", kAcquire, {EMFILE, ENFILE, ENOSYS, ESRCH, ENOMEM}},
    {"pidfd_send_signal", kAcquire, {ESRCH, EPERM, ENOSYS}},
    {"getrandom", kAcquire, {ENOSYS, EAGAIN, EINTR}},
    {"getentropy", kAcquire, {ENOSYS, EIO}},
    // What a program's own arguments do not make fail, but a container's filter
    // of system calls may; and the user database and the loader, which make
    // calls of their own.
    {"getrlimit", kNamed, {EPERM}},
    {"setrlimit", kNamed, {EPERM}},
    {"getpwnam_r", kNamed, {ENOMEM}},
    {"dlinfo", kNamed, {EINVAL}},
    // Through syscall().
    {"syscall(pidfd_open)",
     kAcquire,
     {EMFILE, ENFILE, ENOSYS, ESRCH, ENOMEM},
     SYS_pidfd_open},
    {"syscall(pidfd_send_signal)",
     kAcquire,
     {ESRCH, EPERM, ENOSYS},
     SYS_pidfd_send_signal},
    {"syscall(pidfd_getfd)",
     kAcquire,
     {EMFILE, EPERM, ESRCH, ENOSYS},
     SYS_pidfd_getfd},
    {"syscall(memfd_create)",
     kAcquire,
     {EMFILE, ENFILE, ENOMEM},
     SYS_memfd_create},
    {"syscall(getrandom)", kAcquire, {ENOSYS, EAGAIN, EINTR}, SYS_getrandom},
    {"syscall(openat2)",
     kAcquire,
     {EMFILE, ENFILE, ENOENT, EACCES, ENOSYS},
     SYS_openat2},
};

// Numbers that syscall() may be called with and that are not failed: they
// report or schedule, and Abseil's mutex makes them on its own.
inline constexpr long kUncounted[] = {SYS_futex, SYS_gettid, SYS_getpid,
                                      SYS_sched_yield};

// The row of `name`; compiling fails when there is none.
consteval const TableRow& RowOf(std::string_view name) {
  for (const TableRow& row : kTable) {
    if (row.name == name) return row;
  }
  throw "no such row";
}

// The row of a call made through syscall(), or null.
constexpr const TableRow* RowOfNumber(long number) {
  for (const TableRow& row : kTable) {
    if (row.number == number) return &row;
  }
  return nullptr;
}

// Asks what becomes of one call.
struct SyscallDecision {
  bool perform = true;
  int error = 0;  // If not 0: to be answered.
};
SyscallDecision DecideSyscall(const TableRow& row);
// Takes note of a syscall() number that is in neither list.
void NoteUnlisted(long number);

// The descriptor by which this thread looks into what a connection leaves unread
// (/proc/self/fdinfo). What fails of that is nobody's business: the connection is
// closed elsewhere then, which os.HangUpTest holds it to.
inline thread_local int look_at_unread = -1;
inline constexpr std::string_view kLooksAtUnread = "/proc/self/fdinfo/";

// Makes the call, or fails it with `failure` and errno.
template <typename Result, typename Perform>
Result Intercept(const TableRow& row, Result failure, Perform perform) {
  const Step step(row.name.data());  // A literal: it ends with a zero.
  const SyscallDecision decision = DecideSyscall(row);
  if (!decision.perform) {
    errno = decision.error;
    return failure;
  }
  const Result result = perform();
  if (decision.error == 0 || result == failure) return result;
  errno = decision.error;
  return failure;
}

}  // namespace vmm::testing::internal

#endif  // VMMSHARE_TESTS_SUPPORT_SYSCALL_TABLE_POSIX_H_
