#include "platform/os/library.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <aclapi.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/status_macros.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/process.h"
#include "platform/os/security_win.h"
#include "platform/os/utf16_win.h"

namespace vmm::platform {
namespace {

// Rights with which a file, or the rules for it, can be changed.
constexpr ACCESS_MASK kChange = FILE_WRITE_DATA | FILE_APPEND_DATA | DELETE |
                                WRITE_DAC | WRITE_OWNER | GENERIC_WRITE |
                                GENERIC_ALL;

constexpr char kSystem[] = "S-1-5-18";
constexpr char kAdministrators[] = "S-1-5-32-544";
// The service that installs Windows' own files.
constexpr char kTrustedInstaller[] =
    "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464";

bool IsTrusted(const UserId& user) {
  return user == CurrentUser() || user.text() == kSystem ||
         user.text() == kAdministrators || user.text() == kTrustedInstaller;
}

// "C:\..." or "C:/...". Not "\\server\...": code from the network is no
// driver of this machine's.
bool IsAbsolute(const std::string& path) {
  return path.size() > 3 &&
         absl::ascii_isalpha(static_cast<unsigned char>(path[0])) &&
         path[1] == ':' && (path[2] == '\\' || path[2] == '/');
}

absl::Status CheckAccessList(const std::string& path, PACL list) {
  if (list == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "not loading ", path,
        ": it has no access list, so that everybody may write to it"));
  }
  for (DWORD i = 0; i < list->AceCount; ++i) {
    void* raw = nullptr;
    if (::GetAce(list, i, &raw) == 0) {
      const auto error = static_cast<int>(::GetLastError());
      return OsError(error, absl::StrCat("GetAce(", path, ")"));
    }
    const auto* header = static_cast<const ACE_HEADER*>(raw);
    // A rule for what is made in a folder, and one that denies, give nothing.
    if ((header->AceFlags & INHERIT_ONLY_ACE) != 0 ||
        header->AceType == ACCESS_DENIED_ACE_TYPE ||
        header->AceType == ACCESS_DENIED_OBJECT_ACE_TYPE ||
        header->AceType == ACCESS_DENIED_CALLBACK_ACE_TYPE) {
      continue;
    }
    auto* allowed = static_cast<ACCESS_ALLOWED_ACE*>(raw);
    if ((allowed->Mask & kChange) == 0) continue;
    if (header->AceType != ACCESS_ALLOWED_ACE_TYPE) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "not loading %s: its access list has a rule of type %d, which this "
          "check does not read",
          path, header->AceType));
    }
    ASSIGN_OR_RETURN(const UserId user, UserOfSid(&allowed->SidStart));
    if (!IsTrusted(user)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "not loading %s: %s may write to it (access 0x%x). Let only you, "
          "SYSTEM and Administrators write: icacls FILE /inheritance:r ...",
          path, user.text(), allowed->Mask));
    }
  }
  return absl::OkStatus();
}

// The file at `path`, if its owner and those who may write to it are trusted;
// while it is open nobody can write to it, rename it or delete it.
absl::StatusOr<OsHandle> OpenChecked(const std::string& path,
                                     const std::wstring& wide) {
  const HANDLE raw =
      ::CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr,
                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (raw == INVALID_HANDLE_VALUE) {
    const DWORD error = ::GetLastError();
    const DWORD attributes = ::GetFileAttributesW(wide.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES &&
        (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("not loading ", path, ": it is a directory"));
    }
    return OsError(static_cast<int>(error),
                   absl::StrCat("CreateFileW(", path, ")"));
  }
  OsHandle file = OsHandle::Adopt(reinterpret_cast<std::intptr_t>(raw));
  if (::GetFileType(raw) != FILE_TYPE_DISK) {
    return absl::FailedPreconditionError(
        absl::StrCat("not loading ", path, ": it is not a regular file"));
  }
  PSID owner = nullptr;
  PACL list = nullptr;
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (const DWORD error = ::GetSecurityInfo(
          raw, SE_FILE_OBJECT,
          OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION, &owner,
          nullptr, &list, nullptr, &descriptor);
      error != ERROR_SUCCESS) {
    return OsError(static_cast<int>(error),
                   absl::StrCat("GetSecurityInfo(", path, ")"));
  }
  const LocalMemory owned = LocalMemory::Adopt(descriptor);
  ASSIGN_OR_RETURN(const UserId user, UserOfSid(owner));
  if (!IsTrusted(user)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "not loading ", path, ": it belongs to ", user.text(),
        ", and a library must belong to this process's user (",
        CurrentUser().text(), "), SYSTEM, Administrators or TrustedInstaller"));
  }
  RETURN_IF_ERROR(CheckAccessList(path, list));
  return file;
}

std::string PathOf(HMODULE module, const std::string& otherwise) {
  std::vector<wchar_t> path(32768);
  const DWORD size = ::GetModuleFileNameW(module, path.data(),
                                          static_cast<DWORD>(path.size()));
  return size == 0 || size == path.size()
             ? otherwise
             : ToUtf8(std::wstring_view(path.data(), size));
}

}  // namespace

absl::StatusOr<Library> Library::OpenSystem(const std::string& name) {
  absl::StatusOr<std::wstring> wide = ToUtf16(name);
  if (name.empty() || !wide.ok() ||
      name.find_first_of("/\\:") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name,
                     "\" is not a bare library name such as nvcuda.dll; "
                     "a path goes to OpenPath()"));
  }
  // Only there: neither beside the program nor in the working directory nor
  // along PATH, where anybody may have put one. By its path, for of a bare name
  // the one would do that this process has loaded already, from wherever.
  wchar_t folder[MAX_PATH];
  if (const UINT length = ::GetSystemDirectoryW(folder, MAX_PATH);
      length == 0 || length >= MAX_PATH) {
    return absl::InternalError("GetSystemDirectoryW() names no folder");
  }
  const std::wstring whole = std::wstring(folder) + L'\\' + *wide;
  const HMODULE module =
      ::LoadLibraryExW(whole.c_str(), nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (module == nullptr) {
    const auto error = static_cast<int>(::GetLastError());
    absl::Status status =
        OsError(error, absl::StrCat("LoadLibraryExW(", name, ", in System32)"));
    return absl::NotFoundError(absl::StrCat(status.message(), "."));
  }
  return Library(static_cast<void*>(module), PathOf(module, name));
}

absl::StatusOr<Library> Library::OpenPath(const std::string& path) {
  ASSIGN_OR_RETURN(std::wstring wide, ToUtf16(path));
  if (!IsAbsolute(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path,
                     "\" is not an absolute path on a drive (C:\\...); a "
                     "relative one would depend on the working directory"));
  }
  // The search flags below do not take the other slash.
  std::replace(wide.begin(), wide.end(), L'/', L'\\');
  ASSIGN_OR_RETURN(const OsHandle file, OpenChecked(path, wide));
  // What it needs itself comes from the system, not from beside it: who may
  // write to its folder could have put one of such a name there.
  const HMODULE module =
      ::LoadLibraryExW(wide.c_str(), nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (module == nullptr) {
    const auto error = static_cast<int>(::GetLastError());
    absl::Status status =
        OsError(error, absl::StrCat("LoadLibraryExW(", path, ")"));
    return absl::FailedPreconditionError(absl::StrCat(
        status.message(), ". What it needs itself must be in System32."));
  }
  return Library(module, path);
}

void* Library::Find(const char* symbol) const {
  return reinterpret_cast<void*>(
      ::GetProcAddress(static_cast<HMODULE>(handle_), symbol));
}

}  // namespace vmm::platform
