#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/map_error_posix.h"
#include "platform/os/os_error.h"
#include "platform/os/quiet_thread.h"

namespace vmm::platform {
namespace {

struct ErrorRow {
  int code;
  const char* name;
  absl::StatusCode status;
};

// docs/errors.md repeats this table. Codes that are not in it are UNKNOWN.
constexpr ErrorRow kErrors[] = {
    {EPERM, "EPERM", absl::StatusCode::kPermissionDenied},
    {EACCES, "EACCES", absl::StatusCode::kPermissionDenied},
    {EROFS, "EROFS", absl::StatusCode::kPermissionDenied},
    {ENOENT, "ENOENT", absl::StatusCode::kNotFound},
    {ESRCH, "ESRCH", absl::StatusCode::kNotFound},
    {ENODEV, "ENODEV", absl::StatusCode::kNotFound},
    {ENXIO, "ENXIO", absl::StatusCode::kNotFound},
    {ECHILD, "ECHILD", absl::StatusCode::kNotFound},
    {EEXIST, "EEXIST", absl::StatusCode::kAlreadyExists},
    {EADDRINUSE, "EADDRINUSE", absl::StatusCode::kAlreadyExists},
    {EMFILE, "EMFILE", absl::StatusCode::kResourceExhausted},
    {ENFILE, "ENFILE", absl::StatusCode::kResourceExhausted},
    {ENOMEM, "ENOMEM", absl::StatusCode::kResourceExhausted},
    {ENOBUFS, "ENOBUFS", absl::StatusCode::kResourceExhausted},
    {ENOSPC, "ENOSPC", absl::StatusCode::kResourceExhausted},
    {EDQUOT, "EDQUOT", absl::StatusCode::kResourceExhausted},
    {ENOLCK, "ENOLCK", absl::StatusCode::kResourceExhausted},
    {EMLINK, "EMLINK", absl::StatusCode::kResourceExhausted},
    {EFBIG, "EFBIG", absl::StatusCode::kResourceExhausted},
    {ETOOMANYREFS, "ETOOMANYREFS", absl::StatusCode::kResourceExhausted},
    {EINVAL, "EINVAL", absl::StatusCode::kInvalidArgument},
    {EBADF, "EBADF", absl::StatusCode::kInvalidArgument},
    {EFAULT, "EFAULT", absl::StatusCode::kInvalidArgument},
    {ENOTTY, "ENOTTY", absl::StatusCode::kInvalidArgument},
    {ENOTSOCK, "ENOTSOCK", absl::StatusCode::kInvalidArgument},
    {EPROTOTYPE, "EPROTOTYPE", absl::StatusCode::kInvalidArgument},
    {ENAMETOOLONG, "ENAMETOOLONG", absl::StatusCode::kInvalidArgument},
    {EMSGSIZE, "EMSGSIZE", absl::StatusCode::kInvalidArgument},
    {E2BIG, "E2BIG", absl::StatusCode::kInvalidArgument},
    {ENOTDIR, "ENOTDIR", absl::StatusCode::kFailedPrecondition},
    {EISDIR, "EISDIR", absl::StatusCode::kFailedPrecondition},
    {ESPIPE, "ESPIPE", absl::StatusCode::kFailedPrecondition},
    {ELOOP, "ELOOP", absl::StatusCode::kFailedPrecondition},
    {EBUSY, "EBUSY", absl::StatusCode::kFailedPrecondition},
    {ETXTBSY, "ETXTBSY", absl::StatusCode::kFailedPrecondition},
    {EISCONN, "EISCONN", absl::StatusCode::kFailedPrecondition},
    {ENOSYS, "ENOSYS", absl::StatusCode::kUnimplemented},
    {EOPNOTSUPP, "EOPNOTSUPP", absl::StatusCode::kUnimplemented},
    {ENOPROTOOPT, "ENOPROTOOPT", absl::StatusCode::kUnimplemented},
    {EAFNOSUPPORT, "EAFNOSUPPORT", absl::StatusCode::kUnimplemented},
    {EPROTONOSUPPORT, "EPROTONOSUPPORT", absl::StatusCode::kUnimplemented},
    {EAGAIN, "EAGAIN", absl::StatusCode::kUnavailable},
    {EINTR, "EINTR", absl::StatusCode::kUnavailable},
    {EPIPE, "EPIPE", absl::StatusCode::kUnavailable},
    {ENOTCONN, "ENOTCONN", absl::StatusCode::kUnavailable},
    {ECONNRESET, "ECONNRESET", absl::StatusCode::kUnavailable},
    {ECONNREFUSED, "ECONNREFUSED", absl::StatusCode::kUnavailable},
    {ECONNABORTED, "ECONNABORTED", absl::StatusCode::kUnavailable},
    {ETIMEDOUT, "ETIMEDOUT", absl::StatusCode::kDeadlineExceeded},
    {ECANCELED, "ECANCELED", absl::StatusCode::kCancelled},
    {EIO, "EIO", absl::StatusCode::kInternal},
};

// With fewer, a call that takes some for a moment may have failed for that.
constexpr rlim_t kFewDescriptors = 16;
// For a small program that shares memory.
constexpr rlim_t kEnoughDescriptors = 64;

std::string DescriptorLimit(bool was_met) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  // From the top, where they are free unless hardly any is.
  rlim_t left = 0;
  for (rlim_t fd = limit.rlim_cur; fd > 0 && left < kFewDescriptors; --fd) {
    if (::fcntl(static_cast<int>(fd - 1), F_GETFD) < 0) ++left;
  }
  if (left == kFewDescriptors && !was_met) return "";
  return absl::StrCat(left, " of the ", limit.rlim_cur,
                      " descriptors that this process may have open (ulimit "
                      "-n) are left; allow it at least ",
                      std::max(kEnoughDescriptors, 2 * limit.rlim_cur));
}

std::string AddressSpaceLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return absl::StrCat("This process may map ", limit.rlim_cur >> 20,
                      " MiB (ulimit -v), and CUDA maps more than it allocates; "
                      "set no such limit");
}

