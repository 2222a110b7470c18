#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "platform/check.h"
#include "platform/os_error.h"

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

}  // namespace

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
  char text[128] = "";
  // The GNU strerror_r, which may answer a string of its own.
  const char* description = ::strerror_r(code, text, sizeof(text));
  return absl::Status(status, absl::StrCat(call, " failed with ", name, " (",
                                           code, ": ", description, ")",
                                           advice.empty() ? "" : ". ", advice));
}

}  // namespace vmm::platform
