#include <windows.h>

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "platform/base/check.h"
#include "platform/os/os_error.h"
#include "platform/os/utf16_win.h"

namespace vmm::platform {
namespace {

struct ErrorRow {
  DWORD code;
  const char* name;
  absl::StatusCode status;
};

// docs/errors.md repeats this table. Codes that are not in it are UNKNOWN.
constexpr ErrorRow kErrors[] = {
    {ERROR_ACCESS_DENIED, "ERROR_ACCESS_DENIED",
     absl::StatusCode::kPermissionDenied},
    {ERROR_PRIVILEGE_NOT_HELD, "ERROR_PRIVILEGE_NOT_HELD",
     absl::StatusCode::kPermissionDenied},
    {ERROR_FILE_NOT_FOUND, "ERROR_FILE_NOT_FOUND", absl::StatusCode::kNotFound},
    {ERROR_PATH_NOT_FOUND, "ERROR_PATH_NOT_FOUND", absl::StatusCode::kNotFound},
    {ERROR_MOD_NOT_FOUND, "ERROR_MOD_NOT_FOUND", absl::StatusCode::kNotFound},
    {ERROR_PROC_NOT_FOUND, "ERROR_PROC_NOT_FOUND", absl::StatusCode::kNotFound},
    {ERROR_NOT_FOUND, "ERROR_NOT_FOUND", absl::StatusCode::kNotFound},
    {ERROR_INVALID_DRIVE, "ERROR_INVALID_DRIVE", absl::StatusCode::kNotFound},
    {ERROR_FILE_EXISTS, "ERROR_FILE_EXISTS", absl::StatusCode::kAlreadyExists},
    {ERROR_ALREADY_EXISTS, "ERROR_ALREADY_EXISTS",
     absl::StatusCode::kAlreadyExists},
    {ERROR_TOO_MANY_OPEN_FILES, "ERROR_TOO_MANY_OPEN_FILES",
     absl::StatusCode::kResourceExhausted},
    {ERROR_NOT_ENOUGH_MEMORY, "ERROR_NOT_ENOUGH_MEMORY",
     absl::StatusCode::kResourceExhausted},
    {ERROR_OUTOFMEMORY, "ERROR_OUTOFMEMORY",
     absl::StatusCode::kResourceExhausted},
    {ERROR_NO_SYSTEM_RESOURCES, "ERROR_NO_SYSTEM_RESOURCES",
     absl::StatusCode::kResourceExhausted},
    {ERROR_NOT_ENOUGH_QUOTA, "ERROR_NOT_ENOUGH_QUOTA",
     absl::StatusCode::kResourceExhausted},
    {ERROR_COMMITMENT_LIMIT, "ERROR_COMMITMENT_LIMIT",
     absl::StatusCode::kResourceExhausted},
    {ERROR_DISK_FULL, "ERROR_DISK_FULL", absl::StatusCode::kResourceExhausted},
    {ERROR_INVALID_HANDLE, "ERROR_INVALID_HANDLE",
     absl::StatusCode::kInvalidArgument},
    {ERROR_INVALID_PARAMETER, "ERROR_INVALID_PARAMETER",
     absl::StatusCode::kInvalidArgument},
    {ERROR_INVALID_NAME, "ERROR_INVALID_NAME",
     absl::StatusCode::kInvalidArgument},
    {ERROR_BAD_PATHNAME, "ERROR_BAD_PATHNAME",
     absl::StatusCode::kInvalidArgument},
    {ERROR_INVALID_SID, "ERROR_INVALID_SID",
     absl::StatusCode::kInvalidArgument},
    {ERROR_FILENAME_EXCED_RANGE, "ERROR_FILENAME_EXCED_RANGE",
     absl::StatusCode::kInvalidArgument},
    {ERROR_BAD_EXE_FORMAT, "ERROR_BAD_EXE_FORMAT",
     absl::StatusCode::kFailedPrecondition},
    {ERROR_DLL_INIT_FAILED, "ERROR_DLL_INIT_FAILED",
     absl::StatusCode::kFailedPrecondition},
    {ERROR_SHARING_VIOLATION, "ERROR_SHARING_VIOLATION",
     absl::StatusCode::kFailedPrecondition},
    {ERROR_BUSY, "ERROR_BUSY", absl::StatusCode::kFailedPrecondition},
    {ERROR_BAD_PIPE, "ERROR_BAD_PIPE", absl::StatusCode::kFailedPrecondition},
    {ERROR_CALL_NOT_IMPLEMENTED, "ERROR_CALL_NOT_IMPLEMENTED",
     absl::StatusCode::kUnimplemented},
    {ERROR_NOT_SUPPORTED, "ERROR_NOT_SUPPORTED",
     absl::StatusCode::kUnimplemented},
    {ERROR_INVALID_FUNCTION, "ERROR_INVALID_FUNCTION",
     absl::StatusCode::kUnimplemented},
    {ERROR_PIPE_BUSY, "ERROR_PIPE_BUSY", absl::StatusCode::kUnavailable},
    {ERROR_BROKEN_PIPE, "ERROR_BROKEN_PIPE", absl::StatusCode::kUnavailable},
    {ERROR_NO_DATA, "ERROR_NO_DATA", absl::StatusCode::kUnavailable},
    {ERROR_PIPE_NOT_CONNECTED, "ERROR_PIPE_NOT_CONNECTED",
     absl::StatusCode::kUnavailable},
    {ERROR_PIPE_LISTENING, "ERROR_PIPE_LISTENING",
     absl::StatusCode::kUnavailable},
    {ERROR_MORE_DATA, "ERROR_MORE_DATA", absl::StatusCode::kDataLoss},
    {WAIT_TIMEOUT, "WAIT_TIMEOUT", absl::StatusCode::kDeadlineExceeded},
    {ERROR_SEM_TIMEOUT, "ERROR_SEM_TIMEOUT",
     absl::StatusCode::kDeadlineExceeded},
    {ERROR_TIMEOUT, "ERROR_TIMEOUT", absl::StatusCode::kDeadlineExceeded},
    {ERROR_OPERATION_ABORTED, "ERROR_OPERATION_ABORTED",
     absl::StatusCode::kCancelled},
    {ERROR_GEN_FAILURE, "ERROR_GEN_FAILURE", absl::StatusCode::kInternal},
    {ERROR_INTERNAL_ERROR, "ERROR_INTERNAL_ERROR", absl::StatusCode::kInternal},
};

// The system's words for `code`, in the language of the machine.
std::string Description(DWORD code) {
  wchar_t text[256];
  DWORD size = ::FormatMessageW(
      FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS |
          FORMAT_MESSAGE_MAX_WIDTH_MASK,
      nullptr, code, 0, text, static_cast<DWORD>(std::size(text)), nullptr);
  while (size > 0 && (text[size - 1] == L' ' || text[size - 1] == L'.')) {
    --size;
  }
  return size == 0 ? "no description" : ToUtf8(std::wstring_view(text, size));
}

}  // namespace

LastError::LastError() : code_(static_cast<int>(::GetLastError())) {}

std::string NearLimit() { return ""; }

absl::Status OsError(int code, absl::string_view call,
                     absl::string_view advice) {
  Check(code != 0, "OsError() needs an error code, and 0 is none");
  const auto number = static_cast<DWORD>(code);
  absl::string_view name = "an unlisted error";
  absl::StatusCode status = absl::StatusCode::kUnknown;
  for (const ErrorRow& row : kErrors) {
    if (row.code == number) {
      name = row.name;
      status = row.status;
      break;
    }
  }
  return absl::Status(
      status, absl::StrCat(call, " failed with ", name, " (", number, ": ",
                           Description(number), ")", advice.empty() ? "" : ". ",
                           advice));
}

}  // namespace vmm::platform