std::string FileSizeLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return absl::StrCat("This process may make files of ", limit.rlim_cur,
                      " bytes (ulimit -f), and memory that is shared is one; "
                      "set no such limit");
}

// Whether a thread's stack would be locked as soon as it is mapped, and no more may
// be locked.
bool NoStackCanBeLocked() {
  pthread_attr_t attributes;
  std::size_t size = 0;
  if (::pthread_attr_init(&attributes) != 0) return false;
  ::pthread_attr_getstacksize(&attributes, &size);
  ::pthread_attr_destroy(&attributes);
  void* const stack =
      ::mmap(nullptr, size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return errno == EAGAIN;
  ::munmap(stack, size);
  return false;
}

// By trying, for it is the user's processes that count, or a container's, and
// root may have as many as it likes.
std::string ThreadLimit() {
  pthread_t thread{};
  int error = 0;
  StartQuietly([&] {
    error = ::pthread_create(
        &thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr);
  });
  if (error == 0) ::pthread_join(thread, nullptr);
  if (error == EPERM) {
    return "This process may start no thread: a seccomp profile or a security "
           "module refuses it. Docker before 20.10.10 refuses clone3(), by "
           "which newer C libraries start threads: allow that call, or use a "
           "newer release";
  }
  if (error == EAGAIN && NoStackCanBeLocked()) return LockedMemoryLimit();
  rlimit limit{};
  if (error != EAGAIN || ::getrlimit(RLIMIT_NPROC, &limit) != 0) return "";
  return absl::StrCat(
      "This process can start no further thread; its user may have ",
      limit.rlim_cur == RLIM_INFINITY ? "any number"
                                      : absl::StrCat(limit.rlim_cur),
      " of processes and threads together (ulimit -u), its container perhaps "
      "fewer (pids.max); raise that");
}

// What to do when a call failed for want of something.
std::string LimitOf(int code) {
  if (code == EMFILE) return DescriptorLimit(/*was_met=*/true);
  if (code == EAGAIN) return ThreadLimit();
  if (code == EFBIG) return FileSizeLimit();
  return code == ENOMEM ? AddressSpaceLimit() : "";
}

}  // namespace

LastError::LastError() : code_(errno) {}

std::string NearLimit() {
  std::string limit = DescriptorLimit(/*was_met=*/false);
  if (limit.empty()) limit = AddressSpaceLimit();
  if (limit.empty()) limit = FileSizeLimit();
  return limit.empty() ? ThreadLimit() : limit;
}

absl::Status OsError(int code, absl::string_view call,
                     absl::string_view advice) {
  Check(code != 0, "OsError() needs an error code, and 0 is none");
  absl::string_view name = "an unlisted errno";
  absl::StatusCode status = absl::StatusCode::kUnknown;
  for (const ErrorRow& row : kErrors) {
    if (row.code == code) {
      name = row.name;
      status = row.status;
      break;
    }
  }
  const std::string limit = LimitOf(code);
  if (!limit.empty()) advice = limit;
  char text[128] = "";
  // The GNU strerror_r, which may answer a string of its own.
  const char* description = ::strerror_r(code, text, sizeof(text));
  return absl::Status(status, absl::StrCat(call, " failed with ", name, " (",
                                           code, ": ", description, ")",
                                           advice.empty() ? "" : ". ", advice));
}

}  // namespace vmm::platform
