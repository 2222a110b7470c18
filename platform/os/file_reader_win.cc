#include <windows.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "platform/base/status_macros.h"
#include "platform/os/file_reader.h"
#include "platform/os/os_error.h"
#include "platform/os/utf16_win.h"

namespace vmm::platform {
namespace {

// Paths that are as long are not found unless they say that they may be: a
// folder's from here on, a file's from 260 on.
constexpr DWORD kLongPath = 248;

// `path` as Windows takes it, however long it is.
std::wstring OfAnyLength(const std::wstring& path) {
  // With the zero at its end.
  const DWORD size = ::GetFullPathNameW(path.c_str(), 0, nullptr, nullptr);
  if (size <= kLongPath) return path;
  std::wstring full(size, L'\0');
  const DWORD length =
      ::GetFullPathNameW(path.c_str(), size, full.data(), nullptr);
  if (length == 0 || length >= size) return path;
  full.resize(length);
  // It says so already, or names a device.
  if (full.starts_with(L"\\\\?\\") || full.starts_with(L"\\\\.\\")) return path;
  if (full.starts_with(L"\\\\")) return L"\\\\?\\UNC\\" + full.substr(2);
  return L"\\\\?\\" + full;
}

}  // namespace

absl::StatusOr<FileReader> FileReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::wstring given, ToUtf16(path));
  const std::wstring wide = OfAnyLength(given);
  const HANDLE raw =
      ::CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr,
                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (raw == INVALID_HANDLE_VALUE) {
    const DWORD error = ::GetLastError();
    const DWORD attributes = ::GetFileAttributesW(wide.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES &&
        (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "CreateFileW(", path, "): it is a folder; name a file in it"));
    }
    return OsError(static_cast<int>(error),
                   absl::StrCat("CreateFileW(", path, ")"));
  }
  return FileReader(OsHandle::Adopt(reinterpret_cast<std::intptr_t>(raw)),
                    path);
}

absl::StatusOr<std::uint64_t> FileReader::Size() const {
  LARGE_INTEGER size{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a HANDLE is a number.
  if (!::GetFileSizeEx(reinterpret_cast<HANDLE>(file_.get()), &size)) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("GetFileSizeEx(", path_, ")"));
  }
  return static_cast<std::uint64_t>(size.QuadPart);
}

absl::StatusOr<std::size_t> FileReader::Read(
    std::uint64_t offset, absl::Span<std::uint8_t> bytes) const {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  // No file reaches so far.
  if (offset > INT64_MAX - bytes.size()) return 0;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::uint64_t at = offset + done;
    OVERLAPPED where{};
    where.Offset = static_cast<DWORD>(at);
    where.OffsetHigh = static_cast<DWORD>(at >> 32);
    const auto size = static_cast<DWORD>(std::min(bytes.size() - done, kMost));
    DWORD count = 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a HANDLE is a number.
    if (!::ReadFile(reinterpret_cast<HANDLE>(file_.get()), bytes.data() + done,
                    size, &count, &where)) {
      const DWORD error = ::GetLastError();
      if (error == ERROR_HANDLE_EOF) break;
      return OsError(
          static_cast<int>(error),
          absl::StrCat("ReadFile(", path_, ", ", size, " bytes at ", at, ")"));
    }
    if (count == 0) break;
    done += count;
  }
  return done;
}

}  // namespace vmm::platform
