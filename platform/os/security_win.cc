#include "platform/os/security_win.h"

// First: the next one needs it.
#include <windows.h>
// After the line above.
#include <sddl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "platform/base/status_macros.h"
#include "platform/os/os_error.h"
#include "platform/os/os_handle.h"
#include "platform/os/utf16_win.h"

namespace vmm::platform {

namespace {

struct TokenSid {
  SID_AND_ATTRIBUTES about;  // Points into what follows.
  std::byte sid[SECURITY_MAX_SID_SIZE];
};

// TokenUser or TokenIntegrityLevel, which are laid out alike, of a process.
absl::StatusOr<std::unique_ptr<TokenSid>> SidOfProcess(
    std::intptr_t process, TOKEN_INFORMATION_CLASS which) {
  HANDLE raw = nullptr;
  if (::OpenProcessToken(reinterpret_cast<HANDLE>(process), TOKEN_QUERY,
                         &raw) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error, absl::StrCat("OpenProcessToken(", process, ")"));
  }
  const OsHandle token = OsHandle::Adopt(reinterpret_cast<std::intptr_t>(raw));
  auto sid = std::make_unique<TokenSid>();
  DWORD size = 0;
  if (::GetTokenInformation(raw, which, sid.get(), sizeof(*sid), &size) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(error,
                   absl::StrCat("GetTokenInformation(", int{which}, ")"));
  }
  return sid;
}

}  // namespace

void LocalMemoryTraits::Close(Value value) { ::LocalFree(value); }

absl::StatusOr<UserId> UserOfSid(void* sid) {
  wchar_t* text = nullptr;
  if (::ConvertSidToStringSidW(sid, &text) == 0) {
    return LastError().Of("ConvertSidToStringSidW()");
  }
  const LocalMemory owned = LocalMemory::Adopt(text);
  return UserId(ToUtf8(text));
}

absl::StatusOr<UserId> UserOfProcess(std::intptr_t process) {
  ASSIGN_OR_RETURN(const auto user, SidOfProcess(process, TokenUser));
  return UserOfSid(user->about.Sid);
}

absl::StatusOr<std::uint32_t> IntegrityOfProcess(std::intptr_t process) {
  ASSIGN_OR_RETURN(const auto label,
                   SidOfProcess(process, TokenIntegrityLevel));
  // The last part of S-1-16-LEVEL.
  return *::GetSidSubAuthority(
      label->about.Sid, *::GetSidSubAuthorityCount(label->about.Sid) - 1);
}

absl::StatusOr<LocalMemory> OwnerAndSystemOnly(
    const std::vector<UserId>& others, std::uint32_t others_access) {
  const std::string self = CurrentUser().text();
  // P: nothing is inherited. GA: everything. SY: the system.
  std::string text =
      absl::StrCat("O:", self, "D:P(A;;GA;;;", self, ")(A;;GA;;;SY)");
  for (const UserId& other : others) {
    absl::StatusOr<std::wstring> sid_text = ToUtf16(other.text());
    const absl::Status refused = absl::InvalidArgumentError(
        absl::StrCat("the user \"", absl::CHexEscape(other.text()),
                     "\" is not a security identifier such as S-1-5-18"));
    PSID sid = nullptr;
    if (!sid_text.ok() ||
        ::ConvertStringSidToSidW(sid_text->c_str(), &sid) == 0) {
      return refused;
    }
    const LocalMemory owned = LocalMemory::Adopt(sid);
    ASSIGN_OR_RETURN(const UserId plain, UserOfSid(sid));
    // Not a short name (WD is everybody), and nothing that would add rules.
    if (plain != other) return refused;
    absl::StrAppendFormat(&text, "(A;;0x%x;;;%s)", others_access, plain.text());
  }
  ASSIGN_OR_RETURN(const std::wstring wide, ToUtf16(text));
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (::ConvertStringSecurityDescriptorToSecurityDescriptorW(
          wide.c_str(), SDDL_REVISION_1, &descriptor, nullptr) == 0) {
    const auto error = static_cast<int>(::GetLastError());
    return OsError(
        error,
        absl::StrCat("ConvertStringSecurityDescriptorToSecurityDescriptorW(",
                     text, ")"));
  }
  return LocalMemory::Adopt(descriptor);
}

}  // namespace vmm::platform
